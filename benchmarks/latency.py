"""Another environment made slow and unreliable on purpose: for benchmarks of the scheduling and for tests with faults.

Waits and faults are a function of the seed and of what the agent wrote, so a run meets the same ones again, and the episodes of
a group, which share a seed, meet different ones as soon as they act differently.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from typing import cast

from roll.core.configs.problems import ConfigError, Problem
from roll.core.data.seeding import derive_seed
from roll.envs.environment import Reset, Step, TextEnv, is_async
from roll.envs.registry import make_env


class InjectedFault(Exception):
    """The failure that is injected into a step."""


class LatencyEnv:
    def __init__(
        self,
        env_type: str,
        env_config: Mapping[str, object] | None = None,
        mean_s: float = 0.1,
        sigma: float = 1.0,
        hang_share: float = 0.0,
        hang_s: float = 3600.0,
        raise_share: float = 0.0,
        reset_s: float = 0.0,
    ) -> None:
        """`env_type`, `env_config`: the environment inside; it must be a computing one.

        A step takes a log-normal time with mean `mean_s` seconds and `sigma`, the standard deviation of its logarithm (0: always
        the mean; 1: one step in a hundred takes more than six times the mean). A share `hang_share` of steps takes
        `hang_s` seconds, a share `raise_share` raises `InjectedFault`; the wait comes first. `reset` takes `reset_s` seconds.
        Raises `ConfigError`."""
        for key, number in (("mean_s", mean_s), ("sigma", sigma), ("hang_s", hang_s), ("reset_s", reset_s)):
            if not (math.isfinite(number) and number >= 0):
                raise ConfigError([Problem(key, number, "must be a finite number >= 0")])
        for key, share in (("hang_share", hang_share), ("raise_share", raise_share)):
            if not 0 <= share <= 1:
                raise ConfigError([Problem(key, share, "must be >= 0 and <= 1")])
        inner = make_env(env_type, env_config or {})
        if is_async(inner):
            raise ConfigError([Problem("env_type", env_type, "waits by itself", "give a computing environment")])
        self.inner = cast(TextEnv, inner)
        self.instructions = self.inner.instructions
        self.mean_s, self.sigma, self.reset_s = mean_s, sigma, reset_s
        self.hang_share, self.hang_s, self.raise_share = hang_share, hang_s, raise_share
        self._fate = 0

    def latency(self, rng: random.Random) -> float:
        """Seconds: exp(N(μ, σ²)) with μ = ln(mean) - σ²/2, whose mean is `mean_s`."""
        if rng.random() < self.hang_share:
            return self.hang_s
        if not self.mean_s:
            return 0.0
        return rng.lognormvariate(math.log(self.mean_s) - self.sigma**2 / 2, self.sigma)

    async def reset(self, seed: int) -> Reset:
        await asyncio.sleep(self.reset_s)
        self._fate = derive_seed("latency", seed)
        return self.inner.reset(seed)

    async def step(self, action_text: str) -> Step:
        self._fate = derive_seed(self._fate, action_text)
        rng = random.Random(self._fate)
        await asyncio.sleep(self.latency(rng))
        if rng.random() < self.raise_share:
            raise InjectedFault("this step was chosen to fail")
        return self.inner.step(action_text)

    def close(self) -> None:
        self.inner.close()

    def sample_action(self, rng: random.Random) -> str:
        return str(self.inner.sample_action(rng))  # type: ignore[attr-defined]

    def oracle_action(self) -> str | None:
        oracle = getattr(self.inner, "oracle_action", None)
        return None if oracle is None else oracle()
