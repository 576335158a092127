"""Coroutines and asynchronous generators over there, as ones of this side. What is waited for at one moment runs side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

_DEADLINE: ContextVar[float] = ContextVar("deadline", default=float("inf"))
_OF_TASKS: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
"""Those that are waited for, but began without a deadline."""


def put_deadlines(peer: Any) -> None:
    """Tells the other side of a test's deadlines: here the loop stands still while a solution computes."""
    wait_for, timeout_of = asyncio.wait_for, asyncio.timeout

    async def waited(fut: Any, timeout: float | None) -> Any:
        with _within(timeout):
            for task in getattr(fut, "_children", [fut]) if isinstance(fut, asyncio.Future) else ():  # of a gather
                if getattr(task.get_coro(), "cr_code", None) is not running.__code__:
                    peer.cannot("cut short what has begun")
                _OF_TASKS[task] = _DEADLINE.get()
            return await wait_for(fut, timeout)

    @asynccontextmanager
    async def limited(delay: float | None) -> AsyncIterator[asyncio.Timeout]:
        with _within(delay):
            async with timeout_of(delay) as limit:
                yield limit

    setattr(asyncio, "wait_for", waited)  # noqa: B010
    setattr(asyncio, "timeout", limited)  # noqa: B010


@contextmanager
def _within(seconds: float | None) -> Iterator[None]:
    before = _DEADLINE.set(min(_DEADLINE.get(), float("inf") if seconds is None else time.monotonic() + seconds))
    try:
        yield
    finally:
        _DEADLINE.reset(before)


def _left() -> float | None:
    """Seconds; None: for ever."""
    deadline = min(_DEADLINE.get(), _OF_TASKS.get(asyncio.current_task(), float("inf")))
    return None if deadline == float("inf") else max(0.0, deadline - time.monotonic())


def awaited(self: Any) -> Any:
    return running(self).__await__()


async def running(remote: Any) -> Any:
    """A coroutine of this side that waits for the solution's, together with all that are waited for at the moment."""
    peer, loop = remote.roll_peer, asyncio.get_running_loop()
    future = loop.create_future()
    if not peer.waiting:
        loop.call_soon(peer.run_all)
    peer.waiting.append((remote, future, _left()))
    return await future


async def iterating(remote: Any) -> AsyncIterator[Any]:
    while True:
        try:
            value = await remote.__anext__()
        except StopAsyncIteration:
            return
        yield value
