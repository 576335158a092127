"""Sends one version to many engines at the same time: each rank of the trainer broadcasts the buckets that it made, to one engine
of each host, and the others of the host read them there.

An engine that died or was too slow in a broadcast, and an engine that starts later, pulls its buckets from the store by itself.
A rank's group is kept for the next version, unless a broadcast in it failed or another process has to be in it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterable, Sequence
from typing import TypeVar

from roll.distributed.backend import WorkerHandle
from roll.distributed.cluster import Cluster
from roll.errors import LOST, BroadcastError
from roll.weights.broadcast import Member, Rendezvous
from roll.weights.directory import BucketFile
from roll.weights.store import BucketRef, KeptBucket, WeightSource

T = TypeVar("T")


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
        try:
            hosts = await self._by_host(engines)
            # One rank after the other: an engine's intake is the bottleneck, and in this way it holds one bucket in transit.
            for rank, share in shares.items():
                await self._broadcast(self._rendezvous, rank, version, share, hosts)
        except (BroadcastError, ValueError, *LOST):
            # The other engines may not have noticed. Nobody waits for them; they stop when they receive buckets in another way.
            self.failed += 1
            return False
        self.sent += 1
        return True

    async def _by_host(self, engines: Sequence[int]) -> list[list[int]]:
        found: dict[str, list[int]] = {}
        for engine, host in zip(engines, await _together(self._engines.call(each, "host") for each in engines), strict=True):
            found.setdefault(host, []).append(engine)
        return list(found.values())

    async def _broadcast(
        self, rendezvous: Rendezvous, rank: int, version: int, share: Sequence[KeptBucket], hosts: Sequence[Sequence[int]]
    ) -> None:
        """Raises what the engines raise: `ValueError` where one cannot read what another one of its host has."""
        processes = [self._trainers.workers[rank], *(self._engines.workers[engines[0]] for engines in hosts)]
        joined, members = self._groups.pop(rank, ([], []))
        if joined != processes:
            members = rendezvous.members(f"rank-{rank}/{next(self._numbers)}", len(processes), self._device, rank)
        first, *others = members
        calls = [self._trainers.call(rank, "broadcast", first, *(bucket.reference for bucket in share))]
        for (engine, *more), member in zip(hosts, others, strict=True):
            calls.append(self._engines.call(engine, "receive_broadcast", version, member, len(share), bool(more)))
        _, *shared = await _together(calls)
        self._groups[rank] = processes, members
        await _together(
            self._read(engine, version, files) for (_, *more), files in zip(hosts, shared, strict=True) for engine in more
        )

    async def _read(self, engine: int, version: int, files: Sequence[BucketFile]) -> None:
        for file in files:
            await self._engines.call(engine, "receive_bucket", version, file)


async def _together(calls: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Their results. Nobody waits for what still runs when one fails."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
