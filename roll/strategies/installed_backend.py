"""Whether the packages of the roles' training back ends and adapters are installed. Imports none of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from roll.configs.ppo import PPOConfig
from roll.configs.problems import Problem
from roll.strategies.train.backends import BACKENDS


def backend_problems(config: PPOConfig) -> Iterator[Problem]:
    """Of the roles that a run starts."""
    for name, role in config.roles().items():
        chosen, target = role.strategy_args.strategy_name, role.model_args.lora_target
        traits = BACKENDS.get(type(role.strategy_args.options))
        if traits is not None and traits.package is not None and find_spec(traits.package[0]) is None:
            module, distribution = traits.package
            fix = f"pip install 'roll[{module}]', or fsdp2_{chosen.partition('_')[2]}"
            message = f"needs {distribution}, which is not installed"
            yield Problem(f"{name}.strategy_args.strategy_name", chosen, message, fix)
        if target is not None and find_spec("peft") is None:
            fix = "pip install 'roll[lora]', or no lora_target"
            yield Problem(f"{name}.model_args.lora_target", target, "needs peft, which is not installed", fix)
