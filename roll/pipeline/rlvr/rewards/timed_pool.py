"""Calls a function in persistent child processes, each call with a hard limit on its wall-clock time.

Invariants: no call outlives its limit, whatever it does (its process group is killed, and replaced for the next call); a call
that has no value raises, with the reason; no process outlives the pool or the pool's own process, and none stays unreaped.
Children get a minimal environment (no secrets) and speak JSON lines over pipes: nothing is forked or pickled per call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

CHILD = "roll.pipeline.rlvr.rewards.grader_process"
START_LIMIT_S = 120.0
"""For a child to import its function. Generous: the machine may be busy, and nothing else is at stake."""
LONGEST_REPLY_BYTES = 1 << 24
PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")


class GraderError(Exception):
    """The call has no value, for a reason that lies with the grader."""


class TimedPool:
    def __init__(self, processes: int, timeout_s: float, target: str) -> None:
        """`target`: "module:function" of one JSON value, returning one. `timeout_s` counts from the moment a process takes a
        call; the wait for a free process is not limited."""
        self._closed = False
        self._graders = [_Grader(target, timeout_s) for _ in range(processes)]
        self._free: asyncio.LifoQueue[_Grader] = asyncio.LifoQueue()
        for grader in self._graders:
            self._free.put_nowait(grader)

    async def start(self) -> None:
        """Starts the processes ahead of the first call. Raises `GraderError` if the function cannot be loaded."""
        await asyncio.gather(*(self._start_one() for _ in self._graders))

    async def run(self, item: Any) -> Any:
        """The function's value. Raises `TimeoutError` at the limit, and `GraderError` if the function raised or its process
        ended."""
        grader = await self._free.get()
        try:
            if self._closed:
                raise GraderError("the pool is closed")
            return await grader.ask(item)
        finally:
            self._free.put_nowait(grader)

    async def close(self) -> None:
        """Kills all processes. Calls that are running raise `GraderError`, as does every later one."""
        self._closed = True
        await asyncio.gather(*(grader.kill() for grader in self._graders))
        for _ in self._graders:  # one that was just starting comes back here
            await (await self._free.get()).kill()
        for grader in self._graders:
            self._free.put_nowait(grader)

    @property
    def pids(self) -> list[int]:
        """Of the processes that are running now."""
        return [grader.process.pid for grader in self._graders if grader.process is not None]

    async def _start_one(self) -> None:
        grader = await self._free.get()
        try:
            await grader.start()
        finally:
            self._free.put_nowait(grader)


class _Grader:
    """One child process at a time. Invariant between calls: there is none, or it waits for a request."""

    def __init__(self, target: str, timeout_s: float) -> None:
        self.process: Process | None = None
        self._target = target
        self._timeout_s = timeout_s

    async def start(self) -> None:
        """Makes sure that there is a child, with its function loaded."""
        if self.process is not None:
            return
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", CHILD, self._target, str(self._timeout_s)),
            stdin=PIPE,
            stdout=PIPE,
            env=_environment(),
            start_new_session=True,
            limit=LONGEST_REPLY_BYTES,
        )
        try:
            loaded = await self._exchange(self.process, b"", START_LIMIT_S)
        except TimeoutError:
            raise GraderError(f"{self._target} is not loaded after {START_LIMIT_S:g} s") from None
        if "error" in loaded:
            await self.kill()
            raise GraderError(f"{self._target} cannot be loaded: {loaded['error']}")

    async def ask(self, item: Any) -> Any:
        request = json.dumps(item).encode() + b"\n"
        await self.start()
        assert self.process is not None
        answer = await self._exchange(self.process, request, self._timeout_s)
        if "error" in answer:
            raise GraderError(answer["error"])
        return answer["value"]

    async def _exchange(self, process: Process, request: bytes, limit_s: float) -> dict[str, Any]:
        """Writes the request and reads a line. If that is not done in time, or is cancelled, the child is killed."""
        assert process.stdin is not None and process.stdout is not None
        line = b""
        ending = ""
        try:
            async with asyncio.timeout(limit_s):
                with contextlib.suppress(ConnectionError):  # the child is gone: the end of its output tells
                    process.stdin.write(request)
                    await process.stdin.drain()
                line = await process.stdout.readline()
        except ValueError:
            raise GraderError(f"a reply of more than {LONGEST_REPLY_BYTES} bytes") from None
        finally:
            if not line.endswith(b"\n"):
                ending = await self.kill()
        if not line.endswith(b"\n"):
            raise GraderError(f"the grader process died ({ending or 'the pool was closed'})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def kill(self) -> str:
        """Ends the child and what it started, and reaps it. Returns how it ended, "" if there was none."""
        process, self.process = self.process, None
        if process is None:
            return ""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        code = await process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _environment() -> dict[str, str]:
    return {
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
    }
