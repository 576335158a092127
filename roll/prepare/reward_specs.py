"""The reward workers of a domain: placements and options."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.worker import JudgingModelConfig, RewardModelConfig
from roll.core.distributed.backend import Backend, WorkerSpec
from roll.core.distributed.devices import Inventory, Placement, place_on_cpus
from roll.core.pipeline.roles import engines_on

REWARD_WORKER = "roll.core.rewards.host.RewardHost"


def reward_specs(
    domain: str, config: RLVRConfig, longest_response: int, inventory: Inventory, backend: Backend
) -> list[WorkerSpec]:
    """Returns reward workers on CPUs, or one with each engine of the model that judges."""
    reward = config.rewards[domain]
    engines: list[tuple[Placement, dict[str, Any] | None]]
    engines = [(placement, None) for placement in place_on_cpus(reward.world_size, inventory)]
    for model in reward.models.values():
        engines = [*_judging_specs(config, model, reward.max_concurrency, inventory, backend)]
    specs = []
    for placement, engine in engines:
        of_worker = asdict(reward) | {"engine": engine, "policy": config.model_folder(config.actor_train)}
        kwargs = {"config": of_worker, "shaping": reward.shaping, "longest_response": longest_response}
        specs.append(WorkerSpec(f"rewards.{domain}-{placement.rank}", REWARD_WORKER, placement, kwargs))
    return specs


def _judging_specs(
    config: PPOConfig, model: JudgingModelConfig, requests: int, inventory: Inventory, backend: Backend
) -> list[tuple[Placement, dict[str, Any]]]:
    """Returns, for each engine of a judging model, its placement and the options of `make_infer_strategy` or `make_scorer`.
    `requests`: the number that it serves immediately."""
    given = {"model_path": model.model_name_or_path, "max_running_requests": requests, "max_length": model.max_length}
    if isinstance(model, RewardModelConfig):
        given["max_tokens"] = model.max_tokens_per_microbatch_in_infer
    return engines_on(config, model, model, given, inventory, backend)
