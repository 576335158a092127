"""Rules for engines of other projects (`strategy_name: vllm`) that need no look at what is installed."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.engine_arguments import EngineArguments
from roll.configs.ppo import PPOConfig
from roll.configs.problems import Problem


def engine_problems(config: PPOConfig) -> Iterator[Problem]:
    role = config.actor_infer
    name, options = role.strategy_args.strategy_name, role.strategy_args.options
    if not isinstance(options, EngineArguments):
        return
    if config.deterministic:
        message = f"{name} batches requests as they come, and another batch rounds otherwise"
        yield Problem("deterministic", True, message, "actor_infer.strategy_args.strategy_name: hf_infer")
    key, size = "actor_infer.strategy_args.strategy_config.tensor_parallel_size", options.given.get("tensor_parallel_size", 1)
    if type(size) is not int or size < 1:
        yield Problem(key, size, "must be an integer >= 1: the devices of one engine")
        return
    try:
        devices = role.world_size
    except ValueError:  # a device_mapping that cannot be read: reported as such
        return
    if devices % size:
        message = f"{devices} devices of actor_infer do not divide into engines of {size}"
        yield Problem(key, size, message, "change device_mapping, or a size that divides it")
