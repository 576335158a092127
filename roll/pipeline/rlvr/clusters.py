"""Starts the clusters of an RLVR run, all at the same time."""

from __future__ import annotations

import asyncio

from roll.configs.rlvr import RLVRConfig
from roll.distributed.backend import Backend
from roll.distributed.cluster import Cluster
from roll.distributed.devices import Inventory
from roll.pipeline import roles
from roll.pipeline.rlvr.preparation import Prepared


async def start_clusters(config: RLVRConfig, prepared: Prepared, inventory: Inventory, backend: Backend) -> dict[str, Cluster]:
    """By role: actor_train, actor_infer, reference (if something uses it), rewards.<domain>. With a checkpoint, trainer and
    engines start from it."""
    checkpoint, derived = prepared.checkpoint, prepared.derived
    pretrain = config.pretrain or ""
    version = checkpoint.step if checkpoint else 0
    model = str(checkpoint.model) if checkpoint else config.actor_infer.model_args.model_name_or_path or pretrain
    specs = {
        "actor_train": roles.train_specs("actor_train", config, derived, config.actor_train, pretrain, inventory, backend),
        "actor_infer": roles.infer_specs(config, derived, model, version, inventory, backend),
    }
    if config.uses_reference and config.reference is not None:
        specs["reference"] = roles.train_specs("reference", config, derived, config.reference, pretrain, inventory, backend)
    for domain, reward in config.rewards.items():
        specs[f"rewards.{domain}"] = roles.reward_specs(domain, reward, inventory)
    started = await asyncio.gather(
        *(Cluster.start(role, backend, of_role, config.rpc_timeout) for role, of_role in specs.items())
    )
    clusters = dict(zip(specs, started, strict=True))
    if checkpoint is not None:
        await clusters["actor_train"].call_all("load", str(checkpoint.trainer))
    return clusters
