"""One condition on which everything waits: each change notifies, and every waiter looks at its own predicate again.

Nothing polls, and no change has to know its waiters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.waits: dict[str, str] = {}
        """Waiter -> the awaited condition, in words for people. A waiter writes and removes its own entry."""

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, predicate: Callable[[], T], who: str = "", what: str = "") -> T:
        """Waits for the first true value of `predicate`, called now and after every change, and returns it. Meanwhile `waits`
        says that `who` (the name of a stage) waits until `what`."""
        if value := predicate():
            return value
        if who:
            self.waits[who] = what
        try:
            while not value:
                await self._next.wait()
                value = predicate()
            return value
        finally:
            if who:
                self.waits.pop(who, None)
