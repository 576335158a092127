"""The child side of `ProcessExecutor`: one environment at a time, and an event loop for it if it needs one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any

from roll.envs.registry import make_env


class EnvProcess:
    """Its methods raise what the environment raises."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._env: Any = None

    def make(self, env_type: str, env_config: dict[str, Any]) -> None:
        self._env = make_env(env_type, env_config)

    def reset(self, seed: int) -> Any:
        return self._awaited(self._env.reset(seed))

    def step(self, action_text: str) -> Any:
        return self._awaited(self._env.step(action_text))

    def close(self) -> None:
        env, self._env = self._env, None
        with contextlib.suppress(Exception):  # boundary: an environment may raise anything in close, and no caller waits for it
            env.close()

    def _awaited(self, value: object) -> Any:
        return self._runner.run(_result(value)) if inspect.isawaitable(value) else value


async def _result(value: Any) -> Any:
    return await value
