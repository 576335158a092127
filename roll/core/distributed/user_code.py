"""Runs a user's code on threads of its own, which may hang.

A thread cannot be ended from outside. One that outlives the patience of its caller is left behind: its call fails, and it ends
with the process at the latest. The number of such threads is limited, as each keeps its memory.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from roll.core.errors import TooManyStuck, contained

T = TypeVar("T")

SLIPS = (
    *(TypeError, AttributeError, NameError, ImportError, KeyError, IndexError, NotImplementedError, SyntaxError),
    *(ZeroDivisionError, AssertionError, RecursionError),
)
"""Errors in a user's code itself. Other errors may have an outside cause that is gone when the run tries again."""
START_S = 10.0
"""Seconds that a trial may take to start, besides the time limit of its work."""
MOST_STUCK = 16
"""Threads of one user's object that may be left behind at the same time."""


def is_slip(error: object) -> bool:
    """`StopIteration` and `SystemExit`, which cross no coroutine, are the cause of another error."""
    return isinstance(error, SLIPS) or (isinstance(error, Exception) and isinstance(error.__cause__, (StopIteration, SystemExit)))


@dataclass(frozen=True, slots=True)
class UserThread(Generic[T]):
    """A call that runs on a thread of its own, which keeps no process from ending."""

    outcome: Future[T]
    """Result or error of the call."""
    thread: threading.Thread

    @property
    def place(self) -> str:
        """Returns the code location that the thread is at now."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else "an unknown place"


class UserThreads:
    """The threads of one user's object."""

    def __init__(self, whose: str) -> None:
        """`whose`: names the object in errors."""
        self._whose = whose
        self._left: list[UserThread[Any]] = []

    def start(self, call: Callable[..., T], *arguments: object, name: str = "user code") -> UserThread[T]:
        """Raises `TooManyStuck`."""
        self._left = [left for left in self._left if not left.outcome.done()]
        if len(self._left) >= MOST_STUCK:
            raise TooManyStuck(
                f"{MOST_STUCK} threads of {self._whose} hang, and no other is started before one of them ends; the last hangs in "
                f"{self._left[-1].place}: it has to end, whatever it is asked; give a time limit to what it waits for"
            )
        return in_thread(name, call, *arguments)

    def leave(self, thread: UserThread[Any]) -> None:
        """Called when the caller stops waiting for it, whether it has ended or not."""
        if not thread.outcome.done():
            self._left.append(thread)


def in_thread(name: str, call: Callable[..., T], *arguments: object) -> UserThread[T]:
    """The thread has the context of its maker."""
    outcome: Future[T] = Future()
    thread = threading.Thread(target=copy_context().run, args=(_tell, outcome, call, *arguments), name=name, daemon=True)
    thread.start()
    return UserThread(outcome, thread)


def _tell(outcome: Future[T], call: Callable[..., T], *arguments: object) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        value = contained(call, *arguments)
    except Exception as error:  # boundary: a user's code; the caller raises it
        outcome.set_exception(error)
    else:
        outcome.set_result(value)


def try_aside(make: Callable[[], Coroutine[object, object, T]], limit_s: float) -> T:
    """Tries a user's code before the run, with an event loop of its own (the caller may have one). Raises the coroutine's error,
    and `TimeoutError` if it takes longer than the limit, even where it blocks its loop."""
    return in_thread("trial", lambda: asyncio.run(make())).outcome.result(limit_s)
