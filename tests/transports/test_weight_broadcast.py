"""Who gets a version from whom; the bytes themselves go between processes in tests/integration/test_weight_transport.py."""

import asyncio

import pytest

from roll.core.errors import WorkerDied
from roll.core.weights.bucket import BucketFile, WeightManifest
from roll.core.weights.store import KeptBucket
from roll.transports.weight_broadcast import WeightBroadcast


class Processes:
    """Stands for a cluster: notes the calls."""

    def __init__(self, hosts="  ", devices=1):
        self.places = [(host, devices) for host in hosts]
        self.workers = [object() for _ in hosts]
        self.calls = []
        self.fails = {}

    async def call(self, rank, method, *args):
        if method == "place":
            return self.places[rank]
        self.calls.append((rank, method, *args))
        if error := self.fails.get((rank, method)):
            raise error
        return [BucketFile(f"/proc/{rank}/fd/3", ("w",), 7, 4)] if method == "receive_broadcast" else None

    def received(self):
        """By sender: who received, through what, of how many in its group, and whether it is for others, too."""
        by_sender = {}
        for rank, method, *args in self.calls:
            if method == "receive_broadcast":
                _, member, _, shares = args
                by_sender.setdefault(member.sender, []).append((rank, member.device, member.size, shares))
        return by_sender

    def read(self):
        """By engine: of whom it reads."""
        return sorted((rank, args[1].path) for rank, method, *args in self.calls if method == "receive_bucket")


class Side(Processes):
    """Ranks that are done only when both send."""

    meet = asyncio.Barrier(2)

    async def call(self, rank, method, *args):
        await self.meet.wait()


class Store:
    """Two ranks made a bucket each."""

    async def pull(self, version, into):
        for rank in range(2):
            await into(version, KeptBucket(rank, f"bucket of {rank}", ("w",), 7, 4))
        return WeightManifest(version)


def send(broadcast, engines):
    return asyncio.run(asyncio.wait_for(broadcast.send(Store(), 3, engines), 20))


@pytest.fixture
def engines():
    return Processes("abaac")


@pytest.fixture
def broadcast(engines):
    return WeightBroadcast(Processes(), engines, "127.0.0.1", 5.0)


def test_a_version_comes_to_each_host_once(broadcast, engines):
    """A trainer's rank and three hosts are in a group; two engines of one host read what the third one has, from each rank."""
    assert send(broadcast, [0, 1, 2, 3, 4])
    members = [(0, "", 4, True), (1, "", 4, False), (4, "", 4, False)]
    assert engines.received() == {0: members, 1: members}
    assert engines.read() == [(2, "/proc/0/fd/3")] * 2 + [(3, "/proc/0/fd/3")] * 2


def test_two_ranks_send_at_the_same_time_where_each_host_has_two_engines():
    engines = Processes("abba")
    assert send(WeightBroadcast(Side(), engines, "127.0.0.1", 5.0), [0, 1, 2, 3])
    assert engines.received() == {0: [(0, "", 3, True), (1, "", 3, True)], 1: [(3, "", 3, True), (2, "", 3, True)]}
    assert engines.read() == [(0, "/proc/3/fd/3"), (1, "/proc/2/fd/3"), (2, "/proc/1/fd/3"), (3, "/proc/0/fd/3")]


def test_or_where_an_engine_has_two_devices_each_to_another_one():
    engines = Processes("ab", devices=2)
    broadcast = WeightBroadcast(Processes(), engines, "127.0.0.1", 5.0, "cuda:0")
    assert send(broadcast, [0, 1])
    assert engines.received() == {
        0: [(0, "cuda:0", 3, False), (1, "cuda:0", 3, False)],
        1: [(0, "cuda:1", 3, False), (1, "cuda:1", 3, False)],
    }
    assert engines.read() == []


@pytest.mark.parametrize(
    ("engine", "method", "error"),
    [
        (0, "receive_broadcast", WorkerDied("engine 0 died")),
        (2, "receive_bucket", WorkerDied("engine 2 died")),
        (2, "receive_bucket", ValueError("weight bucket '/proc/1/fd/3' cannot be read")),
    ],
    ids=["who receives dies", "who reads dies", "nothing to read"],
)
def test_a_version_that_does_not_reach_all_is_one_that_they_pull(broadcast, engines, engine, method, error):
    engines.fails[engine, method] = error
    assert not send(broadcast, [0, 2]) and (broadcast.sent, broadcast.failed) == (0, 1)
    engines.fails.clear()
    assert send(broadcast, [0, 2]) and (broadcast.sent, broadcast.failed) == (1, 1)
