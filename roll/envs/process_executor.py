"""Runs an environment in a process of its own: only there it can be stopped whatever it does, and can neither end its worker nor
block it.

One process has one environment at a time, and keeps its interpreter for the next: the pool hands a process whose environment was
closed to whoever asks for one. A process that was killed is replaced when it is next needed, so a hanging environment costs the
episode it is in.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from roll.distributed.child import START_LIMIT_S, CallFailed, Child, ChildDied, ChildPool, same_imports
from roll.rollout.environment_failure import EnvFailure

T = TypeVar("T")


class ProcessPool(ChildPool):
    """Processes for environments."""

    def __init__(self) -> None:
        super().__init__("roll.envs.env_process:EnvProcess", environment={**os.environ, **same_imports()})
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)  # more starts at once would only share the cores

    async def make(self, recipe: list[Any]) -> Child:
        """A process with the environment of `recipe`, [env_type, env_config]. Raises `EnvFailure`."""
        async with self._starting:
            child = await _asked(self.take(), START_LIMIT_S)
            try:
                await _asked(child.ask(START_LIMIT_S, "make", *recipe), START_LIMIT_S)
            except EnvFailure:
                await child.kill()
                raise
            return child


class ProcessExecutor:
    is_stuck = False

    def __init__(self, pool: ProcessPool, env_type: str, env_config: Mapping[str, object]) -> None:
        self._pool = pool
        self._recipe = [env_type, dict(env_config)]
        self._child: Child | None = None
        self._busy = False

    async def call(self, method: str, argument: object, limit_s: float | None) -> Any:
        if self._child is None:
            self._child = await self._pool.make(self._recipe)
        self._busy = True
        try:
            return await _asked(self._child.ask(limit_s, method, argument), limit_s)
        finally:
            self._busy = False

    async def leave(self) -> None:
        """A call that is under way fails."""
        child, self._child = self._child, None
        if child is None or child.ending is not None:
            return
        if self._busy:
            await child.kill()
            return
        await _asked(child.ask(START_LIMIT_S, "close"), START_LIMIT_S)
        self._pool.give_back(child)

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid


async def _asked(call: Coroutine[Any, Any, T], limit_s: float | None) -> T:
    """The result of the call to a process. Raises `EnvFailure`."""
    try:
        return await call
    except TimeoutError:
        raise EnvFailure("timeout", f"no answer within {limit_s:g} s; its process was killed") from None
    except CallFailed as failure:
        raise EnvFailure("exception", str(failure)) from None
    except ChildDied as ending:
        raise EnvFailure("died", f"the environment's process ended ({ending})") from None
