"""Calls a function in persistent child processes, each call with a hard limit on its wall-clock time.

Invariants: no call outlives its limit, whatever it does (its process group is killed, and another process takes the next call); a
call without a value raises, with the reason. Children get a minimal environment, without secrets.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
import sys
from typing import Any

from roll.core.errors import CallFailed, ChildDied, GraderError
from roll.platform.child import START_LIMIT_S, Child, ChildPool, same_imports
from roll.platform.interpreters import imports
from roll.platform.temp_folder import own_package

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")


MEMORY_LIMIT_BYTES = 4 << 30
"""Address space of a grader: an answer such as 9^(9^(9^9)) must not take the machine's memory before its time is up."""


class TimedPool:
    def __init__(self, processes: int, timeout_s: float, target: str, python: str | None = None) -> None:
        """`target`: "module:function" of one JSON value, returning one. `timeout_s` counts from the moment a process takes a
        call; the wait for a free process is not limited. `python`: the interpreter; None is this one."""
        self._target = target
        self._timeout_s = timeout_s
        self._processes = processes
        self._places = asyncio.Semaphore(processes)
        self._path = None if python is None else own_package("grader")
        found = same_imports() if self._path is None else imports(str(self._path.path))
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"LANG": "C.UTF-8"} | found
        self._pool = ChildPool("roll.graders.pool:Grader", target, environment=environment, python=python or sys.executable)

    async def start(self) -> None:
        """Starts the processes ahead of the first call. Raises `GraderError` if the function cannot be loaded."""
        for grader in await asyncio.gather(*(self._grader() for _ in range(self._processes))):
            self._pool.give_back(grader)

    async def run(self, item: object) -> Any:
        """The function's value. Raises `TimeoutError` at the limit, and `GraderError` if the function raised or its process
        ended."""
        async with self._places:
            grader = await self._grader()
            try:
                return await grader.ask(self._timeout_s, "grade", item)
            except CallFailed as failure:
                raise GraderError(str(failure)) from None
            except ChildDied as ending:
                raise GraderError(f"the grader process died ({ending})") from None
            finally:
                self._pool.give_back(grader)

    async def close(self) -> None:
        """Kills all processes. Calls that are running raise `GraderError`, as does every later one."""
        await self._pool.close()
        if self._path is not None:
            self._path.remove()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are running now."""
        return self._pool.pids

    async def _grader(self) -> Child:
        try:
            return await self._pool.take()
        except TimeoutError:
            raise GraderError(f"{self._target} is not loaded after {START_LIMIT_S:g} s") from None
        except CallFailed as failure:
            raise GraderError(f"{self._target} cannot be loaded: {failure}") from None
        except ChildDied as ending:
            raise GraderError(f"the grader process died ({ending})") from None


class Grader:
    """The function in its child process, whose memory is limited."""

    def __init__(self, target: str) -> None:
        """`target`: "module:function"."""
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        module, _, name = target.partition(":")
        self._function = getattr(importlib.import_module(module), name)

    def grade(self, item: object) -> Any:
        return self._function(item)
