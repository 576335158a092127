"""Broadcasts to engines of other processes: who asks at the same time is one group, who does not come costs the others time."""

import asyncio

import pytest
import torch

from roll.distributed.backend import LocalBackend
from roll.pipeline.weight_broadcast import BroadcastDesk, InvitedBroadcast
from roll.weights.bucket import make_buckets, manifest_of
from roll.weights.directory import ServedWeightStore, WeightFolder
from roll.weights.store import KeptBucket


class Trainers:
    """Two ranks, each with a bucket."""

    def __init__(self):
        self.sizes = []

    async def call(self, rank, method, member, *buckets):
        assert method == "broadcast" and all(f"w{rank}" in bucket.tensors for bucket in buckets)
        self.sizes.append(member.size)
        await asyncio.to_thread(member.send, buckets)


class Engines:
    def __init__(self, absent=False):
        self.received = {}
        self._absent = absent

    async def call(self, engine, method, version, member, count):
        assert method == "receive_broadcast" and version == 1
        if self._absent:
            await asyncio.Event().wait()
        for bucket in await asyncio.to_thread(lambda: list(member.receive(count))):
            bucket.verify()
            self.received.setdefault(engine, {}).update(bucket.tensors)


@pytest.fixture
def offered(tmp_path):
    """`offered(main, timeout_s)` runs `main(trainers)` while version 1 is offered in the folder."""

    async def offer(main, timeout_s):
        trainers, store = Trainers(), ServedWeightStore(tmp_path, -1, "127.0.0.1", LocalBackend())
        store.broadcasts = BroadcastDesk(trainers, "127.0.0.1", timeout_s)
        buckets = [next(make_buckets([(f"w{rank}", torch.arange(5) + rank)], 1 << 20)) for rank in range(2)]
        kept = [KeptBucket(rank, each, tuple(each.tensors), each.checksum, each.nbytes) for rank, each in enumerate(buckets)]
        await store.publish(manifest_of(1, buckets), kept)
        try:
            await asyncio.wait_for(main(trainers), 20)
        finally:
            store.close()

    return lambda main, timeout_s=10.0: asyncio.run(offer(main, timeout_s))


def test_all_who_ask_at_the_same_time_are_one_group_and_get_every_ranks_buckets(offered, tmp_path):
    async def main(trainers):
        explorers = [Engines(), Engines()]
        ways = [InvitedBroadcast(engines, WeightFolder(tmp_path)) for engines in explorers]
        sent = await asyncio.gather(ways[0].send(None, 1, [0, 2]), ways[1].send(None, 1, [1]))
        assert sent == [True, True] and [(way.sent, way.failed) for way in ways] == [(1, 0), (1, 0)]
        assert trainers.sizes == [4, 4], "a rank, and three engines"
        for engine, received in [*explorers[0].received.items(), *explorers[1].received.items()]:
            assert torch.equal(received["w0"], torch.arange(5)) and torch.equal(received["w1"], torch.arange(5) + 1), engine
        assert [set(engines.received) for engines in explorers] == [{0, 2}, {1}]

    offered(main)


def test_one_who_was_invited_and_does_not_come_costs_the_others_their_broadcast_and_no_more(offered, tmp_path, caplog):
    """They are told to fetch the buckets, and the next who ask are a group without it."""

    async def main(trainers):
        engines, dead = Engines(), Engines(absent=True)
        way, gone = (InvitedBroadcast(each, WeightFolder(tmp_path)) for each in (engines, dead))
        waits = asyncio.create_task(gone.send(None, 1, [0]))
        assert await way.send(None, 1, [0]) is False
        waits.cancel()
        assert "did not come by broadcast, and is fetched" in caplog.text
        assert await way.send(None, 1, [0]) is True
        assert trainers.sizes[-1] == 2 and (way.sent, way.failed) == (1, 1)

    offered(main, 1.5)


def test_a_version_that_is_not_there_is_not_broadcast(offered, tmp_path):
    async def main(trainers):
        way = InvitedBroadcast(Engines(), WeightFolder(tmp_path))
        assert await way.send(None, 7, [0]) is False
        assert (way.sent, way.failed, trainers.sizes) == (0, 1, [])

    offered(main)
