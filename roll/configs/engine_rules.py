"""Rules for engines of other projects (`strategy_name: vllm`) that need no look at what is installed."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.engine_arguments import PARALLEL_SIZES, EngineArguments
from roll.configs.lora_updates import adapter_updates
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
    block = "actor_infer.strategy_args.strategy_config"
    if options.starts_empty and adapter_updates(config)[0]:
        message = "weight updates are adapters alone (lora_update), whose base the engines read from the model folder"
        yield Problem(f"{block}.load_format", "dummy", message, "safetensors, or lora_update: merged")
    sizes = {name: options.given.get(name, 1) for name in PARALLEL_SIZES}
    wrong = [key for key, size in sizes.items() if type(size) is not int or size < 1]
    for key in wrong:
        yield Problem(f"{block}.{key}", sizes[key], "must be an integer >= 1: an engine has as many devices as their product")
    if wrong:
        return
    try:
        devices = role.world_size
    except ValueError:  # a device_mapping that cannot be read: reported as such
        return
    if devices % options.devices_per_engine:
        key = max(sizes, key=lambda size: sizes[size])
        message = f"{devices} devices of actor_infer do not divide into engines of {options.devices_per_engine}"
        yield Problem(f"{block}.{key}", sizes[key], message, "change device_mapping, or a size that divides it")
