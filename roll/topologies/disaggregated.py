"""A disaggregated run: the trainer is a process of its own, and each explorer is one.

They meet in the groups' database, which has the processes, the newest version and the end of the run, and in the folder of
weights, which holds the versions, or the address where the trainer serves them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace

from roll.core.configs.derived import Derived
from roll.core.configs.ppo import PPOConfig
from roll.core.engines.engine_fleet import EngineFleet
from roll.core.engines.policy_copy import PolicyCopy
from roll.core.engines.weight_updates import EngineUpdates, UpdateStats
from roll.core.errors import Closed
from roll.core.flow.stage import AnyStage
from roll.core.groups.schedule import StepSchedule
from roll.core.pipeline.stages import NO_PARTS, Parts, announcing, exploring, training, validating
from roll.core.pipeline.topology import Rollouts, Topology, Watchers, WithTrainer
from roll.core.record.callbacks import Reports
from roll.core.record.trace import Trace
from roll.core.record.validation import ValidationResult
from roll.core.trainer.trainer import Trainer
from roll.core.weights.store import WeightStore
from roll.core.weights.transport import NewWeights, followed_weights, published_weights
from roll.topologies.rejoining import ExplorerRecovery
from roll.topologies.serving import served_at
from roll.topologies.shared_groups import shared_groups
from roll.topologies.sql.groups import SqlGroups

logger = logging.getLogger(__name__)


async def attended(groups: SqlGroups, *works: Coroutine[object, object, object]) -> None:
    """Works until the first of these is done, while this process goes on taking part in the run."""
    tasks = [asyncio.ensure_future(each) for each in (*works, groups.keep_in_sync())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_over(groups: SqlGroups) -> bool:
    """Returns True if nothing is left to do; a trainer that has done all steps waits for its last version to be validated."""
    well = groups.ended is not None and groups.ended[0] == "finished"
    return groups.stopped and not (well and groups.accompanied)


class Publisher:
    """The trainer's side: versions are published for explorers to take when they are ready, and their validations recorded."""

    def __init__(
        self, store: WeightStore, groups: SqlGroups, reports: Reports, known: int, copy: PolicyCopy | None = None
    ) -> None:
        """`known`: the number of the last change of the database that the record knows. `copy`: a copy of the policy that takes
        versions, too."""
        self._store = store
        self._copy = copy
        self._groups = groups
        self._reports = reports
        self._known = known
        self.stats = UpdateStats()

    def counts(self) -> dict[str, float]:
        return {"scheduler/explorers": float(len(self._groups.explorers))}

    async def begin(self, trainer: Trainer, version: int) -> None:
        """Publishes the version that training begins with, if the one published before is gone, or older: explorers that join
        find one. Its files may be there already: a database that was restored knows less than the folder has."""
        newest = self._groups.admission.newest
        if not self._store.has(version) and (version > newest or not self._store.has(newest)):
            weights = await trainer.gather_weights(version)
            await self._store.publish(weights.manifest, weights.buckets)
        if version > newest:
            await self._groups.set_published(version)
        await self._retain()

    async def publish(self, weights: NewWeights) -> None:
        version = weights.manifest.version
        await self._store.publish(weights.manifest, weights.buckets)
        if self._copy is not None:
            self._copy.publish(version)
        await self._groups.set_published(version)
        self.stats.published += 1
        self.stats.bytes += weights.manifest.nbytes
        await self._retain()

    async def record_validations(self) -> None:
        """Runs as long as the run does."""
        while True:
            await self._record_validations()
            await self._groups.until(lambda: self._groups.known > self._known)

    async def farewell(self) -> None:
        """Tells the explorers that all steps are done: they validate the last version, and leave."""
        await self._groups.announce_end("finished", "")
        await attended(self._groups, self._groups.until(lambda: not self._groups.explorers))
        await self._record_validations()

    async def _retain(self) -> None:
        """Keeps all versions from the oldest served one on: explorers may be loading any newer one."""
        newest, own = self._groups.admission.newest, self._copy.needed if self._copy is not None else frozenset()
        await self._store.retain(range(min([newest, *self._groups.explorers.values(), *own]), newest + 1))

    async def _record_validations(self) -> None:
        self._known, results = await self._groups.validation_results(self._known)
        for result in results:
            validated = ValidationResult.from_json(result)
            if validated.version in self._reports.record.validated:
                continue  # it ended after the checkpoint that the run goes on from, of a step before that
            await self._reports.validation(validated, ())


class FollowedWeights(EngineUpdates):
    """An explorer's side: its engines take the versions that a trainer of another process publishes."""

    def __init__(self, engines: EngineFleet, groups: SqlGroups, schedule: StepSchedule, trace: Trace) -> None:
        super().__init__(engines, groups, schedule, trace)
        self._sql = groups
        self._looked_at = -1
        """The newest version for which it is decided whether this process validates it."""

    async def begin(self) -> bool:
        """Brings engines without weights the version that exploring begins with; False if the run is over before. There may be
        no engine that serves it: one that is lost meanwhile is replaced when exploring has begun."""
        await attended(self._sql, self._engines.load(), self._sql.until(lambda: is_over(self._sql)))
        return not is_over(self._sql)

    async def follow(self) -> None:
        """Runs as long as the run does."""
        while True:
            await self._sql.until(lambda: self._sql.admission.newest > self._pulls.newest)
            version = self._sql.admission.newest
            self._pulls.publish(version, self._schedule.awaits(version) or self._sql.ended is not None)
            self._sql.changes.notify()

    async def next_version(self) -> int:
        """Returns the next version for this process to validate, when all its engines serve it. Raises `Closed` at the end of the
        run."""
        while True:
            await self._sql.until(lambda: self._due_for_validation or self._is_over)
            if not self._due_for_validation:
                raise Closed
            self._looked_at = self._served
            if await self._sql.claims_validation(self._served):
                return self._served
            self.release()

    @property
    def _due_for_validation(self) -> bool:
        return self._held and self._served > self._looked_at

    @property
    def _is_over(self) -> bool:
        """A run that ended well has its last version validated."""
        done = self._sql.stopped and self._served >= self._sql.admission.newest
        return not self._held and (done or is_over(self._sql))


class TrainerProcess(WithTrainer):
    """A trainer whose explorers are processes of their own."""

    @staticmethod
    def stages(rollouts: Rollouts, config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        return [training(parts.trainer, parts.publisher, derived, config.roles())]

    async def open(self) -> bool:
        config, state = self._config, self._state
        at = served_at(config)
        self._store = published_weights(config, self._backend, state.first_step, state.identity.id, *at)
        self._open_copy(self._store)
        self._open_trainer(self._store, lambda coming: None)
        self.weights = self.counter = Publisher(self._store, shared_groups(state.groups), state.reports, state.known, self._copy)
        self.updates = self.weights.stats
        self.parts = replace(NO_PARTS, trainer=self.trainer, publisher=self.weights)
        await self.weights.begin(self.trainer, state.first_step)
        return True

    def watchers(self) -> Watchers:
        return [self.weights.record_validations(), *super().watchers()]

    async def close(self) -> str:
        if not self._state.ends_early or self._state.stopped_in_order:
            await self.weights.farewell()
        self._store.close()
        return ""


class ExplorerProcess(Topology):
    """An explorer whose trainer and fellow explorers are processes of their own."""

    recovery = ExplorerRecovery

    @staticmethod
    def stages(rollouts: Rollouts, config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        explore = exploring(parts.explorer, rollouts(config, parts.explorer))
        return [explore, [announcing(parts.versions), validating(parts.explorer)]]

    async def open(self) -> bool:
        state = self._state
        version = state.groups.admission.newest
        empty = self._prepared.derived.engines_start_empty or state.engines_are_stale or version > 0
        source = followed_weights(self._config, state.identity.id, self._backend)
        self.engines = engines = self._fleet(source, version, empty)
        self.weights = FollowedWeights(engines, shared_groups(state.groups), state.schedule, state.record.files.trace)
        self.updates = self.weights.stats
        if not await self.weights.begin():
            return False
        self.explorer = self.counter = explorer = await self._explorer(engines, self.weights)
        self.parts = replace(NO_PARTS, explorer=explorer, versions=self.weights)
        return True

    def watchers(self) -> Watchers:
        assert self.engines is not None
        return [self.engines.supervise(), self.weights.run(), self.weights.follow(), self._state.mirror_steps()]

    async def close(self) -> str:
        status, reason = self._state.groups.ended or ("", "")
        if status == "failed":
            raise RuntimeError(f"the trainer failed: {reason}")
        return f"the trainer stopped: {reason}" if status == "stopped" else ""
