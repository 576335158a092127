"""Other devices for a configuration: so many engines, so many ranks of the trainer, apart from each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.worker import TEACHERS

Config = TypeVar("Config", bound=PPOConfig)


def with_devices(config: Config, engines: int | None, trainers: int | None) -> Config:
    """Trainers first, then engines, which share no device (`sharing` is for none); roles that had the trainer's devices have them
    again. None: as many as there are. Raises `ConfigError`."""
    if engines is None and trainers is None:
        return config
    for key, count in (("--engines", engines), ("--trainers", trainers)):
        if count is not None and count < 1:
            raise ConfigError([Problem(key, count, "there has to be one", "1 or more")])
    roles, each = config.roles(), config.actor_infer.strategy_args.engine.devices_per_engine
    before = roles["actor_train"].devices
    train = list(range(trainers if trainers is not None else len(before)))
    count = (engines * each) if engines is not None else len(roles["actor_infer"].devices)
    infer = [len(train) + device for device in range(count)]
    moved = {name: replace(worker, device_mapping=train) for name, worker in roles.items() if worker.devices == before}
    moved |= {
        "actor_train": replace(config.actor_train, device_mapping=train),
        "actor_infer": replace(config.actor_infer, device_mapping=infer),
    }
    return replace(_with_roles(config, moved), sharing="turns", num_nodes=1, num_gpus_per_node=len(train) + len(infer))


def _with_roles(config: Config, roles: Mapping[str, Any]) -> Config:
    """`roles`: by name, as `PPOConfig.roles` gives them; the others stay."""
    fields = {name: role for name, role in roles.items() if not name.startswith(TEACHERS)}
    teachers = {name: roles.get(f"{TEACHERS}{name}", teacher) for name, teacher in config.teachers.items()}
    return replace(config, teachers=teachers, **fields)
