"""The same contract for workers in this process and for Ray actors."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from roll.core.configs.dotted_path import import_object
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import detect, place
from roll.core.errors import WorkerDied, WorkerStartError
from roll.platform import local_backend
from roll.platform.local_backend import LocalBackend

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])]))


async def start(backend, inventory, cls="backend_worker.Counter", deadline_s=200.0):
    placements = place((0, 1), inventory)
    specs = [WorkerSpec(f"role-{p.rank}", cls, p, {} if cls.endswith("Broken") else {"rank": p.rank}) for p in placements]
    return await Cluster.start("role", backend, specs, deadline_s)


async def check_contract(backend, inventory):
    cluster = await start(backend, inventory)
    assert await cluster.call_all("add", 3) == [3, 4]
    assert await cluster.scatter("add", [10, 20]) == [10, 21]
    with pytest.raises(ValueError, match="2 data-parallel ranks, got 1 shards"):
        await cluster.scatter("add", [1])
    replicated = Cluster("role", [*cluster.workers, *cluster.workers], 60.0, shard_of=(0, 0, 1, 1), backend=backend)
    assert await replicated.scatter("add", [10, 20]) == [10, 20], "two ranks a shard; the first one's answer counts"
    together = [cluster.call(0, "rendezvous", last) for last in (False, False, True)]
    assert await asyncio.gather(*together) == ["together"] * 3
    reference, size = await cluster.call_for_reference(0, "make", 1000)
    assert size == 1000
    assert await cluster.call(1, "length", reference) == 1000
    with pytest.raises(ValueError, match="no such thing"):
        await cluster.call(0, "fail")
    with pytest.raises(WorkerStartError, match=r"worker role-\d cannot start: FileNotFoundError: .*model folder is gone"):
        await start(backend, inventory, "backend_worker.Broken")
    return cluster


class Share:
    """Arrives as bytes."""

    def __init__(self, size):
        self.size, self.pickled = size, 0

    def __reduce__(self):
        self.pickled += 1
        return bytes, (self.size,)


def test_in_process():
    async def main():
        backend = LocalBackend()
        cluster = await check_contract(backend, detect())
        assert await cluster.memory(30.0) == {}, "it is the driver's"
        with pytest.raises(TimeoutError, match=r"role\[1\].hang gave no answer in 0 s \(rpc_timeout\)$"):
            await Cluster("role", cluster.workers, deadline_s=0.2).call(1, "hang")
        await backend.shutdown()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_worker_of_this_process_that_does_not_end_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr(local_backend, "CLOSE_S", 0.1)

    async def main():
        backend = LocalBackend()
        await start(backend, detect(), "backend_worker.Endless")
        await backend.shutdown()

    asyncio.run(asyncio.wait_for(main(), 30))
    import_object("backend_worker.Endless").released.set()
    assert "worker role-0 does not end" in caplog.text


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_workers_find_modules_where_the_driver_does(tmp_path, monkeypatch):
    """Not first where the command was given: in a clone of ROLL that would be ROLL's package."""
    from roll.platform.ray_backend import RayBackend

    (tmp_path / "backend_worker.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)

    async def main():
        backend = RayBackend(detect())
        try:
            cluster = await start(backend, detect())
            assert await cluster.call_all("add", 3) == [3, 4]
        finally:
            await backend.shutdown()

    asyncio.run(asyncio.wait_for(main(), 400))


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_ray_and_the_death_of_a_worker_nobody_is_calling():
    from roll.platform.ray_backend import RayBackend

    async def main():
        backend = RayBackend(detect())
        try:
            cluster = await check_contract(backend, detect())
            shares = [Share(1), Share(2)]
            replicated = Cluster("role", [*cluster.workers, *cluster.workers], 60.0, shard_of=(0, 0, 1, 1), backend=backend)
            assert await replicated.scatter("length", shares) == [1, 2]
            assert [share.pickled for share in shares] == [1, 1], "once for all the ranks that have it"
            pid = await cluster.call(1, "process")
            assert pid != os.getpid()
            assert not await cluster.call(1, "has_loaded", "torch"), "a worker that does not compute, as of rewards, is small"
            memory = await cluster.memory(30.0)
            assert list(memory) == ["role-0", "role-1"]
            assert memory["role-1"].rss_mb > 10
            watch = asyncio.ensure_future(cluster.watch())
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDied, match="role-1 of role role"):
                await asyncio.wait_for(watch, 100)
            with pytest.raises(WorkerDied, match="role-1"):
                await cluster.call(1, "add", 1)

            restarted = asyncio.Event()

            async def replace(rank):
                await cluster.restart(rank)
                restarted.set()

            watch = asyncio.ensure_future(cluster.watch(replace))
            await asyncio.wait_for(restarted.wait(), 200)
            assert await cluster.call_all("add", 3) == [3, 4]
            hasty = Cluster("role", cluster.workers, deadline_s=0.2)
            with pytest.raises(
                WorkerDied, match=r"role\[0\].hang gave no answer in 0 s \(rpc_timeout\): worker role-0 was killed"
            ):
                await hasty.call(0, "hang")
            restarted.clear()
            await asyncio.wait_for(restarted.wait(), 200)
            assert await cluster.call_all("add", 3) == [3, 4] and not watch.done()
            watch.cancel()
        finally:
            await backend.shutdown()

    asyncio.run(asyncio.wait_for(main(), 500))


def test_a_dotted_path_that_leads_nowhere_says_where_it_ends():
    assert import_object("backend_worker.Counter").__name__ == "Counter"
    for path, message in (
        ("nothing", "not a dotted path"),
        ("no_such_module.Thing", "No module named"),
        ("backend_worker.Missing", "module 'backend_worker' has no attribute 'Missing'"),
    ):
        with pytest.raises(ValueError, match=message):
            import_object(path)
    sys.modules.pop("backend_worker", None)
