"""Runs an environment on the event loop, or in a thread of its own (`process_executor`: in a process of its own).

An executor holds one instance. It gets one call at a time, and is discarded after a failure; it leaves behind a call that it
cannot stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from roll.envs.registry import make_env
from roll.rollout.environment_failure import EnvFailure


class EnvExecutor(Protocol):
    async def call(self, method: str, argument: object, limit_s: float | None) -> Any:
        """The unchecked result of `method` of the environment. Raises `EnvFailure`; the executor cannot be used again then."""

    async def leave(self) -> None:
        """Closes the environment, if it can be reached, and frees the executor."""

    @property
    def is_stuck(self) -> bool:
        """Whether a call that cannot be stopped is still running in the executor."""


class LoopExecutor:
    """Runs an environment on the caller's event loop. A coroutine is cancelled at the limit; a plain function holds the loop up
    for as long as it takes, and has no limit."""

    is_stuck = False

    def __init__(self, env_type: str, env_config: Mapping[str, object]) -> None:
        self._env_type, self._env_config = env_type, env_config
        self._env: Any = None

    async def call(self, method: str, argument: object, limit_s: float | None) -> Any:
        try:
            if self._env is None:
                self._env = make_env(self._env_type, self._env_config)
            answer = getattr(self._env, method)(argument)
            if isinstance(answer, Awaitable):
                return await _within(limit_s, answer)
            return answer
        except EnvFailure:
            raise
        except (Exception, SystemExit) as error:  # boundary: whatever an environment raises is its failure
            raise raised(error) from error

    async def leave(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(Exception):  # boundary: close may raise anything, and no caller waits for it
                env.close()


class ThreadExecutor:
    """Runs an environment in a daemon thread. A call that outlives its limit cannot be stopped: its thread is left behind, with
    the environment, and ends when the call does."""

    def __init__(self, env_type: str, env_config: Mapping[str, object]) -> None:
        self._env_type, self._env_config = env_type, env_config
        self._requests: queue.SimpleQueue[tuple[str, Any, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False

    @property
    def is_stuck(self) -> bool:
        return self._busy and self._thread is not None and self._thread.is_alive()

    async def call(self, method: str, argument: object, limit_s: float | None) -> Any:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, args=(loop,), name="environment", daemon=True)
            self._thread.start()
        answer: asyncio.Future[Any] = loop.create_future()
        self._busy = True
        self._requests.put((method, argument, answer))
        return await _within(limit_s, answer)

    async def leave(self) -> None:
        """Returns at once: the thread closes the environment after its current call."""
        self._requests.put(None)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        env: Any = None
        while (request := self._requests.get()) is not None:
            method, argument, answer = request
            value: Any = None
            failure: EnvFailure | None = None
            try:
                if env is None:
                    env = make_env(self._env_type, self._env_config)
                value = getattr(env, method)(argument)
            except (Exception, SystemExit) as error:  # boundary: whatever an environment raises is its failure
                failure = raised(error)
            self._busy = False
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answer, value, failure)
        if env is not None:
            with contextlib.suppress(Exception):
                env.close()


def _settle(answer: asyncio.Future[object], value: object, failure: EnvFailure | None) -> None:
    if answer.done():  # given up meanwhile
        return
    if failure is None:
        answer.set_result(value)
    else:
        answer.set_exception(failure)


async def _within(limit_s: float | None, answer: Awaitable[object]) -> object:
    """The answer. Raises `EnvFailure` at the limit; a `TimeoutError` of the environment's own stays what it is."""
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await answer
    except TimeoutError:
        if not limit.expired():
            raise
        raise EnvFailure("timeout", f"no answer within {limit_s:g} s") from None


def raised(error: BaseException) -> EnvFailure:
    return EnvFailure("exception", f"{type(error).__name__}: {error}")
