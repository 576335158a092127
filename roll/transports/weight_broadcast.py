"""Sends one version to many engines at the same time: each rank of the trainer broadcasts the buckets that it made, to one engine
of each host, and the others of the host read them there. So a version comes to a host once, and through all its devices.

An engine that died or was too slow in a broadcast, and an engine that starts later, pulls its buckets from the store by itself.
A rank's group is kept for the next version, unless a broadcast in it failed or another process has to be in it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from roll.core.distributed.backend import WorkerHandle
from roll.core.distributed.cluster import Cluster
from roll.core.errors import LOST, BroadcastError
from roll.core.weights.bucket import BucketFile
from roll.core.weights.store import BroadcastMember, BucketRef, KeptBucket, WeightSource
from roll.transports.broadcast import Rendezvous

T = TypeVar("T")


class WeightBroadcast:
    def __init__(self, trainers: Cluster, engines: Cluster, address: str, timeout_s: float, device: str = "") -> None:
        """`address`: of the driver, where members find each other. `timeout_s`: for each of their exchanges. `device`: the first
        one of each process, as it counts its own; none: they go through host memory."""
        self._trainers = trainers
        self._engines = engines
        self._device = device
        self._address, self._timeout_s = address, timeout_s
        self._rendezvous: Rendezvous | None = None
        self._groups: dict[int, tuple[list[tuple[WorkerHandle, str]], list[BroadcastMember]]] = {}
        """Trainer rank -> the processes of its group with their devices, by place, and how they join."""
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
            await self._send(self._rendezvous, version, shares, await self._hosts(engines))
        except (BroadcastError, ValueError, *LOST):
            # The other engines may not have noticed. Nobody waits for them; they stop when they receive buckets in another way.
            self.failed += 1
            return False
        self.sent += 1
        return True

    async def _hosts(self, engines: Sequence[int]) -> list[Host]:
        places = await _together(self._engines.call(engine, "place") for engine in engines)
        found: dict[str, list[tuple[int, int]]] = {}
        for engine, (host, devices) in zip(engines, places, strict=True):
            found.setdefault(host, []).extend((engine, device) for device in range(devices))
        return [Host(devices) for devices in found.values()]

    async def _send(
        self, rendezvous: Rendezvous, version: int, shares: Mapping[int, Sequence[KeptBucket]], hosts: Sequence[Host]
    ) -> None:
        """As many ranks at the same time as each host has devices, each to another device of every host. Raises what the workers
        raise: `ValueError` where an engine cannot read what another one of its host has."""
        lanes = min(len(host.devices) for host in hosts)

        async def send_in(lane: int) -> None:
            for rank in list(shares)[lane::lanes]:
                await self._broadcast(rendezvous, rank, version, shares[rank], hosts, lane)

        await _together(map(send_in, range(lanes)))
        await _together(self._read(engine, version, files) for host in hosts for engine, files in host.unread())

    async def _broadcast(
        self,
        rendezvous: Rendezvous,
        rank: int,
        version: int,
        share: Sequence[KeptBucket],
        hosts: Sequence[Host],
        lane: int,
    ) -> None:
        takers = [host.devices[lane] for host in hosts]
        processes = [(self._trainers.workers[rank], self._device)]
        processes += [(self._engines.workers[engine], self._device_of(index)) for engine, index in takers]
        joined, members = self._groups.pop(rank, ([], []))
        if joined != processes:
            members = rendezvous.members(f"rank-{rank}/{next(self._numbers)}", [device for _, device in processes], rank)
        first, *others = members
        calls = [self._trainers.call(rank, "broadcast", first, *(bucket.reference for bucket in share))]
        for host, (engine, _), member in zip(hosts, takers, others, strict=True):
            calls.append(self._engines.call(engine, "receive_broadcast", version, member, len(share), host.shares))
        _, *shared = await _together(calls)
        self._groups[rank] = processes, members
        for host, (engine, _), files in zip(hosts, takers, shared, strict=True):
            host.files[engine] += files

    def _device_of(self, index: int) -> str:
        kind, colon, _ = self._device.partition(":")
        return f"{kind}:{index}" if colon else ""

    async def _read(self, engine: int, version: int, files: Sequence[BucketFile]) -> None:
        for file in files:
            await self._engines.call(engine, "receive_bucket", version, file)


@dataclass(slots=True)
class Host:
    """One whose engines can read what each of them has received."""

    devices: list[tuple[int, int]]
    """Engine, and the device's index among the engine's."""
    files: defaultdict[int, list[BucketFile]] = field(default_factory=lambda: defaultdict(list))
    """By the engine that received them."""

    @property
    def shares(self) -> bool:
        return self.devices[0][0] != self.devices[-1][0]

    def unread(self) -> Iterator[tuple[int, list[BucketFile]]]:
        """Engines, and what others received."""
        for engine in dict.fromkeys(engine for engine, _ in self.devices) if self.shares else ():
            yield engine, [file for other, files in self.files.items() if other != engine for file in files]


async def _together(calls: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Their results. Nobody waits for what still runs when one fails."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
