"""Child processes that answer calls. This file starts them, asks them within a time limit, ends them with all that they have
started, and replaces them.

A child is a Python interpreter (this one or another) with one object, whose methods can be called. Messages are lines of
JSON over a socket pair; nothing is pickled.

    parent → child   {"call": 0, "handler", "arguments", "side_by_side"}, then {"call": n, "method", "arguments"}, {"cancel": n}
    child → parent   {"call": n, "value"} or {"call": n, "error": [type names], "text"}

On Linux the kernel ends a child with its parent, wherever the child is stuck; elsewhere a child ends when it next reads. Both
sides are in this file, which imports, as `dotted_path` does, the standard library alone: another interpreter runs it, too.

A process speaks another protocol only where this one cannot serve:
  `exchange`                  calls of Ray's workers: many per message, pickled, for their arguments are tensors
  `watchdog`                  orders one way, carried out when the sender is gone; its process must outlive its parent
  `weights/bucket_server`     bytes of tensors between machines, for readers that prove that they know a key
  `data/template_process`     lies below this room; the kernel's processor time limit ends it, and what it answered before stands
  the sandbox's `forker`      passes file descriptors of programs, which cannot travel in JSON
  the sandbox's `peer`        both sides ask, and neither may make the other run more than it offers
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Coroutine, Mapping, Sequence
from io import BufferedIOBase
from typing import IO, Any

from roll.core.configs.dotted_path import named_object
from roll.core.errors import MOST_TOLD, CallFailed, ChildDied

LONGEST_BYTES = 1 << 26
"""Bytes of the longest message."""
START_LIMIT_S = 120.0  # for a child of a pool; generous: the machine may be busy, and nothing else is at stake

Message = dict[str, Any]

_ENDS_WITH_PARENT = """import ctypes, os, sys
if sys.platform == "linux": ctypes.CDLL(None).prctl(1, {signal:d})  # PR_SET_PDEATHSIG, kept across exec
if os.getppid() != {parent:d}: sys.exit("the process that started this one has ended")
"""
_CHILD = "from roll.platform.child import main; main(int(sys.argv[1]))"


def same_imports() -> dict[str, str]:
    """Returns variables with which a child of this interpreter finds this process's modules, and computes on one thread."""
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path), "OMP_NUM_THREADS": "1"}


def start_process(
    python: str,
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    ends_by: signal.Signals = signal.SIGKILL,
    output: int | IO[bytes] = 2,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts `python -c program *arguments` in a process group of its own, so that Ctrl-C does not reach it. The process gets
    the signal `ends_by` when the thread that called this function has ended. `output` takes the process's output."""
    begin = _ENDS_WITH_PARENT.format(signal=ends_by, parent=os.getpid())
    return subprocess.Popen(
        [python, "-P", "-c", begin + program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        pass_fds=pass_fds,
    )


def end_process(process: subprocess.Popen[bytes], patience_s: float = 0.0, asking: signal.Signals | None = None) -> str:
    """Kills the process and its group, if it has not ended within `patience_s` (after the signal `asking`), and reaps it. Returns
    how the process ended."""
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None and asking is not None:
            os.killpg(process.pid, asking)
        if process.returncode is None and patience_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
        if process.returncode is None:  # it has not been reaped, so its number is still its own
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Child:
    """One child process. Its coroutines belong to one event loop."""

    def __init__(
        self,
        handler: str,
        *arguments: object,
        environment: Mapping[str, str],
        python: str = sys.executable,
        side_by_side: bool = False,
    ) -> None:
        """Starts the process; `ready` has it construct `handler` ("module:class") with the arguments. With `side_by_side` the
        methods are coroutines that run together, and `close()` is awaited when the parent has closed the connection; else they
        are called one after another."""
        self._connection, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._process = start_process(python, _CHILD, [str(descriptor)], environment, pass_fds=[descriptor])
        self.pid = self._process.pid
        self.ending: str | None = None
        """Manner of the process's end, once known."""
        self._beginning = {"call": 0, "handler": handler, "arguments": arguments, "side_by_side": side_by_side}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._connecting = asyncio.Lock()
        self._listening: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[str] | None = None

    async def ready(self, limit_s: float) -> None:
        """Returns when the handler has been constructed. Raises as `ask` does."""
        await self._within(limit_s, self._exchange(self._beginning))

    def ready_blocking(self) -> None:
        """`ready` without a limit, where there is no event loop. An exception has ended the child."""
        answer = None
        try:
            with self._connection.makefile("rwb") as stream:
                _send(stream, _line(self._beginning))
                answer = _message(stream)
        finally:
            if answer is None or "error" in answer:
                self._connection.close()
                self.ending = end_process(self._process)
        if answer is None:
            raise ChildDied(self.ending)
        if "error" in answer:
            raise CallFailed(answer["error"], answer["text"])

    async def ask(self, limit_s: float | None, method: str, *arguments: object) -> Any:
        """Calls the method and returns its result. Raises `CallFailed` and `ChildDied`. If there is no answer within the limit
        (`TimeoutError`), or the caller is cancelled, the child is killed."""
        return await self._within(limit_s, self.call(method, *arguments))

    async def call(self, method: str, *arguments: object) -> Any:
        """`ask` without a limit; cancelling the caller cancels the method."""
        number = next(self._numbers)
        try:
            return await self._exchange({"call": number, "method": method, "arguments": arguments})
        except asyncio.CancelledError:
            if self._writer is not None:
                self._writer.write(_line({"cancel": number}))
            raise

    async def kill(self, patience_s: float = 0.0) -> str:
        """Ends the connection and, unless the process has ended within `patience_s`, the process with all that it started. Calls
        that wait raise `ChildDied`. Returns how the process ended. May be repeated, and is carried through if it is cancelled."""
        if self._killing is None:
            self._killing = asyncio.create_task(self._kill(patience_s))
        return await asyncio.shield(self._killing)

    async def _kill(self, patience_s: float) -> str:
        async with self._connecting:
            (self._connection if self._writer is None else self._writer).close()
        self.ending = await asyncio.to_thread(end_process, self._process, patience_s)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChildDied(self.ending))
        return self.ending

    async def _within(self, limit_s: float | None, call: Coroutine[object, object, object]) -> object:
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except (TimeoutError, asyncio.CancelledError):
            await self.kill()
            raise

    async def _exchange(self, message: Message) -> Any:
        line = _line(message)
        async with self._connecting:
            if self._writer is None and self._killing is None:
                reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=LONGEST_BYTES)
                self._listening = asyncio.create_task(self._listen(reader))
        if self._killing is not None:  # which takes the lock, too
            raise ChildDied(await self.kill())
        assert self._writer is not None
        answer = self._waiting[message["call"]] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(line)
            return await answer
        finally:
            del self._waiting[message["call"]]

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError, ValueError):  # not a message: the child is ended
            while (line := await reader.readline()).endswith(b"\n"):
                answer = json.loads(line)
                waiting = self._waiting.get(answer["call"])
                if waiting is None or waiting.done():  # cancelled meanwhile
                    continue
                if "error" in answer:
                    waiting.set_exception(CallFailed(answer["error"], answer["text"]))
                else:
                    waiting.set_result(answer["value"])
        await self.kill()


class ChildPool:
    """Children of one kind that wait for work. One that has ended is replaced when the next is needed."""

    def __init__(self, handler: str, *arguments: object, environment: Mapping[str, str], python: str = sys.executable) -> None:
        """Takes the same arguments as `Child`."""
        self._handler, self._arguments, self._environment, self._python = handler, arguments, environment, python
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._closed = False

    async def take(self) -> Child:
        """Returns a child that is ready; give it back unless it is to be forgotten. Raises as `Child.ready` does."""
        self._children = {child for child in self._children if child.ending is None}
        while self._idle:
            if (child := self._idle.pop()).ending is None:
                return child
        if self._closed:
            raise ChildDied("its pool is closed")
        try:
            child = Child(self._handler, *self._arguments, environment=self._environment, python=self._python)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            # What was there when the run began, and is gone.
            raise ChildDied(f"it cannot be started: {error}") from error
        self._children.add(child)
        try:
            await child.ready(START_LIMIT_S)
        except CallFailed:
            await child.kill()
            raise
        return child

    def give_back(self, child: Child) -> None:
        self._idle.append(child)

    async def close(self) -> None:
        """Kills all children, those that are being asked too; there are no others afterwards."""
        self._closed = True
        await asyncio.gather(*(child.kill() for child in self._children))

    @property
    def pids(self) -> list[int]:
        """Ids of the children that have not ended."""
        return sorted(child.pid for child in self._children if child.ending is None)


def main(descriptor: int) -> None:
    """Runs a child until its end. `descriptor`: of the connection to its parent."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    os.dup(descriptor)  # never closed: to the parent the connection ends with the process, whose exit code is then settled
    stream = connection.makefile("rwb")
    if (start := _message(stream)) is None:
        return
    try:
        handler = named_object(start["handler"])(*start["arguments"])
    except (Exception, SystemExit) as error:  # boundary: the parent reports it
        _send(stream, _failed(0, error))
        return
    _send(stream, _line({"call": 0, "value": None}))
    if start["side_by_side"]:
        asyncio.run(_answer_side_by_side(handler, connection))
        return
    while (call := _message(stream)) is not None:
        if "method" in call:
            _send(stream, _answer(handler, call))


def _answer(handler: object, call: Message) -> bytes:
    try:
        return _line({"call": call["call"], "value": getattr(handler, call["method"])(*call["arguments"])})
    except (Exception, SystemExit) as error:  # boundary: whatever a method raises is its answer
        return _failed(call["call"], error)


async def _answer_side_by_side(handler: Any, connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST_BYTES)
    running: dict[int, asyncio.Task[None]] = {}

    async def answer(call: Message) -> None:
        try:
            line = _line({"call": call["call"], "value": await getattr(handler, call["method"])(*call["arguments"])})
        except (Exception, SystemExit) as error:  # boundary, as above
            line = _failed(call["call"], error)
        finally:
            running.pop(call["call"], None)
        writer.write(line)
        await writer.drain()

    with contextlib.suppress(ConnectionError):
        while (line := await reader.readline()).endswith(b"\n"):
            message = json.loads(line)
            if "method" in message:
                running[message["call"]] = asyncio.create_task(answer(message))
            elif message["cancel"] in running:
                running.pop(message["cancel"]).cancel()
    await handler.close()


def _line(message: Message) -> bytes:
    """Encodes a message. Raises `TypeError` for a value that JSON does not know, `ValueError` for one that is too long."""
    line = json.dumps(message, default=_as_json).encode() + b"\n"
    if len(line) > LONGEST_BYTES:
        raise ValueError(f"{len(line)} bytes are too long to leave a process, {LONGEST_BYTES} are the most")
    return line


def _as_json(value: object) -> object:
    """Turns numpy's numbers into numbers, arrays into lists."""
    if isinstance(value, array):
        return value.tolist()
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        return value.item()
    raise TypeError(f"only text, numbers, lists and dicts can leave a process, not {type(value).__name__}")


def _failed(number: int, error: BaseException) -> bytes:
    return _line({"call": number, "error": [cls.__name__ for cls in type(error).__mro__], "text": str(error)[:MOST_TOLD]})


def _send(stream: BufferedIOBase, line: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # the other side is gone, which the reader of its messages will notice
        stream.write(line)
        stream.flush()


def _message(stream: BufferedIOBase) -> Message | None:
    """Reads the next message; None if the other side is gone."""
    line = b""
    with contextlib.suppress(ConnectionError):
        line = stream.readline(LONGEST_BYTES)
    return json.loads(line) if line.endswith(b"\n") else None
