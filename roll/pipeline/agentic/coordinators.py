"""The driver's side of the coordinators: which of them plays a group, and what happens when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter

from roll.distributed.backend import WorkerDied
from roll.distributed.cluster import Cluster
from roll.pipeline.agentic.environment_worker import GroupResult, GroupTask
from roll.strategies.infer.interface import EngineError

logger = logging.getLogger(__name__)

MAX_DEATHS = 8
"""Deaths of coordinators in a row, no group finished between them, after which the run ends: something kills them all."""


class CoordinatorDied(Exception):
    """The group was lost with its coordinator, which has been replaced."""


class CoordinatorsLost(RuntimeError):
    """Coordinators die faster than they play."""


class Coordinators:
    def __init__(self, cluster: Cluster, engines: Cluster, replaced: bool) -> None:
        """`replaced`: whether an engine that dies comes back."""
        self._cluster = cluster
        self._engines = engines
        self._replaced = replaced
        self._load = [0] * len(cluster)
        self._restarting = [asyncio.Lock() for _ in range(len(cluster))]
        self._notices: set[asyncio.Task[None]] = set()
        self._deaths_in_a_row = 0
        self.deaths = 0
        self.failures: Counter[str] = Counter()
        """Failed episodes of training, by kind."""
        self.aborted = 0
        """Redundant episodes that were not needed in the end."""

    async def connect(self) -> None:
        await asyncio.gather(*(self._connect(rank) for rank in range(len(self._cluster))))

    async def play(self, task: GroupTask) -> GroupResult:
        """Plays the group on the coordinator with the fewest groups. Raises `CoordinatorDied` if that one dies over it (another
        is in its place by then), and `CoordinatorsLost`."""
        rank = min(range(len(self._load)), key=lambda rank: self._load[rank])
        self._load[rank] += 1
        try:
            async with self._restarting[rank]:  # a coordinator that is being replaced is not connected to the engines yet
                worker = self._cluster.workers[rank]
            result: GroupResult = await self._cluster.call(rank, "play_group", task)
        except WorkerDied as death:
            await self._replace(rank, worker)
            raise CoordinatorDied(str(death)) from death
        except asyncio.CancelledError:
            self._notify_one(rank, "cancel", task.key)  # otherwise the coordinator would play on
            raise
        finally:
            self._load[rank] -= 1
        self._deaths_in_a_row = 0
        if not task.validation:
            if new := result.failures.keys() - self.failures.keys():
                logger.warning("an environment failed (%s): %s", ", ".join(sorted(new)), result.last_failure)
            self.failures += result.failures
            self.aborted += result.aborted
        return result

    def close(self, engine: int) -> None:
        self._notify("engine_down", engine)

    def open(self, engine: int) -> None:
        self._notify("engine_up", engine, self._engines.workers[engine])

    def _notify(self, method: str, *args: object) -> None:
        for rank in range(len(self._cluster)):
            self._notify_one(rank, method, *args)

    def _notify_one(self, rank: int, method: str, *args: object) -> None:
        async def notify() -> None:
            with contextlib.suppress(WorkerDied):  # the coordinator's successor is connected to the engines as they are then
                await self._cluster.call(rank, method, *args)

        notice = asyncio.ensure_future(notify())
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _replace(self, rank: int, dead: object) -> None:
        """Replaces the coordinator once, however many groups report its death."""
        async with self._restarting[rank]:
            while self._cluster.workers[rank] is dead:
                self.deaths += 1
                self._deaths_in_a_row += 1
                if self._deaths_in_a_row > MAX_DEATHS:
                    raise CoordinatorsLost(f"environment workers died {MAX_DEATHS + 1} times in a row, without finishing a group")
                await self._cluster.restart(rank)
                # Nobody reads the answers to the dead coordinator's requests. The abort interrupts requests of the others, too;
                # they are sent again.
                await asyncio.gather(*(self._abort(engine) for engine in range(len(self._engines))))
                try:
                    await self._connect(rank)
                except WorkerDied:
                    dead = self._cluster.workers[rank]

    async def _abort(self, engine: int) -> None:
        with contextlib.suppress(WorkerDied, EngineError):  # an engine that is down has nothing to abort
            await self._engines.call(engine, "abort")

    async def _connect(self, rank: int) -> None:
        await self._cluster.call(rank, "connect", list(self._engines.workers), self._replaced)
