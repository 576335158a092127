"""The role actor_log_prob: a copy of the policy that takes published versions and scores steps in actor_train's place.

Which version scores a step follows from the step's number alone, never from who was faster: the newest that is published when
`step - lag` steps are trained. With lag 0 a step waits for it; with lag 1 it is there while the step before trains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.errors import Closed
from roll.core.groups.groups import Groups
from roll.core.groups.schedule import StepSchedule
from roll.core.record.ledger import BUSY, STAGE, Ledger
from roll.core.weights.store import BucketRef, WeightSource

ROLE = "actor_log_prob"
LOADING = STAGE + "log_prob_load"


class PolicyCopy:
    begins: Collection[int] = ()
    """In a replay: the steps after which the recorded run began, or was resumed."""

    def __init__(
        self,
        cluster: Cluster,
        store: WeightSource,
        groups: Groups,
        schedule: StepSchedule,
        first_step: int,
        devices: DeviceLocks,
        ledger: Ledger,
        lag: int,
    ) -> None:
        """`first_step`: the workers have begun with its weights. `ledger`: gets the seconds of loading. `lag`: see above."""
        self.cluster = cluster
        self._store = store
        self._groups = groups
        self._schedule = schedule
        self._devices = devices
        self._ledger = ledger
        self._lag = lag
        self._first = self._version = self._published = self._next = first_step
        """The version that the workers began with, the one that they have, the newest published one, and the step that is to be
        scored next."""

    def version_for(self, step: int) -> int:
        """Returns the version that scores the step. A run that begins, or is resumed, has none older than its first."""
        first = max([self._first, *(begun for begun in self.begins if begun <= step)])
        return max(first, self._schedule.newest_published(step - self._lag))

    @property
    def needed(self) -> frozenset[int]:
        """Returns the versions that the store has to keep."""
        wanted = self.version_for(self._next)
        return frozenset({wanted} - {self._version})

    def publish(self, version: int) -> None:
        """Records that the version can be pulled."""
        self._published = version
        self._groups.changes.notify()

    async def ready_for(self, step: int) -> None:
        """Waits until the workers have the version that scores the step. Raises `Closed` if the run stops before."""
        wanted, groups = self.version_for(step), self._groups
        loaded = f"{self.cluster.role} has version {wanted}"
        await groups.until(lambda: groups.stopped or self._version == wanted, "log_prob", loaded)
        if self._version != wanted:
            raise Closed

    def scored(self, step: int) -> None:
        """Records that nothing of the step is left to score."""
        self._next = step + 1
        self._groups.changes.notify()

    async def follow(self) -> None:
        """Runs as long as the run does."""
        while True:
            await self._groups.until(lambda: self._version < self.version_for(self._next) <= self._published)
            async with self._devices.hold(self.cluster.role):
                await self._load(self.version_for(self._next))
            self._groups.changes.notify()

    async def _load(self, version: int) -> None:
        self._ledger.enter(LOADING, BUSY, monotonic())
        ranks = range(len(self.cluster))

        async def receive(version: int, bucket: BucketRef) -> None:
            await asyncio.gather(*(self.cluster.call(rank, "receive_bucket", version, bucket.argument) for rank in ranks))

        manifest = await self._store.pull(version, receive)
        await self.cluster.call_all("take_weights", manifest)
        self._version = version
        self._ledger.enter(LOADING, "idle", monotonic())
