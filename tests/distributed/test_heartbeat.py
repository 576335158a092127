"""Workers that do not start, and workers that fall silent, with handles that the test moves."""

import asyncio
import logging

import pytest

from roll.core.distributed import cluster as clusters
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Placement
from roll.core.errors import BackendLost, WorkerDied, WorkerStartError


class Handle:
    """Answers pings until `silent`; dies when it is killed."""

    def __init__(self, name="role-0"):
        self.name = name
        self.silent = False
        self.gone = asyncio.Event()
        self.killed = False
        self.lost = False

    async def ping(self):
        if self.silent:
            await asyncio.Event().wait()

    async def died(self):
        await self.gone.wait()
        if self.lost:
            raise BackendLost("gone with all its workers")

    def kill(self):
        self.killed = True
        self.gone.set()


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario, 30))


def test_a_silent_worker_is_reported_then_killed_and_ends_the_run(monkeypatch, caplog):
    monkeypatch.setattr(clusters, "WARN_S", 0.1)

    async def main():
        good, bad = Handle("role-0"), Handle("role-1")
        watch = asyncio.ensure_future(Cluster("role", [good, bad], 60.0, heartbeat_s=0.5).watch())
        await asyncio.sleep(0.7)
        assert not watch.done() and not caplog.records, "workers that answer are left alone"
        bad.silent = True
        with pytest.raises(WorkerDied, match=r"role-1 of role role has not answered for 0.5 s \(heartbeat_timeout\)"):
            await watch
        assert bad.killed and not good.killed
        assert "role-1 has not answered for" in caplog.text and "role-0" not in caplog.text

    run(main())


def test_a_role_that_restarts_workers_restarts_a_silent_one():
    async def main():
        handles = [Handle()]
        cluster = Cluster("role", handles, 60.0, heartbeat_s=0.2)
        replaced = asyncio.Event()

        async def replace(rank):
            cluster.put(rank, Handle())
            replaced.set()

        watch = asyncio.ensure_future(cluster.watch(replace))
        handles[0].silent = True
        await replaced.wait()
        assert handles[0].killed and not watch.done()
        watch.cancel()

    run(main())


def test_silence_is_forgiven_where_no_deadline_is_set():
    async def main():
        handle = Handle()
        handle.silent = True
        watch = asyncio.ensure_future(Cluster("role", [handle], 60.0).watch())
        await asyncio.wait({watch}, timeout=0.3)
        assert not watch.done() and not handle.killed
        handle.gone.set()
        with pytest.raises(WorkerDied, match="role-0 of role role died"):
            await watch

    run(main())


def test_the_loss_of_all_workers_is_not_taken_for_a_death_that_could_be_mended():
    async def main():
        handle = Handle()
        handle.lost = True
        handle.gone.set()

        async def replace(rank):
            raise AssertionError("there is nothing to restart a worker on")

        with pytest.raises(BackendLost, match="gone with all its workers"):
            await Cluster("role", [handle], 60.0, heartbeat_s=5.0).watch(replace)

    run(main())


def test_a_silent_worker_is_killed_for_who_finds_dead_ones_by_calling_them(caplog):
    """And so is its successor, should that one fall silent, too."""

    async def main():
        first, second = Handle(), Handle()
        cluster = Cluster("role", [first], 60.0, heartbeat_s=0.2)
        killing = asyncio.ensure_future(cluster.kill_silent())
        first.silent = True
        await first.gone.wait()
        assert "worker role-0 has not answered for 0.2 s" in caplog.text
        cluster.put(0, second)
        second.silent = True
        await second.gone.wait()
        assert not killing.done()
        killing.cancel()

    run(main())


class Backend:
    """Starts the workers that the test lets start."""

    def __init__(self):
        self.may_start = {}

    async def start(self, spec):
        await self.may_start.setdefault(spec.name, asyncio.Event()).wait()
        return Handle(spec.name)


SPECS = [WorkerSpec(f"role-{rank}", "", Placement(rank, 3, (), 0, (), 1)) for rank in range(3)]


def test_a_start_has_a_deadline_of_its_own_and_says_who_is_late(monkeypatch, caplog):
    monkeypatch.setattr(clusters, "PROGRESS_S", 0.2)
    caplog.set_level(logging.WARNING)

    async def main():
        backend = Backend()
        starting = asyncio.ensure_future(Cluster.start("role", backend, SPECS, 0.05, start_s=20.0))
        await asyncio.sleep(0.1)
        backend.may_start["role-1"].set()
        while "not ready" not in caplog.text:
            await asyncio.sleep(0.01)
        assert "not ready after 0 s: role-0, role-2" in caplog.text
        for event in backend.may_start.values():
            event.set()
        assert [worker.name for worker in (await starting).workers] == ["role-0", "role-1", "role-2"]
        with pytest.raises(WorkerStartError, match=r"role-\d is not ready after 0 s \(worker_start_timeout\)"):
            await Cluster.start("role", Backend(), SPECS, 20.0, start_s=0.05)

    run(main())
