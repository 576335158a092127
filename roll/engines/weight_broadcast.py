"""Sends one version to many engines at the same time: each rank of the trainer broadcasts the buckets that it made.

An engine that died or was too slow in a broadcast, and an engine that starts later, pulls its buckets from the store by itself.
A rank's group is kept for the next version, unless a broadcast in it failed or another process has to be in it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from roll.distributed.backend import WorkerHandle
from roll.distributed.cluster import Cluster
from roll.errors import LOST, BroadcastError
from roll.weights.broadcast import Member, Rendezvous
from roll.weights.store import BucketRef, KeptBucket, WeightSource


class WeightBroadcast:
    def __init__(self, trainers: Cluster, engines: Cluster, address: str, timeout_s: float, device: str = "") -> None:
        """`address`: of the driver, where members find each other. `timeout_s`: for each of their exchanges. `device`: the one
        of each member that they go through, as it counts its own; none: host memory."""
        self._trainers = trainers
        self._engines = engines
        self._device = device
        self._address, self._timeout_s = address, timeout_s
        self._rendezvous: Rendezvous | None = None
        self._groups: dict[int, tuple[list[WorkerHandle], list[Member]]] = {}
        """Trainer rank -> the processes of its group, by place, and how they join."""
        self._numbers = itertools.count()
        self.sent = self.failed = 0
        """Versions that reached all engines that they were sent to, and versions that did not."""

    async def send(self, store: WeightSource, version: int, engines: Sequence[int]) -> bool:
        """Returns whether all of these engines have all buckets of the version; if not, it is unknown which engine has which
        bucket."""
        shares: dict[int, list[KeptBucket]] = {}

        async def sort(_: int, bucket: BucketRef) -> None:
            assert isinstance(bucket, KeptBucket), "the store of a transport that broadcasts keeps references"
            shares.setdefault(bucket.rank, []).append(bucket)

        await store.pull(version, sort)
        if self._rendezvous is None:
            self._rendezvous = await asyncio.to_thread(Rendezvous, self._address, self._timeout_s)
        # One rank after the other: an engine's intake is the bottleneck, and in this way it holds one bucket in transit.
        for rank, share in shares.items():
            if not await self._broadcast(self._rendezvous, rank, version, share, engines):
                self.failed += 1
                return False
        self.sent += 1
        return True

    async def _broadcast(
        self, rendezvous: Rendezvous, rank: int, version: int, share: Sequence[KeptBucket], engines: Sequence[int]
    ) -> bool:
        processes = [self._trainers.workers[rank], *(self._engines.workers[engine] for engine in engines)]
        joined, members = self._groups.pop(rank, ([], []))
        if joined != processes:
            members = rendezvous.members(f"rank-{rank}/{next(self._numbers)}", len(processes), self._device, rank)
        first, *others = members
        calls = [
            asyncio.ensure_future(self._trainers.call(rank, "broadcast", first, *(bucket.reference for bucket in share))),
            *(
                asyncio.ensure_future(self._engines.call(engine, "receive_broadcast", version, member, len(share)))
                for engine, member in zip(engines, others, strict=True)
            ),
        ]
        try:
            await asyncio.gather(*calls)
        except (BroadcastError, *LOST):
            # The other engines may not have noticed. Nobody waits for them; they stop when they receive buckets in another way.
            return False
        finally:
            for call in calls:
                call.cancel()
        self._groups[rank] = processes, members
        return True
