"""Starts the clusters of a run, all at the same time, and says of each when it is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from roll.configs.ppo import PPOConfig
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
    """By role: actor_train, actor_infer, reference and critic (if something uses them), and the pipeline's `own`. With a
    checkpoint, trainers and engines start from it."""
    checkpoint, derived = prepared.checkpoint, prepared.derived
    pretrain = config.pretrain or ""
    version = checkpoint.step if checkpoint else 0
    model = str(checkpoint.model) if checkpoint else config.actor_infer.model_args.model_name_or_path or pretrain
    adapters = str(checkpoint.adapters) if checkpoint else None
    specs = {
        "actor_train": roles.train_specs("actor_train", config, derived, config.actor_train, pretrain, inventory, backend),
        "actor_infer": roles.infer_specs(config, derived, model, version, inventory, backend, adapters),
    }
    shards = {"actor_train": config.actor_train.data_parallel_ranks}
    if config.uses_reference and config.reference is not None:
        specs["reference"] = roles.train_specs("reference", config, derived, config.reference, pretrain, inventory, backend)
        shards["reference"] = config.reference.data_parallel_ranks
    if config.uses_critic and config.critic is not None:
        specs["critic"] = roles.train_specs("critic", config, derived, config.critic, pretrain, inventory, backend)
        shards["critic"] = config.critic.data_parallel_ranks
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
