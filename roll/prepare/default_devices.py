"""Devices of roles that name none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.worker import TEACHERS

C = TypeVar("C", bound=PPOConfig)


def shared_out(devices: int) -> tuple[list[int], list[int]]:
    """Returns the devices of trainer and engines: half for each, or both times the only one, used in turns."""
    half = devices // 2
    return (list(range(half)), list(range(half, devices))) if half else ([0], [0])


def with_default_devices(config: C, accelerators: int) -> C:
    """Assigns devices to the trainer and the engines if they are the only roles and name none. `accelerators`: those of this
    machine; on CPUs each role gets one slot."""
    roles = config.configured_roles()
    if config.from_rows and config.num_nodes == 1:
        devices = list(range(config.num_gpus_per_node or accelerators or 1))
        given: Any = {name: replace(role, device_mapping=devices) for name, role in roles.items() if role.device_mapping is None}
        taught = {name: given.pop(f"{TEACHERS}{name}", teacher) for name, teacher in config.teachers.items()}
        return replace(config, **given, teachers=taught)
    if not config.has_both_sides or config.num_nodes != 1 or roles.keys() != {"actor_train", "actor_infer"}:
        return config
    if any(role.device_mapping is not None for role in roles.values()):
        return config
    train, infer = shared_out(config.num_gpus_per_node or accelerators or 2)
    return replace(
        config,
        actor_train=replace(config.actor_train, device_mapping=train),
        actor_infer=replace(config.actor_infer, device_mapping=infer),
    )
