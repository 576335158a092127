"""Starts the clusters of a run, all at the same time, and says of each when it is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from roll.configs.ppo import PPOConfig
from roll.configs.worker import ActorInferConfig
from roll.distributed.backend import Backend, WorkerSpec
from roll.distributed.cluster import Cluster
from roll.distributed.devices import Inventory
from roll.metrics.display import Display, duration
from roll.pipeline import roles
from roll.pipeline.preparation import Prepared


async def start_clusters(
    config: PPOConfig,
    prepared: Prepared,
    own: Mapping[str, Sequence[WorkerSpec]],
    inventory: Inventory,
    backend: Backend,
    display: Display,
) -> dict[str, Cluster]:
    """The started clusters by role: actor_train, actor_infer, reference and critic (if something uses them), and the pipeline's
    `own` roles. With a checkpoint, trainers and engines start from it."""
    checkpoint, derived = prepared.checkpoint, prepared.derived
    version = prepared.first_version
    model = str(checkpoint.model) if checkpoint else config.model_folder(config.actor_infer)
    if prepared.benched:
        model = str(prepared.benched[0].folder)
    adapters = str(checkpoint.adapters) if checkpoint else None
    specs, shards = {}, {}
    for role, worker in config.roles().items():
        if isinstance(worker, ActorInferConfig):
            specs[role] = roles.infer_specs(config, derived, model, version, inventory, backend, adapters)
        else:
            specs[role] = roles.train_specs(role, config, derived, worker, config.model_folder(worker), inventory, backend)
            shards[role] = worker.data_parallel_ranks
    specs |= {role: list(of_role) for role, of_role in own.items()}
    began = time.monotonic()

    async def start(role: str) -> Cluster:
        limits = {"start_s": config.worker_start_timeout, "heartbeat_s": config.heartbeat_timeout}
        cluster = await Cluster.start(role, backend, specs[role], config.rpc_timeout, shards.get(role), **limits)
        display.note(f"  {role} is ready: {_workers(len(cluster))} in {duration(time.monotonic() - began)}")
        return cluster

    display.note(f"starting {', '.join(specs)} ...")
    clusters = dict(zip(specs, await asyncio.gather(*map(start, specs)), strict=True))
    loaded = {"actor_train": checkpoint.trainer, "critic": checkpoint.critic} if checkpoint is not None else {}
    for role in loaded.keys() & clusters.keys():
        loading = time.monotonic()
        await clusters[role].call_all("load", str(loaded[role]))
        display.note(f"  {role} has loaded its checkpoint in {duration(time.monotonic() - loading)}")
    return clusters


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
