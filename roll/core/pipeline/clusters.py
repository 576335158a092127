"""Starts the clusters of a run, and reports each one that is ready.

All start at the same time, but for roles that share devices: each of them starts when those before it sleep, or are ready if
they overlap, the engines first.
An engine takes its share of a device's free memory, and measures the free memory, when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path

from roll.core.configs.arguments import EngineArguments
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.sizes import duration
from roll.core.configs.worker import ActorInferConfig, TeacherConfig
from roll.core.distributed.backend import Backend, WorkerSpec
from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.distributed.devices import Inventory
from roll.core.pipeline import roles
from roll.core.pipeline.prepared import Prepared


async def start_clusters(
    config: PPOConfig,
    prepared: Prepared,
    own: Mapping[str, Sequence[WorkerSpec]],
    inventory: Inventory,
    backend: Backend,
    note: Callable[[str], None],
    devices: DeviceLocks,
    only: Container[str] | None = None,
) -> dict[str, Cluster]:
    """Returns the started clusters by role: those of the configuration that are used, and the pipeline's `own`; of these only the
    roles in `only`, if given. `note`: prints a line. With a checkpoint, trainers and engines start from it. From here on
    `devices` has roles sleep and wake."""
    checkpoint, began = prepared.checkpoint, monotonic()
    specs = {**_specs(config, prepared, inventory, backend), **own}
    specs = {role: of_role for role, of_role in specs.items() if only is None or role in only}
    loaded: dict[str, Path] = {}
    if checkpoint is not None:
        loaded = {"actor_train": checkpoint.trainer, "actor_log_prob": checkpoint.trainer, "critic": checkpoint.critic}
    limits = {"start_s": config.worker_start_timeout, "heartbeat_s": config.heartbeat_timeout}

    async def start(role: str) -> Cluster:
        worker = config.roles().get(role)
        if worker is not None and role != "actor_infer" and specs.keys() & config.on_devices_of(role, at_once=True):
            await asyncio.wait(starting[:1])  # the engines
        ranks = worker.data_parallel_ranks if worker is not None and not isinstance(worker, ActorInferConfig) else None
        cluster = await Cluster.start(role, backend, specs[role], config.rpc_timeout, ranks, **limits)
        note(f"  {role} is ready: {_workers(len(cluster))} in {duration(monotonic() - began)}")
        if role in loaded:
            await _load(cluster, str(loaded[role]), note)
        return cluster

    note(f"starting {', '.join(specs)} ...")
    starting: list[asyncio.Task[Cluster]] = []
    starting += [asyncio.create_task(_in_turn(role, start, devices, starting)) for role in specs]
    return dict(zip(specs, await asyncio.gather(*starting), strict=True))


async def _in_turn(
    role: str, start: Callable[[str], Awaitable[Cluster]], devices: DeviceLocks, starting: Sequence[asyncio.Task[Cluster]]
) -> Cluster:
    """`starting`: the starts of all roles."""
    if role not in devices.table.devices:
        return await start(role)
    async with devices.hold(role):
        try:
            cluster = await start(role)
        except Exception:
            for other in set(starting) - {asyncio.current_task()}:  # else the next would begin on these devices now
                other.cancel()
            raise
        turns = ("sleep", "wake") if role == "actor_infer" else ("offload", "reload")
        devices.on_turn(role, *(partial(cluster.call_all, turn) for turn in turns))
        return cluster


def _specs(config: PPOConfig, prepared: Prepared, inventory: Inventory, backend: Backend) -> dict[str, Sequence[WorkerSpec]]:
    """Returns the workers of the roles that all pipelines have, engines first."""
    checkpoint, derived, version = prepared.checkpoint, prepared.derived, prepared.first_version
    model = str(checkpoint.model) if checkpoint else config.model_folder(config.actor_infer)
    if prepared.evaluated:
        model = str(prepared.evaluated[0].folder)
    adapters = str(checkpoint.adapters) if checkpoint else None
    specs: dict[str, Sequence[WorkerSpec]] = {}
    for role, worker in sorted(config.roles().items(), key=lambda each: each[0] != "actor_infer"):
        if isinstance(worker, ActorInferConfig):
            specs[role] = roles.infer_specs(config, derived, model, version, inventory, backend, adapters)
        elif isinstance(worker, TeacherConfig) and isinstance(worker.strategy_args.options, EngineArguments):
            specs[role] = roles.teaching_specs(role, config, derived, worker, inventory, backend)
        else:
            specs[role] = roles.train_specs(role, config, derived, worker, config.model_folder(worker), inventory, backend)
    return specs


async def _load(cluster: Cluster, checkpoint: str, note: Callable[[str], None]) -> None:
    began = monotonic()
    await cluster.call_all("load", checkpoint)
    note(f"  {cluster.role} has loaded its checkpoint in {duration(monotonic() - began)}")


async def settle(stayed: Mapping[str, Cluster]) -> None:
    """Replaces workers that died while the other clusters restarted, and aborts requests to engines that nobody waits for."""
    await asyncio.gather(*(cluster.replace_silent() for cluster in stayed.values()))
    if "actor_infer" in stayed:
        await stayed["actor_infer"].call_all("abort")


def watch_deaths(clusters: Mapping[str, Cluster]) -> list[Coroutine[object, object, None]]:
    """Returns watchers that run as long as the run does. A rank of the trainer that dies is noticed even while no call is under
    way, and ends both sides; other workers are replaced by their callers. Engines have a fleet that watches them."""
    others = {role: cluster for role, cluster in clusters.items() if role != "actor_infer"}
    return [cluster.watch() if roles.of_trainer(role) else cluster.kill_silent() for role, cluster in others.items()]


def device_locks(config: PPOConfig) -> DeviceLocks:
    """Returns the locks of roles that share a device: they take turns, and a role that leaves frees its memory if it can."""
    held = {role: frozenset(worker.devices) for role, worker in config.roles().items()}
    return DeviceLocks(held, frozenset({"actor_infer"} if config.sharing == "overlap" else ()))


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
