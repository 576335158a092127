"""Runs an environment on the event loop, in a thread of its own, or in a process of its own: only the process can be stopped
whatever it does, and can neither end its worker nor block it.

An executor holds one instance. It gets one call at a time, and is discarded after a failure; a thread executor leaves behind a
call that it cannot stop. A process has one environment at a time, and keeps its interpreter for the next: the pool hands a
process whose environment was closed to the next executor that asks for one. A process that was killed is replaced when it is next
needed, so a hanging environment costs the episode it is in."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import queue
import resource
import sys
import threading
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from roll.core.errors import CallFailed, ChildDied, EnvFailure, boundary, reason
from roll.envs.environment import AnyTextEnv
from roll.envs.registry import make_env
from roll.platform.child import START_LIMIT_S, Child, ChildPool, same_imports
from roll.platform.interpreters import environment, imports
from roll.platform.temp_folder import own_package

T = TypeVar("T")


class EnvExecutor(Protocol):
    async def call_env(self, method: str, argument: object, limit_s: float | None) -> object:
        """The unchecked result of `method` of the environment. Raises `EnvFailure`; the executor cannot be used again then."""

    async def leave(self) -> None:
        """Closes the environment, if it can be reached, and frees the executor."""


_failed = partial(EnvFailure, "exception")


class LoopExecutor:
    """Runs an environment on the caller's event loop. A coroutine is cancelled at the limit; a plain function holds the loop up
    for as long as it takes, and has no limit."""

    def __init__(self, env_type: str, env_config: Mapping[str, object]) -> None:
        self._env_type, self._env_config = env_type, env_config
        self._env: AnyTextEnv | None = None

    async def call_env(self, method: str, argument: object, limit_s: float | None) -> object:
        with boundary(_failed, ours=(EnvFailure,)):
            if self._env is None:
                self._env = make_env(self._env_type, self._env_config)
            answer = _called(self._env, method, argument)
            if isinstance(answer, Awaitable):
                return await _within(limit_s, answer)
            return answer

    async def leave(self) -> None:
        env, self._env = self._env, None
        _close(env)


class ThreadExecutor:
    """Runs an environment in a daemon thread. A call that outlives its limit cannot be stopped: its thread is left behind, with
    the environment, and ends when the call does."""

    def __init__(self, env_type: str, env_config: Mapping[str, object]) -> None:
        self._env_type, self._env_config = env_type, env_config
        self._requests: queue.SimpleQueue[tuple[str, object, asyncio.Future[object]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call_env(self, method: str, argument: object, limit_s: float | None) -> object:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, args=(loop,), name="environment", daemon=True)
            self._thread.start()
        answer: asyncio.Future[object] = loop.create_future()
        self._requests.put((method, argument, answer))
        return await _within(limit_s, answer)

    async def leave(self) -> None:
        """Returns immediately: the thread closes the environment after its current call."""
        self._requests.put(None)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        env: AnyTextEnv | None = None
        while (request := self._requests.get()) is not None:
            method, argument, answer = request
            value: object = None
            failure: EnvFailure | None = None
            try:
                if env is None:
                    env = make_env(self._env_type, self._env_config)
                value = _called(env, method, argument)
            except BaseException as error:  # boundary: whatever an environment raises is its failure
                failure = _failed(reason(error))
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(_settle, answer, value, failure)
        _close(env)


def _called(env: Any, method: str, argument: object) -> object:
    return getattr(env, method)(*(() if argument is None else (argument,)))


def _close(env: AnyTextEnv | None) -> None:
    if env is not None:
        with contextlib.suppress(Exception):  # boundary: close may raise anything, and no caller waits for it
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


class ProcessPool(ChildPool):
    """Processes for environments."""

    def __init__(self, python: str | None = None, memory_mb: int = 0) -> None:
        """`python`: the interpreter; None is this one. `memory_mb`: most of a process; 0 is no limit."""
        self._path = None if python is None else own_package("envs")
        super().__init__(
            "roll.envs.executors:EnvProcess",
            memory_mb,
            environment={**os.environ, **same_imports()} if self._path is None else environment() | imports(str(self._path.path)),
            python=python or sys.executable,
        )
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)  # more starts together would only share the cores

    async def make(self, env_type: str, env_config: Mapping[str, object]) -> Child:
        """A process with an environment. Raises `EnvFailure`."""
        async with self._starting:
            child = await _asked(self.take(), START_LIMIT_S)
            try:
                await _asked(child.ask(START_LIMIT_S, "make", env_type, dict(env_config)), START_LIMIT_S)
            except EnvFailure:
                await child.kill()
                raise
            return child

    async def close(self) -> None:
        await super().close()
        if self._path is not None:
            self._path.remove()


class ProcessExecutor:
    def __init__(self, pool: ProcessPool, env_type: str, env_config: Mapping[str, object]) -> None:
        self._pool = pool
        self._env_type, self._env_config = env_type, env_config
        self._child: Child | None = None
        self._busy = False

    async def call_env(self, method: str, argument: object, limit_s: float | None) -> object:
        if self._child is None:
            self._child = await self._pool.make(self._env_type, self._env_config)
        self._busy = True
        try:
            return await _asked(self._child.ask(limit_s, method, argument), limit_s)
        except EnvFailure as failure:
            if failure.kind == "memory":  # what has filled the process is still there
                await self._child.kill()
            raise
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


async def _asked(call: Awaitable[T], limit_s: float | None) -> T:
    """The result of the call to a process. Raises `EnvFailure`."""
    try:
        return await call
    except TimeoutError:
        raise EnvFailure("timeout", f"no answer within {limit_s:g} s; its process was killed") from None
    except CallFailed as failure:
        if "MemoryError" in failure.types:
            raise EnvFailure("memory", f"{failure} (its process may take memory_mb); the process was killed") from None
        raise EnvFailure("exception", str(failure)) from None
    except ChildDied as ending:
        raise EnvFailure("died", f"the environment's process ended ({ending})") from None


class EnvProcess:
    """The child's side: one environment at a time, and an event loop for it if it needs one. Its methods raise what the
    environment raises."""

    def __init__(self, memory_mb: int) -> None:
        if memory_mb and sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))
        self._runner = asyncio.Runner()
        self._env: Any = None

    def make(self, env_type: str, env_config: dict[str, object]) -> None:
        self._env = make_env(env_type, env_config)

    def reset(self, seed: int) -> object:
        return self._awaited(self._env.reset(seed))

    def step(self, action_text: str) -> object:
        return self._awaited(self._env.step(action_text))

    def has_resume(self, _: None) -> bool:
        return hasattr(self._env, "resume")

    def resume(self, past: dict[str, object]) -> object:
        return self._awaited(self._env.resume(past))

    def cut_off(self, _: None) -> object:
        tell = getattr(self._env, "cut_off", None)
        return 0.0 if tell is None else self._awaited(tell())

    def close(self) -> None:
        env, self._env = self._env, None
        _close(env)

    def _awaited(self, value: object) -> object:
        return self._runner.run(_result(value)) if inspect.isawaitable(value) else value


async def _result(value: Awaitable[object]) -> object:
    return await value
