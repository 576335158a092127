"""Coroutines and asynchronous generators over there, as ones of this side. What is waited for at one moment runs side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


def awaited(self: Any) -> Any:
    return running(self).__await__()


async def running(remote: Any) -> Any:
    """A coroutine of this side that waits for the solution's, together with all that are waited for at the moment."""
    peer, loop = remote.roll_peer, asyncio.get_running_loop()
    future = loop.create_future()
    if not peer.waiting:
        loop.call_soon(peer.run_all)
    peer.waiting.append((remote, future))
    return await future


async def iterating(remote: Any) -> AsyncIterator[Any]:
    while True:
        try:
            value = await remote.__anext__()
        except StopAsyncIteration:
            return
        yield value
