"""Engines that die, hang or sleep at awkward moments, on workers that are plain objects. With real ones: tests/faults."""

import asyncio

import pytest

from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.engines import engine_fleet
from roll.core.engines.engine_fleet import EngineFleet, FleetRules
from roll.core.engines.fleet import EngineState, Fleet
from roll.core.errors import EngineSilent, NodeLost, VersionGone, WorkerDied, WorkersLost, WorkerStartError
from roll.core.groups.changes import Changes
from roll.core.weights.bucket import WeightManifest, manifest_of
from roll.core.weights.store import Buckets, KeptBucket, MemoryWeightStore
from roll.core.workers.infer_interface import EngineStats


class Engine:
    """Serves version 0. `fails` is what a method raises, `hangs` the methods that do not answer until it is killed."""

    def __init__(self, fails=None, hangs=()):
        self.name = "engine"
        self.fails, self.hangs = fails or {}, hangs
        self.called = []
        self.gone = asyncio.Event()

    async def call(self, method, *args):
        self.called.append(method)
        if method in self.hangs:
            await self.gone.wait()
        if self.gone.is_set():
            raise WorkerDied("gone")
        if method in self.fails:
            raise self.fails[method]
        return EngineStats(version=0) if method == "stats" else 0.0

    async def died(self):
        await self.gone.wait()

    def kill(self):
        self.gone.set()


class Routes:
    """Is told when an engine is there again."""

    def __init__(self, back, opened=None):
        self._back, self._opened = back, opened if opened is not None else []

    def close(self, engine):
        pass

    def open(self, engine):
        self._opened.append(engine)
        self._back.set()


def shared():
    """Engines and trainer take turns on a device."""
    return DeviceLocks({"actor_train": frozenset({0}), "actor_infer": frozenset({0})})


def make_fleet(engines, successors=(), max_restarts=3, version=0, devices=None):
    successors = list(successors)

    async def restart(rank):
        successor = successors.pop(0)
        if isinstance(successor, Exception):
            raise successor
        return successor

    return EngineFleet(
        Cluster("actor_infer", engines, 10.0, restart=restart),
        MemoryWeightStore(),
        Fleet(len(engines), version, max_restarts),
        Changes(),
        devices or DeviceLocks({"actor_infer": frozenset({0})}),
        FleetRules(mode="interrupt", restartable=True, health_interval_s=0.01, health_timeout_s=0.05),
    )


async def supervised(fleet, until):
    supervision = asyncio.create_task(fleet.supervise())
    try:
        await asyncio.wait({supervision, asyncio.ensure_future(until)}, return_when=asyncio.FIRST_COMPLETED)
        if supervision.done():
            supervision.result()
    finally:
        supervision.cancel()


def run(body):
    asyncio.run(asyncio.wait_for(body, 20))


def test_a_silent_engine_is_replaced_when_its_process_is_gone_and_not_for_calls_that_fail():
    """They do when a connection is lost."""

    async def main():
        silent, other, successor = Engine(), Engine(), Engine()
        fleet = make_fleet([silent, other], [successor])
        back = asyncio.Event()
        fleet.routing.append(Routes(back))
        fleet.fleet.silenced(0)
        fleet.report(0, WorkerDied("a connection was reset"))
        assert fleet.fleet.states[0] is EngineState.SILENT and not silent.gone.is_set()
        fleet.report(1, EngineSilent("as all the others"))
        assert fleet.fleet.states[1] is EngineState.SERVING
        silent.kill()
        await supervised(fleet, back.wait())
        assert fleet.engines.workers[0] is successor and fleet.fleet.restarts == 1

    run(main())


def test_an_engine_that_dies_in_the_trainers_turn_comes_back_when_that_is_over():
    """Its successor would find the device full: vLLM does not start then."""

    async def main():
        lost, other, successor = Engine(), Engine(), Engine()
        devices = shared()
        fleet = make_fleet([lost, other], [successor], devices=devices)
        back = asyncio.Event()
        fleet.routing.append(Routes(back))
        supervision = asyncio.create_task(supervised(fleet, back.wait()))
        async with devices.hold("actor_train"):
            assert lost.called[-1] == other.called[-1] == "sleep"
            lost.kill()
            while fleet.fleet.states[0] is EngineState.SERVING or not devices.table.waiting:
                await asyncio.sleep(0)
            assert successor.called == []
        await supervision
        assert set(successor.called) == {"stats"} and "wake" in other.called
        async with devices.hold("actor_train"):
            assert successor.called[-1] == other.called[-1] == "sleep"

    run(main())


def test_an_engine_that_dies_in_the_engines_turn_comes_back_before_a_trainer_that_waits():
    """The requests that have the devices wait for the engine: it is the only one."""

    async def main():
        devices = shared()
        fleet = make_fleet([Engine()], [Engine()], devices=devices)
        back = asyncio.Event()
        fleet.routing.append(Routes(back))
        async with fleet.turn():
            training = asyncio.create_task(take(devices, "actor_train"))
            while not devices.table.waiting:
                await asyncio.sleep(0)
            fleet.engines.workers[0].kill()
            await supervised(fleet, back.wait())
            assert not training.done()
        await training

    async def take(devices, role):
        async with devices.hold(role):
            pass

    run(main())


def test_an_engine_that_dies_as_it_is_put_to_sleep_is_replaced():
    async def main():
        brittle, successor = Engine(fails={"sleep": WorkerDied("gone")}), Engine()
        devices = shared()
        fleet = make_fleet([brittle], [successor], devices=devices)
        back = asyncio.Event()
        fleet.routing.append(Routes(back))
        async with devices.hold("actor_train"):
            assert fleet.fleet.states[0] is EngineState.DEAD and brittle.gone.is_set()
        await supervised(fleet, back.wait())
        assert set(successor.called) == {"stats"} and len(fleet.recovered_s) == 1

    run(main())


def test_engines_go_to_sleep_side_by_side():
    async def main():
        engines = [Engine(hangs=("sleep",)), Engine(hangs=("sleep",))]
        sleeping = asyncio.create_task(make_fleet(engines).sleep())
        while not all("sleep" in engine.called for engine in engines):
            await asyncio.sleep(0)
        sleeping.cancel()

    run(main())


def test_restarts_that_fail_say_why_and_leave_no_process_behind():
    async def main():
        cannot_load = Engine(fails={"stats": WorkerDied("out of memory")})
        fleet = make_fleet([Engine()], [cannot_load, WorkerStartError("no model folder")], max_restarts=2)
        fleet.engines.workers[0].kill()
        with pytest.raises(BaseExceptionGroup) as failed:
            await fleet.supervise()
        [error] = failed.value.exceptions
        assert isinstance(error, WorkersLost) and str(error).endswith("are used up; the last time: no model folder")
        assert cannot_load.gone.is_set()

    run(main())


def test_an_engine_without_a_node_stays_away_while_another_serves_and_comes_back_with_a_node(monkeypatch):
    async def main():
        monkeypatch.setattr(engine_fleet, "NODE_LOOK_S", 0.0)
        successor = Engine()
        fleet = make_fleet(
            [Engine(), Engine()], [NodeLost("node 1 is gone"), NodeLost("node 1 is gone"), successor], max_restarts=1
        )
        back = asyncio.Event()
        fleet.routing.append(Routes(back))
        fleet.engines.workers[1].kill()
        await supervised(fleet, back.wait())
        assert fleet.engines.workers[1] is successor and fleet.fleet.serving == [0, 1]
        assert fleet.fleet.restarts == 1, "looking for a node is no restart"

    run(main())


def test_when_the_last_engines_node_is_gone_the_run_ends_and_names_it():
    async def main():
        fleet = make_fleet([Engine()], [NodeLost("worker actor_infer-0 cannot start: node 1 of the run, 10.0.0.3, is gone")])
        fleet.engines.workers[0].kill()
        with pytest.raises(BaseExceptionGroup) as failed:
            await fleet.supervise()
        [error] = failed.value.exceptions
        assert isinstance(error, WorkersLost) and "no engine is left" in str(error) and "10.0.0.3" in str(error)

    run(main())


def test_an_engine_that_hangs_while_it_loads_is_given_up():
    async def main():
        hanging, successor = Engine(hangs=("stats",)), Engine()
        fleet = make_fleet([Engine()], [hanging, successor])
        back = asyncio.Event()
        fleet.routing.append(Routes(back))
        fleet.engines.workers[0].kill()
        await supervised(fleet, back.wait())
        assert hanging.gone.is_set() and fleet.engines.workers[0] is successor and fleet.fleet.restarts == 2

    run(main())


def test_an_answer_that_comes_after_the_engine_was_given_up_counts_for_nothing():
    async def main():
        engine = Engine()
        fleet = make_fleet([engine])
        await fleet.store.publish(WeightManifest(1), [])
        answer = engine.call

        async def call(method, *args):
            if method == "activate_weights":
                fleet.report(0, WorkerDied("did not answer a health check"))
                return 0.0
            return await answer(method, *args)

        engine.call = call
        assert await fleet.flip(1, [0]) == []
        assert (fleet.fleet.states[0], fleet.fleet.versions[0]) == (EngineState.DEAD, 0)

    run(main())


class Aside:
    """An engine that keeps what it receives, and refuses to serve anything else."""

    def __init__(self, name="engine"):
        self.name = name
        self.version, self.received = 0, []
        self.gone = asyncio.Event()

    async def call(self, method, *args):
        await asyncio.sleep(0)
        if self.gone.is_set():
            raise WorkerDied("gone")
        if method == "receive_bucket":
            self.received = [*(each for each in self.received if each[0] == args[0] and each != args), args]
        elif method == "activate_weights":
            assert sorted(self.received) == [(args[0].version, name) for name in sorted(args[0].names)]
            self.version, self.received = args[0].version, []
            return 0.0
        return EngineStats(version=self.version)

    async def died(self):
        await self.gone.wait()

    def kill(self):
        self.gone.set()


async def turns(count=50):
    for _ in range(count):
        await asyncio.sleep(0)


def kept(*names):
    return [KeptBucket(0, name, (name,), 0, 1) for name in names]


def test_a_version_that_was_sent_while_it_was_made_is_served_without_being_sent_again():
    async def main():
        engines = [Aside(), Aside()]
        fleet, coming, (a, b) = make_fleet(engines), Buckets(1), kept("a", "b")
        ahead = asyncio.create_task(fleet.send_ahead(coming, [0, 1]))
        coming.add(a)
        await turns()
        assert [engine.received for engine in engines] == [[(1, "a")]] * 2
        coming.add(b)
        coming.end(whole=True)
        await ahead
        await fleet.store.publish(manifest_of(1, [a, b]), [a, b])
        await fleet.send(1, [0, 1])
        assert [engine.received for engine in engines] == [[(1, "a"), (1, "b")]] * 2
        assert await fleet.flip(1, [0, 1]) == [0.0, 0.0] and fleet.fleet.version == 1

    run(main())


def test_what_was_sent_of_a_version_whose_gathering_failed_is_never_served():
    async def main():
        engine = Aside()
        fleet, coming, (a, b, c) = make_fleet([engine]), Buckets(1), kept("a", "b", "c")
        coming.add(a)
        coming.end(whole=False)
        await fleet.send_ahead(coming, [0])
        with pytest.raises(VersionGone):
            await fleet.flip(1, [0])
        await fleet.store.publish(manifest_of(1, [a, b, c]), [a, b, c])
        await fleet.flip(1, [0])
        assert engine.version == 1, "the part that it had did not count as the whole"

    run(main())


@pytest.mark.parametrize("dies", ["between two buckets", "after the last"])
def test_an_engine_that_dies_while_a_version_is_made_comes_back_with_what_others_serve_and_gets_it_whole(dies):
    async def main():
        lost, other, successor = Aside(), Aside(), Aside()
        fleet, coming, (a, b) = make_fleet([lost, other], [successor]), Buckets(1), kept("a", "b")
        back = asyncio.Event()
        fleet.routing.append(Routes(back))
        supervision = asyncio.create_task(supervised(fleet, asyncio.Event().wait()))
        ahead = asyncio.create_task(fleet.send_ahead(coming, [0, 1]))
        coming.add(a)
        if dies == "after the last":
            coming.add(b)
        await turns()
        lost.kill()
        await back.wait()
        assert not ahead.done(), "who starts does not wait for the trainer"
        if dies == "between two buckets":
            coming.add(b)
        coming.end(whole=True)
        await ahead
        assert (successor.received, fleet.fleet.states[0]) == ([], EngineState.SERVING)
        await fleet.store.publish(manifest_of(1, [a, b]), [a, b])
        await fleet.send(1, [0, 1])
        await fleet.flip(1, [0, 1])
        assert (successor.version, other.version, fleet.fleet.restarts) == (1, 1, 1)
        supervision.cancel()

    run(main())
