"""Environments that misbehave on request. Named by dotted path, also from other processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

RELEASED = threading.Event()
"""Set by a test to let hanging threads of its own process go."""


class Odd(BaseException):
    pass


ODD = (StopIteration, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Odd)


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
        if action_text.startswith("odd: "):
            raise {kind.__name__: kind for kind in ODD}[action_text.removeprefix("odd: ")]("why")
        if action_text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action_text == "print":
            print("printed by the environment")
        if action_text == "four":
            return "", 1.0, False, False
        if action_text == "nan":
            reward = float("nan")
        if action_text == "huge":
            reward = int("9" * 400)
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


class Waiter(gymnasium.Env):
    """Parts in its spaces, and facts in its info that only some steps have."""

    instructions, format_penalty = "Serve what is wanted.", -0.5

    def __init__(self):
        self.action_space = spaces.Dict(
            {"table": spaces.Discrete(3, start=1), "trays": spaces.MultiBinary(2), "word": spaces.Text(5)}
        )
        self.observation_space = spaces.Tuple((spaces.Text(9, charset="abcdefghijklmnopqrstuvwxyz "), spaces.Discrete(9)))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.table = 0, int(self.np_random.integers(1, 4))
        return ("welcome", self.table), {"table": self.table}

    def step(self, action):
        assert self.action_space.contains(action)
        self.turn += 1
        if action["word"] == "sleep":
            multiprocessing.Event().wait()
        right = bool(action["table"] == self.table and action["trays"].all())
        said = {"success": right, "kitchen": {"busy": 1.5}, "tip": np.float32(0.25)} if self.turn == 3 else {"turn": self.turn}
        return ("and now", self.table), 2.0 * right, self.turn == 3, False, said

    def oracle_action(self):
        return {"table": self.table, "trays": np.ones(2, np.int8), "word": "here"}


def waiters(mode="NEXT_STEP", in_process=True, num_envs=1, as_list=False, **more):
    kind, more = (SyncVectorEnv, more) if in_process else (AsyncVectorEnv, {"shared_memory": False, **more})
    vector = kind([Waiter] * num_envs, autoreset_mode=AutoresetMode[mode], **more)
    return gymnasium.wrappers.vector.DictInfoToList(vector) if as_list else vector
