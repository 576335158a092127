"""Environments that misbehave on request. Named by dotted path, also from other processes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

RELEASED = threading.Event()
"""Set by a test to let hanging threads of its own process go."""


class Moody:
    """Does what the action says."""

    instructions = "do as you are told"

    def __init__(self, refuse: bool = False) -> None:
        if refuse:
            raise ValueError("refused")
        self.episodes = 0

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        self.episodes += 1
        return f"episode {self.episodes}, seed {seed}", {}

    def step(self, action_text: str) -> Any:
        reward: Any = 1.0
        if action_text == "hang":
            while not RELEASED.wait(0.01):
                pass
        if action_text == "hang in C":
            7 ** (7**10)
        if action_text == "raise":
            raise KeyError("lost")
        if action_text == "exit":
            raise SystemExit(5)
        if action_text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action_text == "print":
            print("printed by the environment")
        if action_text == "four":
            return "", 1.0, False, False
        if action_text == "nan":
            reward = float("nan")
        if action_text == "word":
            reward = "much"
        if action_text == "numpy":
            reward = np.float32(0.5)
        info = {"pid": os.getpid(), "thread": threading.get_ident(), "object": object() if action_text == "object" else None}
        return f"episode {self.episodes}", reward, False, np.bool_(False), info

    def close(self) -> None:
        pass


class Sleeper:
    """Coroutines. The action is the number of seconds to wait."""

    instructions = "wait"
    cancelled = 0

    async def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        return str(seed), {}

    async def step(self, action_text: str) -> Any:
        try:
            await asyncio.sleep(float(action_text))
        except asyncio.CancelledError:
            type(self).cancelled += 1
            raise
        return action_text, 0.0, False, False, {"thread": threading.get_ident()}

    def close(self) -> None:
        pass


class OneOfTwo:
    instructions = ""

    def reset(self, seed: int) -> Any: ...

    async def step(self, action_text: str) -> Any: ...

    def close(self) -> None: ...


class Slow(Moody):
    """Counts how many run at once."""

    running = 0
    most = 0

    def step(self, action_text: str) -> Any:
        Slow.running += 1
        Slow.most = max(Slow.most, Slow.running)
        time.sleep(0.02)
        Slow.running -= 1
        return super().step(action_text)


class Selfish(Moody):
    thread_safe = False


class Broken:
    """Breaks several promises: what it draws depends on its history, it never ends, and its info says little."""

    instructions = ""
    draws = 0

    def reset(self, seed: int) -> Any:
        return "start", {}

    def step(self, action_text: str) -> Any:
        Broken.draws += 1
        return str(Broken.draws), 0.0, False, False, {}

    def close(self) -> None: ...


class Endless(Broken):
    def step(self, action_text: str) -> Any:
        return "on", 0.0, False, False, {"action_is_valid": True, "action_is_effective": True}


class EndlessGame(gymnasium.Env[str, int]):
    """Of gymnasium, which ends it where its adapter says so."""

    action_space = spaces.Discrete(4)
    observation_space = spaces.Text(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "on", {}

    def step(self, action: int) -> Any:
        return "on", 0.0, False, False, {}


class BadReward(Broken):
    def step(self, action_text: str) -> Any:
        return "", float("nan"), True, False, {}


class Waiting(gymnasium.Env[str, str]):
    """Gymnasium knows no coroutines."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any: ...  # type: ignore[override]

    async def step(self, action: str) -> Any: ...  # type: ignore[override]
