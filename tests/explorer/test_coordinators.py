"""Coordinators that die at awkward moments, on workers that are plain objects."""

import asyncio
import contextlib
from collections import Counter

import pytest

from roll.core.distributed.cluster import Cluster
from roll.core.errors import Replaced, WorkerDied
from roll.core.explorer import replaced_workers
from roll.core.explorer.coordinators import Coordinators
from roll.core.explorer.group_play import GroupOutcome, GroupResult, GroupTask
from roll.core.groups.changes import Changes
from roll.core.workers.infer_interface import SamplingParams


class Worker:
    """Answers every call at once, unless `answers` has something else to await."""

    def __init__(self, name, **answers):
        self.name = name
        self.answers = answers
        self.called = []

    async def call(self, method, *args):
        self.called.append(method)
        if method in self.answers:
            return await self.answers[method]()
        return GroupResult([]) if method == "play_group" else None


def task(key):
    return GroupTask(key=key, uid=key, tag="tag", env_seed=0, started=1, needed=1, sampling=SamplingParams())


async def dies():
    raise WorkerDied("gone")


def run(body):
    asyncio.run(asyncio.wait_for(body, 20))


@pytest.mark.parametrize("engine_answers", [{}, {"abort": dies}])
def test_nobody_plays_on_a_coordinator_before_it_knows_the_engines(engine_answers):
    """Nor does an engine that is down in that moment end the run."""

    async def main():
        connected, began = asyncio.Event(), asyncio.Event()

        async def connect():
            began.set()
            await connected.wait()

        successor = Worker("successor", connect=connect)

        async def restart(rank):
            return successor

        cluster = Cluster("environment", [Worker("first", play_group=dies)], 10.0, restart=restart)
        coordinators = Coordinators(cluster, Changes(), Cluster("actor_infer", [Worker("engine", **engine_answers)], 10.0), True)
        first = asyncio.create_task(coordinators.play(task("a")))
        await began.wait()
        second = asyncio.create_task(coordinators.play(task("b")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert successor.called == ["connect"]
        connected.set()
        with pytest.raises(Replaced):
            await first
        await second
        assert successor.called == ["connect", "play_group"] and cluster.restarts == 1

    run(main())


def test_a_successor_that_dies_over_its_engines_has_a_successor():
    async def main():
        successors = [Worker("second", connect=dies), Worker("third")]

        async def restart(rank):
            return successors.pop(0)

        cluster = Cluster("environment", [Worker("first", play_group=dies)], 10.0, restart=restart)
        coordinators = Coordinators(cluster, Changes(), Cluster("actor_infer", [Worker("engine")], 10.0), True)
        with pytest.raises(Replaced):
            await coordinators.play(task("a"))
        assert cluster.workers[0].name == "third" and cluster.restarts == 2

    run(main())


def test_a_new_kind_of_failure_is_told_with_its_own_reason(caplog):
    async def main():
        outcome = GroupOutcome(Counter(timeout=1, exception=1), {"timeout": "timeout: step", "exception": "exception: slip"})

        async def play():
            return GroupResult([], outcome)

        cluster = Cluster("environment", [Worker("first", play_group=play)], 10.0)
        coordinators = Coordinators(cluster, Changes(), Cluster("actor_infer", [Worker("engine")], 10.0), True)
        coordinators.failures["exception"] = 1
        await coordinators.play(task("a"))
        await coordinators.play(task("b"))

    run(main())
    assert [record.getMessage() for record in caplog.records] == ["an environment failed: timeout: step"]


def test_a_group_that_nobody_waits_for_is_played_no_longer():
    async def main():
        playing, cancelled = asyncio.Event(), asyncio.Event()

        async def play():
            playing.set()
            await asyncio.Event().wait()

        async def cancel():
            cancelled.set()

        cluster = Cluster("environment", [Worker("first", play_group=play, cancel=cancel)], 10.0)
        coordinators = Coordinators(cluster, Changes(), Cluster("actor_infer", [Worker("engine")], 10.0), True)
        waiting = asyncio.create_task(coordinators.play(task("a")))
        await playing.wait()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await cancelled.wait()

    run(main())


def test_a_group_of_a_coordinator_that_nothing_can_start_now_is_played_by_another(monkeypatch):
    """As on a host that is cut off, where Ray starts nothing before it calls the host dead."""
    monkeypatch.setattr(replaced_workers, "QUICK_S", 0.1)

    async def main():
        back = asyncio.Event()
        successor = Worker("successor")

        async def restart(rank):
            await back.wait()
            return successor

        others = Worker("other")
        cluster = Cluster("environment", [Worker("first", play_group=dies), others], 10.0, restart=restart)
        coordinators = Coordinators(cluster, Changes(), Cluster("actor_infer", [Worker("engine")], 10.0), True)
        with pytest.raises(Replaced):
            await coordinators.play(task("a"))
        for key in "abc":
            await coordinators.play(task(key))
        assert others.called == ["play_group"] * 3 and cluster.restarts == 0
        back.set()
        while not cluster.restarts or coordinators.replaces(0):
            await asyncio.sleep(0)
        await coordinators.play(task("d"))
        assert successor.called == ["connect", "play_group"]

    run(main())
