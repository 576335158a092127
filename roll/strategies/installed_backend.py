"""Missing packages of the roles' training back ends and adapters. Imports none of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem

_PACKAGES = {"deepspeed": "deepspeed", "megatron": "megatron-core"}


def backend_problems(config: PPOConfig) -> Iterator[Problem]:
    """Yields the problems of the roles that a run starts."""
    for name, role in config.roles().items():
        chosen, target = role.strategy_args.strategy_name, role.model_args.lora_target
        module = chosen.partition("_")[0]
        if module in _PACKAGES and find_spec(module) is None:
            fix = f"pip install 'roll[{module}]', or fsdp2_{chosen.partition('_')[2]}"
            message = f"needs {_PACKAGES[module]}, which is not installed"
            yield Problem(f"{name}.strategy_args.strategy_name", chosen, message, fix)
        if target is not None and find_spec("peft") is None:
            fix = "pip install 'roll[lora]', or no lora_target"
            yield Problem(f"{name}.model_args.lora_target", target, "needs peft, which is not installed", fix)
