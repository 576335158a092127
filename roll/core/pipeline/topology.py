"""The topology of a process of a run: its components, one topology for each `mode`.

| mode | groups lie | weights go | its stages | it ends when |
|---|---|---|---|---|
| both | in memory or a database | from the trainer through a store to its own engines | both sides | all steps are trained |
| train | in a database | to a folder that explorers read | the training side | that is so, and all explorers have left |
| explore | in a database | from that folder to its own engines | the rollout side | the trainer ended, versions are validated |
| replay | in memory, as another run recorded them | nowhere | the training side | all steps are trained |
| bench | – | from folders of models, one after another | validation | the last model is evaluated |
| (warm start) | as both | as both; its first steps train rows of a file, `warm_steps` | both sides | all steps are trained |
| (rows) | in memory | nowhere, or to engines that are asked what rows ask, `from_rows` | rows, training | all steps are trained |

The first is here; the others are loaded by name.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar

from roll.core.configs.derived import Derived
from roll.core.configs.dotted_path import import_object
from roll.core.configs.plain import JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.distributed.backend import Backend
from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.engines.engine_fleet import EngineFleet, FleetRules
from roll.core.engines.fleet import Fleet
from roll.core.engines.policy_copy import ROLE, PolicyCopy
from roll.core.engines.weight_updates import EngineUpdates, UpdateStats, WeightUpdates
from roll.core.errors import LOST
from roll.core.explorer.explorer import Exploration, Explorer
from roll.core.flow.custom_stage import CustomStage, insert, singles
from roll.core.flow.stage import AnyStage
from roll.core.pipeline.last_checkpoint import saved_or_why_not, unreachable
from roll.core.pipeline.prepared import EvaluatedModel, Prepared
from roll.core.pipeline.recovery import Recovery, TrainerRecovery
from roll.core.pipeline.roles import loss_spec
from roll.core.pipeline.stages import NO_PARTS, Parts, exploring, training, validating
from roll.core.pipeline.state import RunState
from roll.core.record.ledger import Ledger
from roll.core.record.run_record import Counter
from roll.core.record.validation import ValidationResult
from roll.core.trainer.checkpoint_writer import CheckpointWriter
from roll.core.trainer.on_arrival import TrainerOnArrival
from roll.core.trainer.trainer import Trainer, Training
from roll.core.weights.store import Buckets, WeightSource, WeightStore
from roll.core.weights.transport import broadcast, weight_store

TOPOLOGIES = {
    "both": "roll.core.pipeline.topology.SingleDriver",
    "train": "roll.topologies.disaggregated.TrainerProcess",
    "explore": "roll.topologies.disaggregated.ExplorerProcess",
    "bench": "roll.topologies.evaluation.EvalOnly",
    "replay": "roll.topologies.replay.replayed_trainer.ReplayedTrainer",
    "warm_start": "roll.topologies.rows.warm_start.WarmStarted",
    "rows": "roll.topologies.rows.from_rows.FromRows",
    "answered_rows": "roll.topologies.rows.answered.AnsweredRows",
}
"""`mode`, or rows for a run of any mode that trains rows of a file -> the class of its topology."""
Rollouts = Callable[[Any, Any], list[AnyStage]]
"""Makes the stages from an admitted group to samples with rewards, for a configuration and its explorer."""
Watchers = list[Coroutine[object, object, None]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The run around a topology, and all that it knows of it."""

    config: PPOConfig
    prepared: Prepared
    state: RunState
    devices: DeviceLocks
    backend: Backend
    explorer: Callable[[Exploration, Mapping[str, Cluster], EngineFleet, Ledger], Awaitable[Explorer]]
    """Makes the explorer of this kind of run."""
    accelerators: bool
    """True if devices are no CPU slots."""


class Topology(ABC):
    """The components of a process, from `open` to `close`."""

    recovery: ClassVar[type[Recovery]] = Recovery
    parts: Parts
    """Set by `open`."""
    engines: EngineFleet | None = None
    explorer: Explorer | None = None
    updates: UpdateStats
    counter: Counter
    """Counter whose running totals are metrics of each step."""

    def __init__(self, around: Surroundings, clusters: Mapping[str, Cluster]) -> None:
        self._config, self._prepared, self._state = around.config, around.prepared, around.state
        self._devices, self._backend = around.devices, around.backend
        self._around = around
        self._clusters = clusters
        self.ledger = Ledger(monotonic(), self._state.record.files.trace)

    # -- what a mode gives ------------------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def stages(rollouts: Rollouts, config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        """Returns the lists of stages that run side by side."""

    @abstractmethod
    async def open(self) -> bool:
        """Makes the parts. Afterwards the first version is served, or available. False: the run is over, and has no stages."""

    @staticmethod
    def summary(figures: JsonObject, models: Sequence[EvaluatedModel], results: Sequence[ValidationResult]) -> JsonObject:
        """Returns the figures for summary.json, as this mode has them. `models`: those of `mode: bench`."""
        return figures

    def until(self, sides: Sequence[Sequence[AnyStage]]) -> Sequence[AnyStage]:
        """Returns the stages whose end is the end of the process."""
        return [stage for side in sides for stage in side]

    def begin(self, sides: Sequence[Sequence[AnyStage]]) -> None:  # noqa: B027  (most modes have nothing to do)
        """Called when the stages are joined, and about to run."""

    def watchers(self) -> Watchers:
        """Returns coroutines that run beside the stages."""
        return []

    def checkpoints(self) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    def finishing(self, sides: Sequence[Sequence[AnyStage]]) -> Sequence[AnyStage]:
        """Returns the stages that do the work `finish` waits for."""
        return []

    async def finish(self) -> None:  # noqa: B027
        """Called when the run has failed; the stages go on until this returns."""

    async def keep(self, error: Exception) -> None:  # noqa: B027
        """Called when the run has failed, by `error`, and its stages have ended; checkpoints can still be written."""

    async def end(self) -> None:  # noqa: B027
        """Called when all stages have done their work; checkpoints can still be written."""

    async def close(self) -> str:
        """Called when the run has ended. Returns why it stopped before its end; empty if it did not."""
        return ""

    def release(self) -> None:  # noqa: B027
        """Frees resources outside of this process's memory, however the run ended."""

    # -- how ----------------------------------------------------------------------------------------------------------------

    def sides(self, rollouts: Rollouts) -> list[list[AnyStage]]:
        """Returns the stages of the rollout side and of the training side, with the user's own among them."""
        stages = self.stages(rollouts, self._config, self._prepared.derived, self.parts)
        return with_custom(stages, self._prepared.stages, self.explorer)

    def _fleet(self, store: WeightSource, version: int, empty: bool) -> EngineFleet:
        """Makes the fleet of engines, which begin with `version`. `empty`: they do not have its weights yet."""
        config, engines = self._config, self._clusters["actor_infer"]
        return EngineFleet(
            engines,
            store,
            Fleet(len(engines), version, config.max_engine_restarts, empty, engines.restarts),
            self._state.groups.changes,
            self._devices,
            FleetRules(
                mode=config.weight_update_mode,
                restartable=self._backend.isolated and config.max_engine_restarts > 0,
                health_interval_s=config.engine_health_interval_s,
                health_timeout_s=config.engine_health_timeout_s,
                rolling=config.weight_update_rolling,
                start_empty=empty,
            ),
            broadcast(config, self._backend, self._clusters.get("actor_train"), engines),
        )

    async def _explorer(self, engines: EngineFleet, weights: EngineUpdates) -> Explorer:
        state, prepared = self._state, self._prepared
        trace = state.record.files.trace
        given = Exploration(state.groups, weights, state.schedule, state.reports, prepared.filters, prepared.validation, trace)
        explorer = await self._around.explorer(given, self._clusters, engines, self.ledger)
        engines.send_by(explorer.routing)
        return explorer


class WithTrainer(Topology):
    trainer: Trainer

    def until(self, sides: Sequence[Sequence[AnyStage]]) -> Sequence[AnyStage]:
        return sides[-1]

    def checkpoints(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._checkpoints

    def watchers(self) -> Watchers:
        return [self._checkpoints.watch(), *([self._copy.follow()] if self._copy is not None else [])]

    async def end(self) -> None:
        """Writes the last checkpoint, if no step has begun it; it is complete when this returns."""
        if not self._state.ends_early:
            await self._state.groups.drop_all("surplus")
        await self._checkpoints.settle()
        await self._save()

    def finishing(self, sides: Sequence[Sequence[AnyStage]]) -> Sequence[AnyStage]:
        return [one for place in takewhile(lambda place: place.name != "publish", sides[-1]) for one in singles(place)]

    async def finish(self) -> None:
        """Trains the step whose weights change to its end; no other begins."""
        groups, milestones = self._state.groups, self.trainer.milestones
        groups.stop(hurried=True)
        await groups.until(lambda: milestones.whole)

    async def keep(self, error: Exception) -> None:
        state, milestones = self._state, self.trainer.milestones
        await self._checkpoints.ended(given_up=unreachable(error))
        if state.record.step > state.saved_step:
            state.note(f"the run fails after step {state.record.step}, which is to have a checkpoint")
            state.lost = await saved_or_why_not(self._save, self._checkpoints, error, milestones, self._clusters)

    async def _save(self) -> None:
        state, devices, checkpoints = self._state, self._devices, self._checkpoints
        if state.record.step > state.saved_step:
            if "critic" in self._clusters:
                async with devices.hold("critic"):
                    await checkpoints.snapshot_critic()
            async with devices.hold("actor_train"):
                await checkpoints.begin()
            await checkpoints.settle()

    def _open_copy(self, store: WeightStore) -> None:
        state, clusters, lag = self._state, self._clusters, self._prepared.derived.log_prob_lag
        self._copy: PolicyCopy | None = None
        if ROLE in clusters:
            first, groups, schedule = state.first_step, state.groups, state.schedule
            self._copy = PolicyCopy(clusters[ROLE], store, groups, schedule, first, self._devices, self.ledger, lag)

    def _open_trainer(self, store: WeightStore, announce: Callable[[Buckets], None]) -> None:
        """`announce`: called when the gathering of a version begins."""
        config, derived, state, clusters = self._config, self._prepared.derived, self._state, self._clusters
        self._checkpoints = CheckpointWriter(state, clusters, self.ledger)
        training = Training(
            *(state.groups, state.schedule, state.reports, state.advantages, state.first_step, self._checkpoints, announce),
            teaching=self._prepared.teaching,
        )
        self.trainer = self._kind()(config, derived, loss_spec(config, derived), training, clusters, store, self._copy)

    def _kind(self) -> Callable[..., Trainer]:
        return TrainerOnArrival if self._config.train_on_arrival else Trainer


class SingleDriver(WithTrainer):
    recovery = TrainerRecovery
    _store: WeightStore | None = None

    @staticmethod
    def stages(rollouts: Rollouts, config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        explore = exploring(parts.explorer, rollouts(config, parts.explorer))
        return [explore, [*training(parts.trainer, parts.publisher, derived, config.roles()), validating(parts.explorer)]]

    async def open(self) -> bool:
        state = self._state
        self._store = store = weight_store(self._config, self._config.lends_weights)
        empty = self._prepared.derived.engines_start_empty or state.engines_are_stale
        self.engines = engines = self._fleet(store, state.first_step, empty)
        self._open_copy(store)
        self.weights = WeightUpdates(engines, store, state.groups, state.schedule, state.record.files.trace, self._copy)
        self.updates = self.weights.stats
        self._open_trainer(store, self.weights.begin)
        if empty:
            async with self._devices.hold("actor_train"):
                first = await self.trainer.gather_weights(state.first_step)
            await store.publish(first.manifest, first.buckets)
            await engines.load()
        self.explorer = self.counter = explorer = await self._explorer(engines, self.weights)
        self.parts = replace(NO_PARTS, explorer=explorer, trainer=self.trainer, publisher=self.weights)
        return True

    def begin(self, sides: Sequence[Sequence[AnyStage]]) -> None:
        """No step publishes the version that the run begins with, and it is validated like every other: it enters here."""
        sides[-1][-1].offer(self._state.first_step)

    def watchers(self) -> Watchers:
        assert self.engines is not None
        return [self.engines.supervise(), self.weights.run(), self.weights.send_ahead(), *super().watchers()]

    async def close(self) -> str:
        assert self.engines is not None
        with contextlib.suppress(*LOST):  # the run is over, whatever becomes of an engine now
            await self.engines.read_stats()
        return ""

    def release(self) -> None:
        if self._store is not None:
            self._store.close()


def topology_of(config: PPOConfig) -> type[Topology]:
    rows = "answered_rows" if config.has_engines else "rows"
    kind = rows if config.from_rows else "warm_start" if config.warm_steps and config.has_both_sides else config.mode
    found: type[Topology] = import_object(TOPOLOGIES[kind])
    return found


def with_custom(
    sides: Sequence[list[AnyStage]], custom: Sequence[CustomStage], explorer: Explorer | None
) -> list[list[AnyStage]]:
    return [insert(side, custom, explorer) for side in sides]
