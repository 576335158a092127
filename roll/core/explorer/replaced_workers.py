"""Workers, each replaced by the caller that finds it dead. The call is lost with the worker; its caller bears the cost."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from roll.core.distributed.cluster import Cluster
from roll.core.errors import Replaced, WorkerDied, WorkersLost
from roll.core.groups.changes import Changes

QUICK_S = 5.0
"""A caller waits so long for a successor, if others can do the work: on a host that is cut off Ray starts none for a minute."""
MAX_DEATHS = 8
"""Deaths in a row, no call answered between them, after which the run ends: something kills them all."""

logger = logging.getLogger(__name__)


class ReplacedWorkers:
    def __init__(self, cluster: Cluster, changes: Changes) -> None:
        """`changes` is notified when a worker was replaced."""
        self.cluster = cluster
        self._changes = changes
        self._replacing = [asyncio.Lock() for _ in range(len(cluster))]
        self._begun: set[asyncio.Task[None]] = set()
        self._deaths_in_a_row = 0

    def replaces(self, rank: int) -> bool:
        """True while there is no worker of that rank: calls wait for it."""
        return self._replacing[rank].locked()

    async def call(self, rank: int, method: str, *args: object) -> Any:
        """Calls the worker. Raises `Replaced` if it dies over the call (another is or comes in its place), and `WorkersLost`."""
        async with self._replacing[rank]:  # one that is being replaced is not ready yet
            worker = self.cluster.workers[rank]
        try:
            result = await self.cluster.call(rank, method, *args)
        except WorkerDied as death:
            self._begun.add(replacing := asyncio.ensure_future(self._replace(rank, worker, death)))
            replacing.add_done_callback(self._begun.discard)
            with suppress(TimeoutError):  # it goes on
                await asyncio.wait_for(asyncio.shield(replacing), QUICK_S if len(self.cluster) > 1 else None)
            raise Replaced(str(death)) from death
        self._deaths_in_a_row = 0
        return result

    async def connect(self, rank: int) -> None:
        """Prepares a new worker before it is called."""

    async def _replace(self, rank: int, dead: object, death: WorkerDied) -> None:
        """Replaces the worker once, however many calls report its death."""
        async with self._replacing[rank]:
            while self.cluster.workers[rank] is dead:
                self._deaths_in_a_row += 1
                if self._deaths_in_a_row > MAX_DEATHS:
                    times = f"{MAX_DEATHS + 1} times in a row, without an answer between them"
                    raise WorkersLost(f"workers of {self.cluster.role} died {times}; the last: {death}") from death
                logger.warning("%s: another takes its place", death)
                await self.cluster.restart(rank)
                try:
                    await self.connect(rank)
                except WorkerDied as again:
                    dead, death = self.cluster.workers[rank], again
                self._changes.notify()
