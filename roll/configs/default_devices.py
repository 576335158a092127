"""The devices of a run on one machine whose configuration names none."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from roll.configs.ppo import PPOConfig

C = TypeVar("C", bound=PPOConfig)


def shared_out(devices: int) -> tuple[list[int], list[int]]:
    """Those of the trainer and of the engines: half each, or in turns the only one."""
    half = devices // 2
    return (list(range(half)), list(range(half, devices))) if half else ([0], [0])


def with_default_devices(config: C, accelerators: int) -> C:
    """If neither the trainer nor the engines name devices, and no other role does. `accelerators` of this machine; on CPUs it is
    one slot each."""
    roles = config.configured_roles()
    if config.mode != "both" or config.num_nodes != 1 or roles.keys() != {"actor_train", "actor_infer"}:
        return config
    if any(role.device_mapping is not None for role in roles.values()):
        return config
    train, infer = shared_out(config.num_gpus_per_node or accelerators or 2)
    return replace(
        config,
        actor_train=replace(config.actor_train, device_mapping=train),
        actor_infer=replace(config.actor_infer, device_mapping=infer),
    )
