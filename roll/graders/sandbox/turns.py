"""One question at a time passes between a test and a solution, though either may have several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

STILL_S = 2.0
"""A thread that waits while for this long no question is answered waits for one that waits for it, as at a queue."""


class Turns:
    """Held for a question and its answer. Questions of one thread may lie inside each other."""

    def __init__(self, stuck: Callable[[str], None]) -> None:
        """`stuck` is told of what cannot go on, and raises or ends the process."""
        self._lock = threading.RLock()
        self._answered = 0
        self.stuck = stuck

    def __enter__(self) -> None:
        before = self._answered
        while not self._lock.acquire(timeout=STILL_S):
            if self._answered == before:
                self.stuck("let several threads ask, of which one waits for another")
            before = self._answered

    def __exit__(self, *_: object) -> None:
        self._answered += 1
        self._lock.release()


def watch_threads(cannot: Callable[[str], None]) -> None:
    """From here on a thread that the limits of the sandbox refuse to a test is told of: its solution has done no wrong."""
    start: Callable[..., int] = getattr(threading, "_start_new_thread")  # noqa: B009

    def started(*arguments: object) -> int:
        try:
            return start(*arguments)
        except RuntimeError:
            cannot("start so many threads (reward_args: processes)")
            raise

    setattr(threading, "_start_new_thread", started)  # noqa: B010
