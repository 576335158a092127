"""In a process of its own: the only place where an environment can be stopped whatever it does, and can neither take its worker
down nor hold it up.

One process has one environment at a time, and keeps its interpreter for the next: `ProcessPool` hands a process whose environment
was closed to whoever asks for one. One that was killed is replaced when it is next needed, so a hanging environment costs the
episode it is in. Requests and answers are lines of JSON: nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Any

from roll.rollout.environment_failure import EnvFailure

CHILD = "roll.envs.env_process"
START_LIMIT_S = 120.0
"""For a process to start and to make the environment. Generous: the machine may be busy, and nothing else is at stake."""
LONGEST_ANSWER_BYTES = 1 << 24


class ProcessPool:
    """Processes without an environment, ready for the next one."""

    def __init__(self) -> None:
        self._idle: list[EnvChild] = []
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)  # more at once would only share the cores, and take longer each
        self.running: set[EnvChild] = set()
        """All that have not ended, idle ones too."""

    async def take(self, recipe: list[Any]) -> EnvChild:
        """A process with the environment of `recipe`, [env_type, env_config]. Raises `EnvFailure`."""
        async with self._starting:
            child = await self._free()
            try:
                await child.ask("make", recipe, START_LIMIT_S)
            except BaseException:
                await self.kill(child)
                raise
            return child

    async def _free(self) -> EnvChild:
        while self._idle:
            child = self._idle.pop()
            if child.process.returncode is None:
                return child
            await self.kill(child)
        child = EnvChild(await _start())
        self.running.add(child)
        return child

    def give_back(self, child: EnvChild) -> None:
        self._idle.append(child)

    async def kill(self, child: EnvChild) -> str:
        """Returns how the process ended."""
        self.running.discard(child)
        return await child.kill()

    async def close(self) -> None:
        """Kills all processes."""
        self._idle.clear()
        await asyncio.gather(*(self.kill(child) for child in list(self.running)))


class ProcessSeat:
    is_stuck = False

    def __init__(self, pool: ProcessPool, env_type: str, env_config: Mapping[str, Any]) -> None:
        self._pool = pool
        self._recipe = [env_type, dict(env_config)]
        self._child: EnvChild | None = None
        self._busy = False

    async def call(self, method: str, argument: Any, limit_s: float | None) -> Any:
        if self._child is None:
            self._child = await self._pool.take(self._recipe)
        self._busy = True
        try:
            return await self._ask(self._child, method, argument, limit_s)
        finally:
            self._busy = False

    async def leave(self) -> None:
        """A call that is under way fails."""
        child, self._child = self._child, None
        if child is None:
            return
        if self._busy:
            await self._pool.kill(child)
            return
        await self._ask(child, "close", None, START_LIMIT_S)
        self._pool.give_back(child)

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    async def _ask(self, child: EnvChild, method: str, argument: Any, limit_s: float | None) -> Any:
        """Kills the process if there is no answer: at the limit, when it died, and when the caller is cancelled."""
        try:
            return await child.ask(method, argument, limit_s)
        except EnvFailure as failure:
            if failure.kind == "exception":  # its process is sound
                raise
            self._child = None
            ending = await self._pool.kill(child)
            if failure.kind == "died":
                raise EnvFailure("died", f"the environment's process ended ({ending})") from None
            raise
        except asyncio.CancelledError:
            self._child = None
            await self._pool.kill(child)
            raise


class EnvChild:
    """One process. It has no environment, or one that waits for a request."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def ask(self, method: str, argument: Any, limit_s: float | None) -> Any:
        """Raises `EnvFailure`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        request = {"method": method, "argument": argument, "limit_s": limit_s}
        try:
            async with asyncio.timeout(limit_s):
                with contextlib.suppress(ConnectionError):  # it is gone: the end of its output tells
                    self.process.stdin.write(json.dumps(request).encode() + b"\n")
                    await self.process.stdin.drain()
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise EnvFailure("timeout", f"no answer within {limit_s:g} s; its process was killed") from None
        except ValueError:
            raise EnvFailure("died", f"an answer of more than {LONGEST_ANSWER_BYTES} bytes") from None
        if not line.endswith(b"\n"):
            raise EnvFailure("died", "the environment's process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EnvFailure("exception", answer["error"])
        return answer["value"]

    async def kill(self) -> str:
        """Ends the process and what it started, and reaps it. Returns how it ended."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        code = await self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


async def _start() -> Process:
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", CHILD),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        limit=LONGEST_ANSWER_BYTES,
    )
