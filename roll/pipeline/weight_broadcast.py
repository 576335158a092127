"""Sends one version to many engines at the same time: each rank of the trainer broadcasts the buckets that it made.

An engine that died or was too slow in a broadcast, and an engine that starts later, pulls its buckets from the store by itself.
Where trainer and engines are in processes of their own, the trainer's `BroadcastDesk` invites, and who was invited takes part by
`InvitedBroadcast`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from roll.distributed.backend import WorkerDied
from roll.distributed.cluster import Cluster
from roll.strategies.infer.interface import EngineError
from roll.weights.broadcast import BroadcastError, Member, Rendezvous
from roll.weights.bucket_server import Invitation, Unreachable
from roll.weights.directory import WeightFolder
from roll.weights.store import BucketRef, KeptBucket, WeightSource

LOST = (WorkerDied, EngineError)
GATHERING_S = 0.1
"""Who asks for a version this long after another one takes part in the same broadcast."""

logger = logging.getLogger(__name__)


class Broadcast(Protocol):
    sent: int
    """Versions that reached all engines that they were sent to."""
    failed: int
    """Versions that did not reach all engines that they were sent to."""

    async def send(self, store: WeightSource, version: int, engines: Sequence[int]) -> bool:
        """Returns whether all of these engines have all buckets of the version; if not, it is unknown which engine has which
        bucket."""


class WeightBroadcast:
    def __init__(self, trainers: Cluster, engines: Cluster, address: str, timeout_s: float, device: str = "") -> None:
        """`address`: of the driver, where members find each other. `timeout_s`: for each of their exchanges. `device`: the one
        of each member that they go through, as it counts its own; none: host memory."""
        self._trainers = trainers
        self._engines = engines
        self._device = device
        self._address, self._timeout_s = address, timeout_s
        self.sent = self.failed = 0

    async def send(self, store: WeightSource, version: int, engines: Sequence[int]) -> bool:
        shares: dict[int, list[KeptBucket]] = {}

        async def sort(_: int, bucket: BucketRef) -> None:
            shares.setdefault(bucket.rank, []).append(bucket)

        await store.pull(version, sort)
        rendezvous = await asyncio.to_thread(Rendezvous, self._address, self._timeout_s)
        # One rank after the other: an engine's intake is the bottleneck, and in this way it holds one bucket in transit.
        for rank, share in shares.items():
            if not await self._broadcast(rendezvous, rank, version, share, engines):
                self.failed += 1
                return False
        self.sent += 1
        return True

    async def _broadcast(
        self, rendezvous: Rendezvous, rank: int, version: int, share: Sequence[KeptBucket], engines: Sequence[int]
    ) -> bool:
        first, *others = rendezvous.members(f"version-{version}/rank-{rank}", 1 + len(engines), self._device)
        members = [
            asyncio.ensure_future(self._trainers.call(rank, "broadcast", first, *(bucket.reference for bucket in share))),
            *(
                asyncio.ensure_future(self._engines.call(engine, "receive_broadcast", version, member, len(share)))
                for engine, member in zip(engines, others, strict=True)
            ),
        ]
        try:
            await asyncio.gather(*members)
        except (BroadcastError, *LOST):
            # The other engines may not have noticed. Nobody waits for them; they stop when they receive buckets in another way.
            return False
        finally:
            for member in members:
                member.cancel()
        return True


class BroadcastDesk:
    """The trainer's side, for engines of other processes: those that ask for a version at about the same time are one group."""

    def __init__(self, trainers: Cluster, address: str, timeout_s: float) -> None:
        """`address`: of this process, where members find each other. `timeout_s`: for each of their exchanges."""
        self._trainers = trainers
        self._address, self._timeout_s = address, timeout_s
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, list[tuple[int, asyncio.Future[list[Invitation]]]]] = {}
        """Version -> who waits for an invitation: how many engines of each process."""
        self._broadcasts: set[asyncio.Task[None]] = set()

    def invite(self, version: int, buckets: Sequence[KeptBucket], members: int) -> list[Invitation]:
        return asyncio.run_coroutine_threadsafe(self._invite(version, buckets, members), self._loop).result(self._timeout_s)

    async def _invite(self, version: int, buckets: Sequence[KeptBucket], members: int) -> list[Invitation]:
        if version not in self._asked:
            self._asked[version] = []
            broadcast = asyncio.create_task(self._broadcast(version, buckets))
            self._broadcasts.add(broadcast)
            broadcast.add_done_callback(self._broadcasts.discard)
        invitation = self._loop.create_future()
        self._asked[version].append((members, invitation))
        return list(await invitation)

    async def _broadcast(self, version: int, buckets: Sequence[KeptBucket]) -> None:
        await asyncio.sleep(GATHERING_S)
        asked = self._asked.pop(version)
        shares: dict[int, list[KeptBucket]] = {}
        for bucket in buckets:
            shares.setdefault(bucket.rank, []).append(bucket)
        rendezvous = await asyncio.to_thread(Rendezvous, self._address, self._timeout_s)
        size = 1 + sum(members for members, _ in asked)
        groups = {rank: rendezvous.members(f"version-{version}/rank-{rank}", size) for rank in shares}
        first = 1
        for members, invitation in asked:
            places = slice(first, first := first + members)
            invitation.set_result([Invitation(len(share), groups[rank][places]) for rank, share in shares.items()])
        try:
            for rank, share in shares.items():
                await self._trainers.call(rank, "broadcast", groups[rank][0], *(bucket.reference for bucket in share))
        except (BroadcastError, WorkerDied) as error:  # its receivers fetch the buckets one by one
            logger.warning("version %d was not broadcast to all who asked: %s", version, error)


class InvitedBroadcast:
    """An explorer's side: its engines take part in what a trainer of another process broadcasts."""

    def __init__(self, engines: Cluster, weights: WeightFolder) -> None:
        self._engines = engines
        self._weights = weights
        self.sent = self.failed = 0

    async def send(self, store: WeightSource, version: int, engines: Sequence[int]) -> bool:
        try:
            for invitation in await asyncio.to_thread(self._ask, version, len(engines)):
                await self._receive(version, invitation.buckets, dict(zip(engines, invitation.members, strict=True)))
        except (Unreachable, BroadcastError, *LOST) as error:
            logger.warning("version %d did not come by broadcast, and is fetched: %s", version, error)
            self.failed += 1
            return False
        self.sent += 1
        return True

    def _ask(self, version: int, members: int) -> list[Invitation]:
        return self._weights.server().invitations(version, members)

    async def _receive(self, version: int, buckets: int, members: dict[int, Member]) -> None:
        calls = (self._engines.call(engine, "receive_broadcast", version, member, buckets) for engine, member in members.items())
        await asyncio.gather(*calls)
