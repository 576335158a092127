"""Memory of the host that roles take on one node. Pure; the bytes are `memory`'s."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from roll.core.configs.engines import engine_of
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.sizes import MIB, WINDOW
from roll.core.configs.worker import ActorTrainConfig, CriticConfig
from roll.plan import memory
from roll.plan.counts import RolePlan
from roll.plan.memory import Model, Part, element_bytes
from roll.plan.memory_plan import RoleMemory, as_trained, drops_weights

BY_HANDLE = "ipc"
"""The transport whose memory files engines map."""


def host_memory(
    config: PPOConfig,
    roles: Sequence[RolePlan],
    memories: Sequence[RoleMemory],
    models: Mapping[str, Model | str],
    per_node: int,
    accelerators: bool,
) -> list[Part]:
    """Bytes of host memory on one node: the newest weights on their way to the engines (all of them if it has all the trainer's
    ranks), by handle also those before, an explorer's fetched buckets that are not loaded yet, the memory that vLLM and SGLang
    map until they flip, what vLLM keeps while it takes turns, those that actor_log_prob lacks, its ranks' part of what
    checkpoints are written from (adapters: all of it, if it has the first rank), and what roles that take turns move off their
    devices. Nothing for an unknown model."""
    trained = models[config.model_folder(config.actor_train)]
    if isinstance(trained, str):
        return []
    element = element_bytes(config.actor_train, accelerators)
    size, limit = element * trained.parameters, config.model_update_buffer_size_mb
    published = config.has_engines or not config.from_rows
    parts = list(_versions(config, size, f"{element} B × {trained.parameters:,} parameters")) if published else []
    for role in roles:
        if role.role == "actor_infer":
            parts += _on_the_way(config, role, per_node, size, min(size, limit * MIB))
            if accelerators and role.shares_with and drops_weights(config, role) and config.model_update_transport != BY_HANDLE:
                parts.append(Part("kept weights", size, "what vLLM loads again where no new version follows a sleep"))
    if config.actor_log_prob is not None:
        parts.append(Part("older weights", size, "the version that actor_log_prob has not taken yet"))
    for name, worker in config.roles().items():
        model = models[config.model_folder(worker)]
        if isinstance(worker, ActorTrainConfig | CriticConfig) and not isinstance(model, str):
            taken = memory.snapshot(as_trained(model, worker), element_bytes(worker, accelerators))
            own, ranks = _most_on_a_node(worker.devices, per_node), len(worker.devices)
            if worker.model_args.lora_target is None and own < ranks:
                taken = replace(taken, bytes=taken.bytes * own // ranks, formula=f"{taken.formula}, {own} of {ranks} ranks")
            parts.append(replace(taken, name=f"{name} snapshot"))
    for role, each in zip(roles, memories, strict=True):
        if role.shares_with and each.moved:
            count = _most_on_a_node(role.devices, per_node)
            parts.append(Part(f"{role.role} asleep", each.moved * count, f"moved off {count} devices"))
    return parts


def _versions(config: PPOConfig, size: int, formula: str) -> Iterator[Part]:
    limit = config.model_update_buffer_size_mb
    count = max(1, math.ceil(size / (limit * MIB)))
    yield Part("newest weights", size, f"{formula}, in {count} bucket{'s' * (count > 1)} of at most {limit:,} MiB")
    if config.model_update_transport == BY_HANDLE:
        yield Part("former weights", size, "ipc: the version before, whose memory files the next one is written to")


def _on_the_way(config: PPOConfig, engines: RolePlan, per_node: int, version: int, bucket: int) -> Iterator[Part]:
    """Each engine of an explorer fetches by itself; in one driver the buckets are those of the newest weights. Engines of other
    processes map one copy of a version until they flip, the trainer's if that is in memory files; hf_infer keeps it on its
    device."""
    if config.only_explores:
        count = -(-_most_on_a_node(engines.devices, per_node) * engines.data // len(engines.devices))
        yield Part("arriving weights", count * WINDOW * bucket, f"{WINDOW} buckets for each of {count} engines")
    if engine_of(engines.strategy).package and config.model_update_transport != BY_HANDLE:
        yield Part("staged weights", version, "the version that the engines map until they flip")


def _most_on_a_node(devices: Sequence[int], per_node: int) -> int:
    return max(Counter(device // per_node for device in devices).values())
