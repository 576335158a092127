"""Whatever dies, hangs, fails or comes late, a run keeps its promises; and were one broken, the schedules would find it."""

import asyncio
import itertools
import os
from dataclasses import replace

import pytest
from fault_schedules import Fault, Schedule, broken_promises, schedules
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import NoSuchExample

import roll.pipeline.clusters
from roll.distributed.device_locks import LockTable
from roll.engines.engine_fleet import EngineFleet
from roll.rollout.admission import Admission
from roll.rollout.fleet import WeightPulls
from roll.rollout.groups import Groups
from roll.rollout.rollout import RolloutClient
from roll.rollout.router import Router
from roll.trainer.trainer import Trainer

COUNT = int(os.environ.get("ROLL_SCHEDULES", "60"))
"""Of schedules: `ROLL_SCHEDULES=10000 pytest tests/simulate/test_faults.py` takes half an hour."""
TO_FIND = 150
"""Schedules, at most, that find a mutation."""
QUIET = Schedule(
    seed=1, engines=2, trainers=1, steps=4, batch=3, ratio=1.0, save_steps=2, eval_steps=2, push=1, pull=0, redundant=0,
    policy="wait", mode="interrupt", expand=False, on_arrival=False, shared=False, latency_s=0.05, pass_rate=0.5,
    train_s=1.5, faults=(),
)  # fmt: skip


@settings(max_examples=COUNT, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_no_schedule_of_faults_breaks_a_promise(memory_folder, schedule):
    assert broken_promises(schedule, memory_folder) == []


def test_a_schedule_replays_exactly(memory_folder):
    deaths = (
        Fault(5.0, "engine dies", 1),
        Fault(9.0, "trainer dies", 0),
        Fault(14.0, "signal", 0),
        Fault(20.0, "engine hangs", 0),
    )
    schedule = replace(QUIET, faults=deaths, latency_s=1.0)
    journals = []
    for place in ("once", "again"):
        folder = memory_folder / place
        assert broken_promises(schedule, folder) == []
        journals.append([(folder / "run" / f"{name}.jsonl").read_text() for name in ("groups", "metrics")])
    assert journals[0] == journals[1], "every fate and every figure, to the last digit of a second"


@pytest.mark.parametrize("ratio", [0.0, 2.0])
def test_an_engine_that_is_lost_while_it_loads_after_the_trainers_restart_is_replaced(memory_folder, ratio):
    """The weights that it is to load fail right after the trainer has died."""
    faults = (Fault(7.9, "weights fail", 0), Fault(8.0, "weights fail", 1), Fault(8.0, "trainer dies", 0))
    assert broken_promises(replace(QUIET, ratio=ratio, faults=faults), memory_folder) == []


# -- mutations of the production code: each is a mistake that somebody could make ------------------------------------------


def admission_off_by_one(patch):
    room = Admission._room
    patch.setattr(Admission, "_room", lambda self, version, depth: room(self, version, depth) + 1)


def admission_forgets_the_bound(patch):
    patch.setattr(Admission, "_others_fit", lambda *_: True)
    room = Admission._room
    patch.setattr(Admission, "_room", lambda self, version, depth: room(self, version + 1, depth))


def a_ticket_is_not_given_back(patch):
    def drop(self, group_id, reason):
        self._remove(self._ticket(group_id))
        self.dropped[reason] += 1
        self.admitted += 1
        self.trained += 1

    patch.setattr(Admission, "drop", drop)


def a_place_is_not_given_back(patch):
    release, count = Router.release, itertools.count(1)

    def forgetful(self, route, preempted=False):
        engine = route.engine
        granted = release(self, route, preempted)
        if engine is not None and next(count) % 3 == 0:
            self.load[engine] += route.samples
        return granted

    patch.setattr(Router, "release", forgetful)


def a_notification_is_lost(patch):
    set_served = Groups.set_served

    async def silently(self, version):
        notify, self.changes.notify = self.changes.notify, lambda: None
        try:
            await set_served(self, version)
        finally:
            self.changes.notify = notify

    patch.setattr(Groups, "set_served", silently)


def a_group_starts_under_the_newest_version_instead_of_the_served(patch):
    start = Admission.start
    patch.setattr(Admission, "start", lambda self, version=None: start(self, self.newest if version is None else version))


def an_engine_comes_back_with_the_weights_it_began_with(patch):
    async def load(self, engine):
        await self.engines.call(engine, "stats")
        self.fleet.verified(engine, self.fleet.version)

    patch.setattr(EngineFleet, "_load", load)


def a_dead_engine_is_not_reported(patch):
    patch.setattr(RolloutClient, "_report", lambda *_: None)
    patch.setattr(EngineFleet, "_replace", lambda self, engine: asyncio.Event().wait())
    patch.setattr(EngineFleet, "_check", lambda self, engine: asyncio.sleep(0))


def a_group_is_leased_twice(patch):
    patch.setattr(Groups, "_select", lambda self, step, some: self.admission.select(step, (), some))


def weights_are_gathered_before_they_are_trained(patch):
    async def train(self, step):
        weights = await self.gather_weights(step.number + 1)
        await self.update(step)
        await self.gather(step)
        return weights

    patch.setattr(Trainer, "train", train)


def the_checkpoint_is_not_loaded(patch):
    async def load(*_):
        return None

    patch.setattr(roll.pipeline.clusters, "_load", load)


def the_checkpoint_loses_a_group(patch):
    buffered = Groups.buffered
    patch.setattr(Groups, "buffered", lambda self: buffered(self)[1:])


def tasks_in_flight_are_not_served_again(patch):
    state = Groups.state

    def forgetful(self):
        found = state(self)
        found["cursor"]["returned"] = []
        return found

    patch.setattr(Groups, "state", forgetful)


def a_version_is_thrown_away_too_early(patch):
    patch.setattr(WeightPulls, "needed", property(lambda self: frozenset({self.newest})))


def devices_are_not_given_back(patch):
    release = LockTable.release

    def forgetful(self, request):
        if request.role != "actor_train":
            release(self, request)

    patch.setattr(LockTable, "release", forgetful)


def a_served_version_is_the_newest_instead_of_the_oldest(patch):
    from roll.rollout.fleet import Fleet

    def settle(self):
        self.version = max((self.versions[replica] for replica in self.serving), default=self.version)

    patch.setattr(Fleet, "_settle", settle)


MUTATIONS = [
    admission_off_by_one,
    admission_forgets_the_bound,
    a_ticket_is_not_given_back,
    a_place_is_not_given_back,
    a_notification_is_lost,
    a_group_starts_under_the_newest_version_instead_of_the_served,
    an_engine_comes_back_with_the_weights_it_began_with,
    a_dead_engine_is_not_reported,
    a_group_is_leased_twice,
    weights_are_gathered_before_they_are_trained,
    the_checkpoint_is_not_loaded,
    the_checkpoint_loses_a_group,
    tasks_in_flight_are_not_served_again,
    a_version_is_thrown_away_too_early,
    devices_are_not_given_back,
    a_served_version_is_the_newest_instead_of_the_oldest,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.replace("_", " "))
def test_the_schedules_find_a_mutation_of_the_production_code(memory_folder, monkeypatch, mutation):
    mutation(monkeypatch)
    once = settings(max_examples=TO_FIND, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    try:
        schedule = find(schedules(), lambda schedule: bool(broken_promises(schedule, memory_folder)), settings=once)
    except NoSuchExample:
        pytest.fail(f"{TO_FIND} schedules do not find it")
    print(schedule, *broken_promises(schedule, memory_folder), sep="\n  ")
