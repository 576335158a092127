"""An event loop whose time is virtual: when nothing is ready, it is the moment of the next timer.

The order of events is that of asyncio, and the same each time: tasks in a set are in the order in which they were made, and calls
for a thread run immediately, between two events. Nothing is waited for, and there is no input or output. A loop in which nothing
is ready and no timer is left would wait for ever: it says so.
"""

from __future__ import annotations

import asyncio
import itertools
from asyncio import base_events
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from roll.core.errors import Stuck

T = TypeVar("T")


MOST_AT_ONCE = 20_000
"""Turns of the loop without any time passing: more of them, and somebody goes round in circles."""


MOST_CANCELS = 16
"""Cancellations of a task, at most."""


class NumberedTask(asyncio.Task[Any]):
    """asyncio goes through sets of tasks, whose order would be that of addresses in memory."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **keywords: Any) -> None:
        self._number = number
        super().__init__(coro, **keywords)

    def __hash__(self) -> int:
        return self._number


class _Jump:
    """In the place of the selector: it never waits, and moves the time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.turns = 0
        """Turns without any time passing."""

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise Stuck(f"nothing can happen any more: {self._loop.waiting()}")
        self.turns = 0 if timeout else self.turns + 1
        if self.turns > MOST_AT_ONCE:
            raise Stuck(f"time stands still at {self._loop.virtual_s:g} s: {self._loop.waiting()}")
        self._loop.virtual_s += timeout
        return []

    def close(self) -> None: ...


class VirtualLoop(base_events.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.virtual_s = 0.0
        """Seconds since the loop was made."""
        self._selector = _Jump(self)
        self._clock_resolution = 1e-9
        numbers = itertools.count()

        def numbered(loop: asyncio.AbstractEventLoop, coro: Any, **keywords: Any) -> asyncio.Task[Any]:
            return NumberedTask(coro, loop=loop, number=next(numbers), **keywords)

        self.set_task_factory(numbered)

    def time(self) -> float:
        return self.virtual_s

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Calls it at once, but after what is ready."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(func(*args))
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # as an executor: whatever the function raises is its caller's
                future.set_exception(error)

        self.call_soon(work)
        return future

    def waiting(self) -> str:
        """Lists the tasks that wait, for the message of an error."""
        return ", ".join(sorted({task.get_coro().__qualname__ for task in asyncio.all_tasks(self)}))  # type: ignore[union-attr]

    def give_up(self) -> None:
        """Cancels all tasks, and again those that wait for ever on the way to their end."""
        for _ in range(MOST_CANCELS):
            if not (left := asyncio.all_tasks(self)):
                return
            for task in left:
                task.cancel()
            self._selector.turns = 0
            with suppress(Stuck):
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _process_events(self, event_list: list[object]) -> None: ...

    def _write_to_self(self) -> None: ...


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to its end, on a loop of its own. Raises `Stuck`."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(main)
        finally:
            loop.give_up()
