"""Brings versions to the engines that serve, while they generate: to all together by a broadcast where that is possible, or each
engine pulls by itself; or bucket by bucket while the trainer makes them.

An engine that dies meanwhile is reported, and its successor loads the version of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from roll.core.distributed.cluster import Cluster
from roll.core.engines.fleet import Fleet
from roll.core.errors import LOST, WorkerDied
from roll.core.weights.bucket import Readable, WeightManifest
from roll.core.weights.store import Broadcast, BucketRef, Buckets, LentRef, Receive, WeightSource


class WeightSending:
    def __init__(
        self,
        engines: Cluster,
        store: WeightSource,
        fleet: Fleet,
        broadcast: Broadcast | None,
        report: Callable[[int, Exception], None],
    ) -> None:
        """`broadcast`: if None, each engine pulls. `report`: called when an engine is gone."""
        self._engines = engines
        self._store = store
        self._fleet = fleet
        self._broadcast = broadcast
        self._report = report
        self.staged: dict[int, int] = {}
        """Engine -> the version whose buckets it has received."""

    async def send(self, version: int, engines: Collection[int]) -> None:
        """Sends a version that lies in the store."""
        due = self._lacking(version, engines)
        if due and self._broadcast is not None and await self._broadcast.send(self._store, version, due):
            self.staged |= {engine: version for engine in self._fleet.serving_of(due)}
        else:
            await self.complete(version, due)

    async def complete(self, version: int, engines: Collection[int]) -> None:
        """Lets each engine that has not received the version pull it."""
        await asyncio.gather(*(self._send(engine, version) for engine in self._lacking(version, engines)))

    async def send_ahead(self, coming: Buckets, engines: Collection[int]) -> None:
        """Sends a version bucket by bucket while the trainer makes it; returns when all are made, or will not be."""
        await asyncio.gather(*(self._send_ahead(engine, coming) for engine in self._fleet.serving_of(engines)))

    async def pull(self, engine: int, version: int) -> WeightManifest:
        return await self._store.pull(version, self._receiver(engine))

    def _lacking(self, version: int, engines: Collection[int]) -> list[int]:
        return [engine for engine in self._fleet.serving_of(engines) if self.staged.get(engine) != version]

    def _receiver(self, engine: int) -> Receive:
        worker = self._engines.workers[engine]

        async def receive(version: int, bucket: BucketRef) -> None:
            if worker is not self._engines.workers[engine]:
                raise WorkerDied(f"worker {worker.name} died")

            async def deliver(argument: Readable) -> object:
                return await self._engines.call(engine, "receive_bucket", version, argument)

            await (bucket.hand_to(deliver) if isinstance(bucket, LentRef) else deliver(bucket.argument))

        return receive

    async def _send(self, engine: int, version: int) -> None:
        try:
            await self.pull(engine, version)
            self.staged[engine] = version
        except LOST as error:
            self._report(engine, error)

    async def _send_ahead(self, engine: int, coming: Buckets) -> None:
        worker = self._engines.workers[engine]
        self.staged.pop(engine, None)
        try:
            await coming.hand_over(self._receiver(engine))
        except LOST as error:
            if worker is self._engines.workers[engine]:
                self._report(engine, error)
        else:
            # An engine that died after its last bucket has nothing any more.
            if coming.whole and worker is self._engines.workers[engine] and self._fleet.serving_of([engine]):
                self.staged[engine] = coming.version
