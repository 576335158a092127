"""Where calls pass on their way to an engine, one by one, and are held up while the engine must get nothing new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    def __init__(self) -> None:
        self._locks = 0
        self._inside = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def passing(self, given_up: asyncio.Event) -> AsyncIterator[bool]:
        """Waits until the gate is open; the gate knows of the call as long as the block runs. False if `given_up` came first."""
        while self._locks and not given_up.is_set():
            waiting = [asyncio.ensure_future(event.wait()) for event in (self._open, given_up)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
        self._inside += 1
        self._empty.clear()
        try:
            yield not given_up.is_set()
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def shut(self) -> None:
        """No call enters from now on; returns when those that are passing have passed. Every `shut` needs its `reopen`."""
        self._locks += 1
        self._open.clear()
        await self._empty.wait()

    def reopen(self) -> None:
        self._locks -= 1
        if not self._locks:
            self._open.set()
