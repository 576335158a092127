"""A database that is away for a while: restarted, failed over, full of connections, behind a pulled cable.

The work is tried again, as a whole, until it is done or `peer_timeout` is over; each reason is said once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from roll.core.distributed.clock import monotonic
from roll.core.errors import DatabaseAway, DatabaseFailed

RETRY_S = 0.5

logger = logging.getLogger(__name__)


class Outage:
    def __init__(self, patience_s: float) -> None:
        """`patience_s`: how long the database may be away (peer_timeout)."""
        self._patience_s = patience_s
        self._since: float | None = None
        self._told: set[str] = set()
        self.over = False
        """Nobody waits any more."""

    async def outlast(self, work: Callable[[], Awaitable[Any]], patience_s: float | None = None) -> Any:
        """Returns the result of `work`, begun again whenever the database was away. `patience_s`: if less than usual. Raises
        `DatabaseFailed`."""
        began = monotonic()
        while True:
            try:
                done = await work()
            except DatabaseAway as error:
                self._begins(error)
                patience = self._patience_s if patience_s is None else min(patience_s, self._patience_s)
                if self.over or monotonic() - began > patience:
                    self.over = self.over or patience_s is None
                    lasted = monotonic() - (self._since or began)
                    raise DatabaseFailed(f"{error}; the database was away for {lasted:.0f} s (peer_timeout)") from error
                await asyncio.sleep(RETRY_S)
            else:
                self._ends()
                return done

    def _begins(self, error: DatabaseAway) -> None:
        self._since = monotonic() if self._since is None else self._since
        if str(error) not in self._told:
            self._told.add(str(error))
            logger.warning("%s; trying again until the database is there (peer_timeout)", error)

    def _ends(self) -> None:
        if self._since is not None:
            logger.warning("the database is there again after %.1f s", monotonic() - self._since)
            self._since = None
            self._told.clear()


P = ParamSpec("P")
T = TypeVar("T")


def outlasting(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A method of an object with an `outage`, begun again whenever the database was away: nothing that it did is kept then."""

    @wraps(verb)
    async def outlasts(*args: P.args, **kwargs: P.kwargs) -> T:
        outage: Outage = args[0].outage  # type: ignore[attr-defined]
        done: T = await outage.outlast(lambda: verb(*args, **kwargs))
        return done

    return outlasts
