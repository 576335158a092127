"""Calls to a folder that may hang, as a network's does whose server is away: each has a deadline, none waits for a late one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from roll.core.distributed.user_code import in_thread
from roll.platform.file_systems import of_network

MOMENT_S = 0.5
"""Time that a call may take. While one is late no other is made."""
T = TypeVar("T")

logger = logging.getLogger(__name__)


class FolderCalls:
    """Calls to a folder of a machine's own are made at once: a thread's wake-up would cost more than they do."""

    def __init__(self, path: Path) -> None:
        self._path, self._may_hang = path, bool(of_network(path))
        self._late: Future[Any] | None = None

    def __call__(self, call: Callable[..., T], *arguments: object, patience_s: float | None = None) -> T:
        """Raises `TimeoutError` where the folder does not answer in time, or has not answered yet, which is told once for each
        time that it is away; the call may happen all the same, later."""
        if not self._may_hang:
            return call(*arguments)
        outcome = self._started(call, *arguments)
        try:
            return outcome.result(patience_s or MOMENT_S)
        except TimeoutError:
            if outcome.done():
                raise  # an answer of the folder's own
            raise self._given_up(outcome) from None

    async def aside(self, call: Callable[..., T], *arguments: object) -> T:
        """The same for a caller on an event loop, which goes on meanwhile."""
        if not self._may_hang:
            return call(*arguments)
        outcome = self._started(call, *arguments)
        waited = asyncio.wrap_future(outcome)
        if not (await asyncio.wait([waited], timeout=MOMENT_S))[0]:
            waited.add_done_callback(
                lambda late: late.cancelled() or late.exception()
            )  # asyncio tells of an error that nobody saw
            raise self._given_up(outcome)
        return waited.result()

    def _started(self, call: Callable[..., T], *arguments: object) -> Future[T]:
        if self._late is not None and not self._late.done():
            raise TimeoutError(f"{self._path} does not answer")
        return in_thread("turns", call, *arguments).outcome

    def _given_up(self, outcome: Future[Any]) -> TimeoutError:
        if self._late is None or self._late.done():
            logger.warning("%s does not answer: turns are not recorded until it does, and the episodes go on", self._path)
        self._late = outcome
        return TimeoutError(f"{self._path} does not answer")

    def leave(self, call: Callable[[], object]) -> None:
        """Makes a call that nobody waits for, however long it takes."""
        if self._may_hang:
            in_thread("turns", call)
        else:
            call()
