"""Lets requests into an engine: at most so many at once, and none while its weights are being exchanged.

The engine itself never queues, so what waits has not been given a policy version yet, and validation overtakes training.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import count


class Aborted(Exception):
    """The request was given up before it entered."""


class EntryQueue:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = True
        self._order = count()
        self._queue: list[tuple[int, int, str]] = []
        """(priority, arrival, request id); what was aborted is skipped when it comes up."""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._inside: set[str] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def inside(self) -> frozenset[str]:
        return frozenset(self._inside)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def enter(self, request_id: str, priority: int) -> AsyncIterator[None]:
        """Waits for its turn: lower priorities first, then in order of arrival. Raises `Aborted`."""
        turn = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (priority, next(self._order), request_id))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(request_id, None)
            self._leave(request_id)
            raise
        try:
            yield
        finally:
            self._leave(request_id)

    def abort(self, request_ids: Collection[str] | None) -> None:
        """Gives up those that wait (all if None)."""
        for request_id in [name for name in self._waiting if request_ids is None or name in request_ids]:
            self._waiting.pop(request_id).set_exception(Aborted(request_id))

    def close(self) -> None:
        """Nothing enters any more; what is inside goes on."""
        self._open = False

    def open(self) -> None:
        self._open = True
        self._admit()

    async def empty(self) -> None:
        """Returns when nothing is inside."""
        await self._empty.wait()

    def _leave(self, request_id: str) -> None:
        self._inside.discard(request_id)
        if not self._inside:
            self._empty.set()
        self._admit()

    def _admit(self) -> None:
        while self._open and self._queue and len(self._inside) < self._limit:
            request_id = heapq.heappop(self._queue)[2]
            turn = self._waiting.pop(request_id, None)
            if turn is not None and not turn.done():
                self._inside.add(request_id)
                self._empty.clear()
                turn.set_result(None)
