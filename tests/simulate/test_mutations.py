"""Mistakes that somebody could make in the production code: the schedules of faults find each of them."""

import ast
import asyncio
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fault_schedules import Fault, schedules
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample
from party import broken_promises_of, parties
from promises import broken_promises

import roll
import roll.core.pipeline.clusters
from roll.core.distributed.device_locks import LockTable
from roll.core.engines.engine_fleet import EngineFleet
from roll.core.engines.fleet import Fleet, WeightPulls
from roll.core.engines.rollout_client import RolloutClient
from roll.core.engines.router import Router
from roll.core.engines.weight_updates import WeightUpdates
from roll.core.flow.stage import Channel
from roll.core.groups.admission import Admission
from roll.core.groups.changes import Changes
from roll.core.groups.groups import Groups
from roll.core.groups.memory_groups import MemoryGroups
from roll.core.trainer.trainer import Trainer
from roll.topologies.sql.admittance import LifeSigns

TO_FIND = 150
"""Schedules, at most, that find a mutation."""


def admission_off_by_one(patch):
    room = Admission._room
    patch.setattr(Admission, "_room", lambda self, version, depth: room(self, version, depth) + 1)


def admission_forgets_the_bound(patch):
    patch.setattr(Admission, "_shortage", lambda *_: None)
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
            self.load[engine] += 1
        return granted

    patch.setattr(Router, "release", forgetful)


def a_group_starts_under_the_newest_version_instead_of_the_served(patch):
    patch.setattr(Admission, "earliest", lambda self, versions: self.newest)


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

    patch.setattr(roll.core.pipeline.clusters, "_load", load)


def the_checkpoint_loses_a_group(patch):
    buffered = MemoryGroups.buffered
    patch.setattr(MemoryGroups, "buffered", lambda self: buffered(self)[1:])


def tasks_in_flight_are_not_served_again(patch):
    state = MemoryGroups.state

    def forgetful(self):
        found = state(self)
        found["cursor"]["returned"] = []
        return found

    patch.setattr(MemoryGroups, "state", forgetful)


def a_version_is_thrown_away_too_early(patch):
    patch.setattr(WeightPulls, "needed", property(lambda self: frozenset({self.newest})))


def a_version_comes_ahead_between_another_and_its_flip(patch):
    async def send(self):
        coming, self._coming = self._coming, None
        await self._engines.send_ahead(coming, self._ahead(coming.version))

    patch.setattr(WeightUpdates, "_send_coming", send)


def devices_are_not_given_back(patch):
    release = LockTable.release

    def forgetful(self, request):
        if request.role != "actor_train":
            release(self, request)

    patch.setattr(LockTable, "release", forgetful)


def a_served_version_is_the_newest_instead_of_the_oldest(patch):
    def settle(self):
        self.version = max((self.versions[replica] for replica in self.serving), default=self.version)

    patch.setattr(Fleet, "_settle", settle)


def whoever_got_a_place_is_not_told(patch):
    release = Router.release

    def silently(self, route, preempted=False):
        release(self, route, preempted)
        return []

    patch.setattr(Router, "release", silently)


def whoever_waits_for_an_engine_is_not_told_that_it_is_back(patch):
    patch.setattr(RolloutClient, "open", lambda self, engine: self._router.open(engine))


def whoever_waits_for_devices_is_not_told(patch):
    patch.setattr(asyncio.Condition, "notify_all", lambda self: None)


def whoever_receives_is_not_told_of_the_end(patch):
    patch.setattr(Channel, "close", lambda self: None)


def deaths(kind):
    return tuple(Fault(5.0 + 3 * i, kind, i) for i in range(6))


APART = {"shared": False, "on_arrival": False, "push": 1}
AHEAD = {**APART, "ratio": 2.0}
COPY = {**AHEAD, "copy": "0"}
PLAIN = {**AHEAD, "policy": "wait", "newest_first": False, "reuse": 1, "copy": ""}
PULLED = {**PLAIN, "pull": 2, "engines": 3, "steps": 5, "train_s": 0.5, "eval_steps": 100}
"""Engines serve different versions."""
VALIDATED = {**AHEAD, "eval_steps": 2, "train_s": 0.5, "validated": 12}
"""Versions wait for a validation of the one before."""
SHARED = {"ratio": 0.0, "push": 1, "shared": True}
SIGNALS = tuple(Fault(at_s, "signal", 0) for at_s in (30.0, 50.0, 65.0))
RESUMED = {**PLAIN, "steps": 5, "save_steps": 1, "train_s": 6.0, "latency_s": 0.0, "faults": SIGNALS}
MUTATIONS = {
    admission_off_by_one: {},
    admission_forgets_the_bound: {},
    a_ticket_is_not_given_back: {},
    a_place_is_not_given_back: {},
    a_group_starts_under_the_newest_version_instead_of_the_served: PULLED,
    an_engine_comes_back_with_the_weights_it_began_with: {**PLAIN, "steps": 5, "faults": deaths("engine dies")},
    a_dead_engine_is_not_reported: {},
    a_group_is_leased_twice: {},
    weights_are_gathered_before_they_are_trained: {},
    the_checkpoint_is_not_loaded: RESUMED,
    the_checkpoint_loses_a_group: RESUMED,
    tasks_in_flight_are_not_served_again: RESUMED,
    a_version_is_thrown_away_too_early: PULLED,
    a_version_comes_ahead_between_another_and_its_flip: VALIDATED,
    devices_are_not_given_back: SHARED,
    a_served_version_is_the_newest_instead_of_the_oldest: PULLED,
    whoever_got_a_place_is_not_told: {},
    whoever_waits_for_an_engine_is_not_told_that_it_is_back: {**PLAIN, "engines": 1, "steps": 5, "faults": deaths("engine dies")},
    whoever_waits_for_devices_is_not_told: SHARED,
    whoever_receives_is_not_told_of_the_end: {},
}
"""And what a schedule has that shows the mutation; with {}, any few dozen do."""


def an_explorer_that_is_killed_is_never_missed(patch):
    patch.setattr(LifeSigns, "look", lambda self, beats, now, replaceable=(): [])


OF_PARTIES = [an_explorer_that_is_killed_is_never_missed]

NOTIFIES = {
    "Groups.complete": {},
    "Groups.drop": {},
    "Groups.set_published": AHEAD,
    "Groups.set_served": {},
    "Groups.stop": {},
    "EngineUpdates.release": VALIDATED,
    "WeightUpdates.publish": {},
    "EngineFleet._restart": {**AHEAD, "synchronous_after": 1},
    "PolicyCopy.follow": COPY,
    "Milestones.passed": {},
    "ReplacedWorkers._replace": {**AHEAD, "synchronous_after": 1, "faults": deaths("judge dies")},
}
"""Where those are woken that wait for a change, and what a schedule has that shows that it is lost."""
SELDOM = (
    *("Groups.start", "Groups._take", "PolicyCopy.scored"),
    *("EngineFleet._close", "EngineFleet._doubt", "EngineFleet._open"),
)
"""Forty schedules have not shown what it costs if one of these is lost: another comes before anybody has slept for long."""
OTHERS = {
    "Groups._changed": "each of its callers is above",
    "Groups._tell": "the step is counted right after it (Milestones.passed)",
    "Groups.trained": "the step is passed right after it (Milestones.passed)",
    "PolicyCopy.publish": "the version is published right after it",
    "Groups.go_synchronous": "nobody can go on because less may start",
    "EngineUpdates.group_ended": "the group is kept or dropped right after it",
    "MemoryGroups.restore": "nobody waits yet",
    "Groups.drop_all": "nobody waits any more",
    "SqlGroups.join": "processes",
    "SqlGroups._transaction": "processes",
    "SqlGroups.keep_in_sync": "processes",
    "FollowedWeights.follow": "processes",
    "ModelsInTurn.next_version": "evaluation",
    "RecordedGroups.trained": "a replay has nobody else who waits",
}


def notification_lost(place):
    def mutation(patch):
        notify = Changes.notify

        def forgetful(self):
            frame = sys._getframe(1)
            if frame.f_code.co_qualname == "Groups._changed":
                frame = frame.f_back
            if frame.f_code.co_qualname != place:
                notify(self)

        patch.setattr(Changes, "notify", forgetful)

    return mutation


def found_by(folder, some, broken=broken_promises, most=TO_FIND):
    """Schedules find what was done to the code; the first that does, and the promises that it breaks, are printed."""
    once = settings(max_examples=most, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    try:
        schedule = find(some, lambda schedule: bool(broken(schedule, folder)), settings=once)
    except NoSuchExample:
        pytest.fail(f"{most} schedules do not find it")
    print(schedule, *broken(schedule, folder), sep="\n  ")


def test_no_place_is_forgotten_that_wakes_somebody():
    found = set()
    for file in Path(roll.__file__).parent.rglob("*.py"):
        classes = [each for each in ast.parse(file.read_text()).body if isinstance(each, ast.ClassDef)]
        methods = [
            (each.name, one) for each in classes for one in each.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for name, method in methods:
            called = {ast.unparse(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)}
            if any(one.endswith(("hanges.notify", "self._changed")) for one in called):
                found.add(f"{name}.{method.name}")
    assert found == {*NOTIFIES, *SELDOM, *OTHERS}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.replace("_", " "))
def test_the_schedules_find_a_mutation_of_the_production_code(memory_folder, monkeypatch, mutation):
    mutation(monkeypatch)
    found_by(memory_folder, schedules().map(lambda schedule: replace(schedule, **MUTATIONS[mutation])))


@pytest.mark.slow
@pytest.mark.parametrize("place", NOTIFIES)
def test_the_schedules_find_a_notification_that_is_lost(memory_folder, monkeypatch, place):
    notification_lost(place)(monkeypatch)
    found_by(memory_folder, schedules().map(lambda schedule: replace(schedule, **NOTIFIES[place])))


@pytest.mark.slow
@pytest.mark.parametrize("mutation", OF_PARTIES, ids=lambda mutation: mutation.__name__.replace("_", " "))
def test_the_schedules_find_a_mutation_of_what_processes_share(memory_folder, monkeypatch, mutation):
    mutation(monkeypatch)
    found_by(memory_folder, parties(), broken_promises_of, most=40)
