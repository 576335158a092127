"""Rules of what operators are told: addresses that can be read."""

from __future__ import annotations

from collections.abc import Iterator

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem
from roll.plan.rules.addresses import listening_at


def operating_problems(config: PPOConfig) -> Iterator[Problem]:
    if (address := config.metrics_address) is not None:
        try:
            listening_at(address)
        except ValueError as error:
            yield Problem("metrics_address", address, str(error), ":9400, or host:port of this machine")
