"""The driver's side of the coordinators: assigns groups to them, and handles the death of one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter

from roll.core.distributed.cluster import Cluster
from roll.core.errors import LOST, WorkerDied
from roll.core.explorer.group_play import GroupResult, GroupTask
from roll.core.explorer.replaced_workers import ReplacedWorkers
from roll.core.groups.changes import Changes

logger = logging.getLogger(__name__)


class Coordinators(ReplacedWorkers):
    def __init__(self, cluster: Cluster, changes: Changes, engines: Cluster, replaced: bool) -> None:
        """`replaced`: True if an engine that dies comes back."""
        super().__init__(cluster, changes)
        self._engines = engines
        self._replaced = replaced
        self._load = [0] * len(cluster)
        self._notices: set[asyncio.Task[None]] = set()
        self.failures: Counter[str] = Counter()
        """Failed episodes of training, by kind."""
        self.aborted = 0
        """Redundant episodes that were not needed in the end."""

    async def begin(self) -> None:
        await asyncio.gather(*map(self._connect, range(len(self.cluster))))

    async def play(self, task: GroupTask) -> GroupResult:
        """Plays the group on the coordinator with the fewest groups, of those that are there. Raises as `call` does."""
        rank = min(range(len(self._load)), key=lambda rank: (self.replaces(rank), self._load[rank]))
        self._load[rank] += 1
        try:
            result: GroupResult = await self.call(rank, "play_group", task)
        except asyncio.CancelledError:
            self._notify_one(rank, "cancel", task.key)  # otherwise the coordinator would play on
            raise
        finally:
            self._load[rank] -= 1
        if not task.validation:
            for kind in sorted(result.outcome.failures.keys() - self.failures.keys()):
                logger.warning("an environment failed: %s", result.outcome.reasons[kind])
            self.failures += result.outcome.failures
            self.aborted += result.outcome.aborted
        return result

    def close(self, engine: int) -> None:
        self._notify("engine_down", engine)

    def doubt(self, engine: int) -> None:
        self._notify("engine_silent", engine)

    def open(self, engine: int) -> None:
        self._notify("engine_up", engine, self._engines.workers[engine])

    def _notify(self, method: str, *args: object) -> None:
        for rank in range(len(self.cluster)):
            self._notify_one(rank, method, *args)

    def _notify_one(self, rank: int, method: str, *args: object) -> None:
        async def notify() -> None:
            with contextlib.suppress(WorkerDied):  # the coordinator's successor is connected to the engines as they are then
                await self.cluster.call(rank, method, *args)

        notice = asyncio.ensure_future(notify())
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def connect(self, rank: int) -> None:
        # Nobody reads the answers to the dead coordinator's requests. The abort interrupts requests of the others, too; they are
        # sent again.
        await asyncio.gather(*(self._abort(engine) for engine in range(len(self._engines))))
        await self._connect(rank)

    async def _abort(self, engine: int) -> None:
        with contextlib.suppress(*LOST):  # an engine that is down has nothing to abort
            await self._engines.call(engine, "abort")

    async def _connect(self, rank: int) -> None:
        await self.cluster.call(rank, "connect", list(self._engines.workers), self._replaced)
