"""Who gets a version from whom; the bytes themselves go between processes in tests/integration/test_weight_transport.py."""

import asyncio

import pytest

from roll.engines.weight_broadcast import WeightBroadcast
from roll.errors import WorkerDied
from roll.weights.bucket import WeightManifest
from roll.weights.directory import BucketFile
from roll.weights.store import KeptBucket

FILE = BucketFile("/proc/1/fd/3", ("w",), 7, 4)


class Processes:
    """Stands for a cluster: notes the calls."""

    def __init__(self, hosts=()):
        self.hosts = hosts
        self.workers = [object() for _ in hosts] or [object(), object()]
        self.calls = []
        self.fails = {}

    async def call(self, rank, method, *args):
        if method == "host":
            return self.hosts[rank]
        self.calls.append((rank, method, *args))
        if error := self.fails.get((rank, method)):
            raise error
        return [FILE] if method == "receive_broadcast" else None


class Store:
    """Two ranks made a bucket each."""

    async def pull(self, version, into):
        for rank in range(2):
            await into(version, KeptBucket(rank, f"bucket of {rank}", ("w",), 7, 4))
        return WeightManifest(version)


@pytest.fixture
def engines():
    return Processes(["a", "b", "a", "b", "a", "c"])


@pytest.fixture
def broadcast(engines):
    return WeightBroadcast(Processes(), engines, "127.0.0.1", 5.0)


def send(broadcast, engines):
    return asyncio.run(asyncio.wait_for(broadcast.send(Store(), 3, engines), 20))


def test_a_version_comes_to_each_host_once(broadcast, engines):
    assert send(broadcast, [0, 1, 2, 4, 5])
    received = [(rank, *args) for rank, method, *args in engines.calls if method == "receive_broadcast"]
    assert [(rank, version, member.size, shares) for rank, version, member, _, shares in received] == [
        (0, 3, 4, True),
        (1, 3, 4, False),
        (5, 3, 4, False),
    ] * 2  # the trainer's rank and three hosts, from each of two ranks
    assert sorted((rank, *args) for rank, method, *args in engines.calls if method == "receive_bucket") == sorted(
        [(2, 3, FILE), (4, 3, FILE)] * 2
    )


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
