"""The line in which requests wait: before the router, and before each engine. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class WaitingLine(Generic[K, T]):
    """Things that wait under a name of their own: lower priorities first, then in order of arrival."""

    def __init__(self) -> None:
        self._arrivals = count()
        self._heap: list[tuple[int, int, K]] = []
        """(priority, arrival, name); entries whose arrival is not that of the name were removed."""
        self._waiting: dict[K, tuple[int, T]] = {}
        """Name -> its arrival and the thing."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, name: K) -> bool:
        return name in self._waiting

    @property
    def names(self) -> list[K]:
        """The names of waiting things in order of arrival."""
        return list(self._waiting)

    def add(self, name: K, priority: int, thing: T) -> None:
        arrival = next(self._arrivals)
        self._waiting[name] = arrival, thing
        heapq.heappush(self._heap, (priority, arrival, name))

    def first(self) -> T | None:
        """The next thing, which stays in the line."""
        while self._heap:
            _, arrival, name = self._heap[0]
            if name in self._waiting and self._waiting[name][0] == arrival:
                return self._waiting[name][1]
            heapq.heappop(self._heap)
        return None

    def remove(self, name: K) -> T | None:
        """Removes and returns the thing, if it is in the line."""
        return self._waiting.pop(name, (0, None))[1]
