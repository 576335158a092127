"""Engines that give no sign of life for a while, on virtual pings."""

import asyncio

import pytest

from roll.core.distributed import cluster as clusters
from roll.core.distributed.cluster import Cluster, silence
from roll.core.engines.fleet import EngineState, Fleet
from roll.core.engines.silent_engines import SilentEngines
from roll.core.errors import EngineSilent, WorkerDied
from roll.simulate.virtual_loop import VirtualLoop


class Worker:
    killable = True

    def __init__(self, name):
        self.name, self.answers, self.calls = name, asyncio.Event(), []
        self.answers.set()
        self.died = False
        self.resets = 0
        """So many pings fail, as those do whose connection was lost."""

    async def ping(self):
        await self.answers.wait()
        self.resets -= 1
        if self.died or self.resets >= 0:
            raise WorkerDied(self.name)

    async def call(self, method, *args):
        self.calls.append(method)
        await self.answers.wait()


class World:
    def __init__(self, engines=2):
        self.workers = [Worker(f"engine-{i}") for i in range(engines)]
        self.cluster = Cluster("actor_infer", self.workers, 3600.0)
        self.fleet = Fleet(engines, 0, 3)
        self.said = []
        self.load_lasts = 1.0
        self.silent = SilentEngines(
            self.cluster, self.fleet, self._say("doubt"), self._load, self._say("back"), self._say("lost")
        )

    def _say(self, what):
        return lambda engine: self.said.append((what, engine))

    async def _load(self, engine):
        await asyncio.sleep(self.load_lasts)
        self.fleet.verified(engine, self.fleet.version)

    async def listen(self, engine):
        await silence(self.workers[engine], 300.0, lambda quiet: self.silent.heard(engine, quiet))


def run(body, **given):
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:

        async def main():
            world = World(**given)
            listening = [asyncio.ensure_future(world.listen(engine)) for engine in range(len(world.workers))]
            await body(world)
            for each in listening:
                each.cancel()
            await world.silent.close()

        loop.run_until_complete(main())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_one_of_two_is_silent_holds_nobody_up_and_comes_back():
    async def body(world):
        flip = asyncio.ensure_future(world.cluster.call(1, "activate_weights"))
        generate = asyncio.ensure_future(world.cluster.call(1, "generate"))
        world.workers[1].answers.clear()
        await asyncio.sleep(clusters.QUIET_S * 2)
        assert world.said == [("doubt", 1)]
        with pytest.raises(EngineSilent, match="engine 1 gives no sign of life"):
            await flip
        assert not generate.done(), "its answer may yet be the first"
        world.fleet.loaded(0, 5)
        world.workers[1].answers.set()
        await generate
        await asyncio.sleep(2 * world.load_lasts)
        assert world.said == [("doubt", 1), ("back", 1)]
        assert world.fleet.versions == [5, 5] and len(world.silent.seconds) == 1

    run(body)


def test_one_whose_connections_are_lost_meanwhile_is_heard_over_the_next():
    async def body(world):
        world.workers[1].answers.clear()
        await asyncio.sleep(clusters.QUIET_S * 2)
        world.workers[1].resets = 2
        world.workers[1].answers.set()
        await asyncio.sleep(clusters.QUIET_S)
        assert world.said == [("doubt", 1)], "that was no answer"
        await asyncio.sleep(clusters.QUIET_S * 2 + world.load_lasts)
        assert world.said == [("doubt", 1), ("back", 1)]

    run(body)


def test_a_short_hiccup_is_nothing():
    async def body(world):
        for _ in range(5):
            world.workers[1].answers.clear()
            await asyncio.sleep(clusters.QUIET_S * 0.9)
            world.workers[1].answers.set()
            await asyncio.sleep(clusters.QUIET_S)
        assert world.said == [] and world.silent.seconds == []

    run(body)


@pytest.mark.parametrize("engines", [1, 3])
def test_of_all_that_are_silent_the_last_is_waited_for(engines):
    """Nobody could stand in for it; it may be the driver that hears nothing."""

    async def body(world):
        for worker in world.workers:
            worker.answers.clear()
        await asyncio.sleep(60)
        assert len(world.said) == engines - 1
        assert len(world.fleet.serving) == 1
        for worker in world.workers:
            worker.answers.set()
        await asyncio.sleep(10)
        assert world.fleet.serving == list(range(engines))

    run(body, engines=engines)


def test_one_that_falls_silent_again_while_it_loads_is_waited_for_again():
    async def body(world):
        world.load_lasts = 30.0
        world.workers[1].answers.clear()
        await asyncio.sleep(10)
        world.workers[1].answers.set()
        await asyncio.sleep(3)
        assert world.fleet.states[1] is EngineState.LOADING
        world.workers[1].answers.clear()
        await asyncio.sleep(10)
        assert world.fleet.states[1] is EngineState.SILENT
        world.load_lasts = 1.0
        world.workers[1].answers.set()
        await asyncio.sleep(10)
        assert world.said == [("doubt", 1), ("back", 1)]

    run(body)


def test_one_that_dies_while_it_loads_is_forgotten():
    async def body(world):
        world.load_lasts = 30.0
        world.workers[1].answers.clear()
        await asyncio.sleep(10)
        world.workers[1].answers.set()
        await asyncio.sleep(3)
        await world.silent.forget(1)
        assert world.fleet.states[1] is EngineState.SILENT
        assert world.fleet.died(1)
        world.fleet.restart(1)

    run(body)
