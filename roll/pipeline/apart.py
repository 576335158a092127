"""One half of a run in a process of its own: what stands in the place of the other half, which is in other processes.

The halves meet in the groups' database, which says who takes part, which version is the newest and how the run ended, and in the
folder of weights.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from roll.configs.ppo import PPOConfig
from roll.metrics.trace import Trace
from roll.pipeline.engine_fleet import WEIGHTS, EngineFleet
from roll.pipeline.run_record import RunRecord
from roll.pipeline.schedule import StepSchedule
from roll.pipeline.trainer import Trainer
from roll.pipeline.validation import ValidationResult
from roll.pipeline.weight_updates import EngineUpdates, UpdateStats
from roll.rollout.changes import Closed
from roll.rollout.groups import Groups
from roll.rollout.sql.groups import SqlGroups
from roll.weights.directory import DirectoryWeightStore, WeightFolder
from roll.weights.gather import NewWeights
from roll.weights.store import WeightStore


def shared_weights(config: PPOConfig) -> WeightFolder:
    return WeightFolder(Path(config.shared_dir).resolve() / WEIGHTS)


class Publisher:
    """The trainer's side: versions are published for explorers to take when they are ready, and their validations recorded."""

    def __init__(self, store: WeightStore, groups: Groups, record: RunRecord, known: int) -> None:
        """`known`: the number of the last change of the database that the record knows."""
        assert isinstance(groups, SqlGroups) and isinstance(store, DirectoryWeightStore), "the rules of `mode` see to it"
        self._store = store
        self._groups = groups
        self._record = record
        self._known = known
        self.stats = UpdateStats()

    def counts(self) -> dict[str, float]:
        return {"scheduler/explorers": float(len(self._groups.explorers))}

    async def begin(self, trainer: Trainer, version: int) -> None:
        """Explorers that join later find the version that training begins with."""
        if not self._store.has(version):
            weights = await trainer.gather_weights(version)
            await self._store.publish(weights.manifest, weights.buckets)

    async def publish(self, weights: NewWeights) -> None:
        version = weights.manifest.version
        await self._store.publish(weights.manifest, weights.buckets)
        await self._groups.set_published(version)
        self.stats.published += 1
        self.stats.bytes += weights.manifest.nbytes
        await self._store.retain({version, *self._groups.explorers.values()})

    async def record_validations(self) -> None:
        """Runs as long as the run does."""
        while True:
            await self._record_validations()
            await self._groups.until(lambda: self._groups.known > self._known)

    async def farewell(self) -> None:
        """All steps are done: explorers are told, validate the last version, and leave."""
        await self._groups.conclude("finished", "")
        attending = asyncio.create_task(self._groups.attend())
        alone = asyncio.create_task(self._groups.until(lambda: not self._groups.explorers))
        try:
            await asyncio.wait([attending, alone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (attending, alone):
                task.cancel()
        await self._record_validations()

    async def _record_validations(self) -> None:
        self._known, results = await self._groups.validation_results(self._known)
        for result in results:
            self._record.add_validation(ValidationResult.from_json(result), ())


class FollowedWeights(EngineUpdates):
    """An explorer's side: its engines take what a trainer of another process publishes."""

    def __init__(self, engines: EngineFleet, groups: Groups, schedule: StepSchedule, trace: Trace) -> None:
        assert isinstance(groups, SqlGroups), "the rules of `mode` see to it"
        super().__init__(engines, groups, schedule, trace)
        self._sql = groups
        self._looked_at = -1
        """The newest version of which it is known whether this process validates it."""

    async def follow(self) -> None:
        """Runs as long as the run does."""
        while True:
            await self._sql.until(lambda: self._sql.admission.newest > self._pulls.newest)
            version = self._sql.admission.newest
            self._pulls.publish(version, self._schedule.awaits(version) or self._sql.ended is not None)
            self._sql.changes.notify()

    async def next_due(self) -> int:
        """The next version that is this process's to validate, when all its engines serve it. Raises `Closed` at the end of the
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
        if not self._sql.stopped or self._held:
            return False
        well = self._sql.ended is not None and self._sql.ended[0] == "finished"
        return not well or self._served >= self._sql.admission.newest
