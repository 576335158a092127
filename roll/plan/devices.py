"""Which role works where: parallel sizes with their arithmetic, and who shares devices with whom. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roll.configs.ppo import PPOConfig
from roll.configs.worker import WorkerConfig

TENSOR = ("tensor_model_parallel_size", "tensor_parallel_size")
PIPELINE = ("pipeline_model_parallel_size", "pipeline_parallel_size")
CONTEXT = ("context_model_parallel_size", "context_parallel_size")


@dataclass(frozen=True, slots=True)
class RolePlan:
    role: str
    strategy: str
    devices: tuple[int, ...]
    tensor: int
    pipeline: int
    context: int
    data: int
    """Data-parallel ranks of a trainer, independent engines of `actor_infer`."""
    arithmetic: str
    shares_with: tuple[str, ...]
    """Roles with which it takes turns, because they need some of the same devices."""


def role_plans(config: PPOConfig) -> list[RolePlan]:
    """The roles that a run starts. `device_mapping` must be readable and the sizes must divide (`check_config`)."""
    roles = config.roles()
    devices = {name: set(role.devices) for name, role in roles.items()}
    plans = []
    for name, role in roles.items():
        tensor, pipeline, context = (_size(role, names) for names in (TENSOR, PIPELINE, CONTEXT))
        data = max(1, role.world_size // (tensor * pipeline * context))
        plans.append(
            RolePlan(
                role=name,
                strategy=role.strategy_args.strategy_name,
                devices=role.devices,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                data=data,
                arithmetic=_arithmetic(name, role.world_size, tensor, pipeline, context, data),
                shares_with=tuple(other for other in roles if other != name and devices[other] & devices[name]),
            )
        )
    return plans


def _size(role: WorkerConfig, names: tuple[str, ...]) -> int:
    """The size that the back end's options give under the first of these names that they have; 1 where they have none."""
    given: dict[str, Any] = role.strategy_args.strategy_config
    for name in names:
        value = given.get(name, getattr(role.strategy_args.options, name, None))
        if isinstance(value, int):
            return value
    return 1


def _arithmetic(role: str, devices: int, tensor: int, pipeline: int, context: int, data: int) -> str:
    kind = "data-parallel" if role != "actor_infer" else "engine" if data == 1 else "engines"
    factors = [(tensor, "tensor"), (pipeline, "pipeline"), (context, "context"), (data, kind)]
    shown = [f"{size} {name}" for size, name in factors if size > 1 or name == kind]
    return f"{devices} device{'s' if devices > 1 else ''} = {' × '.join(shown)}"
