"""The parts of a process of a run: one wiring for each `mode`, chosen once, by `Run`.

| mode | groups lie | weights go | its stages | it ends when |
|---|---|---|---|---|
| both | in memory or a database | from the trainer through a store to its own engines | both halves | all steps are trained |
| train | in a database | to a folder that explorers read | the trainer's | that is so, and all explorers have left |
| explore | in a database | from that folder to its own engines | the explorer's | the trainer ended, versions are validated |
| bench | – | from folders of models, one after another | validation | the last model is evaluated |
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import ClassVar

from roll.configs.derived import Derived
from roll.configs.ppo import PPOConfig
from roll.distributed.clock import monotonic
from roll.distributed.cluster import Cluster
from roll.engines.engine_fleet import EngineFleet
from roll.engines.policy_copy import ROLE, PolicyCopy
from roll.engines.weight_updates import EngineUpdates, UpdateStats, WeightUpdates
from roll.errors import LOST
from roll.explorer.explorer import Exploration, Explorer
from roll.flow.custom_stage import CustomStage, insert, singles
from roll.flow.stage import AnyStage
from roll.pipeline.apart import FollowedWeights, Publisher
from roll.pipeline.bench import ModelsInTurn, check_complete, model_source
from roll.pipeline.last_checkpoint import saved_or_why_not, unreachable
from roll.pipeline.lifecycle import RunLifecycle
from roll.pipeline.recovery import ExplorerRecovery, Recovery, TrainerRecovery
from roll.pipeline.serving import served_at
from roll.pipeline.stages import NO_PARTS, Parts, announcing, exploring, training, validating
from roll.record.ledger import Ledger
from roll.record.run_record import Counter
from roll.rollout.fleet import Fleet
from roll.trainer.checkpoint_writer import CheckpointWriter
from roll.trainer.on_arrival import TrainerOnArrival
from roll.trainer.trainer import Trainer
from roll.weights.store import WeightSource, WeightStore
from roll.weights.transport import broadcast, followed_weights, published_weights, weight_store

Watchers = list[Coroutine[object, object, None]]


class Wiring(ABC):
    """The parts of a process, from `open` to `close`."""

    recovery: ClassVar[type[Recovery]] = Recovery
    parts: Parts
    """Set by `open`."""
    engines: EngineFleet | None = None
    explorer: Explorer | None = None
    updates: UpdateStats
    counter: Counter
    """Counter whose running totals are metrics of each step."""

    def __init__(self, run: RunLifecycle, clusters: Mapping[str, Cluster]) -> None:
        self._run = run
        self._clusters = clusters
        self.ledger = Ledger(monotonic(), run.state.record.files.trace)

    # -- what a mode gives ------------------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def stages(kind: type[RunLifecycle], config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        """Returns the lists of stages that run side by side."""

    @abstractmethod
    async def open(self) -> bool:
        """Makes the parts. Afterwards the first version is served, or available. False: the run is over, and has no stages."""

    def until(self, halves: Sequence[Sequence[AnyStage]]) -> Sequence[AnyStage]:
        """Returns the stages whose end is the end of the process."""
        return [stage for half in halves for stage in half]

    def begin(self, halves: Sequence[Sequence[AnyStage]]) -> None:  # noqa: B027  (most modes have nothing to do)
        """Called when the stages are joined, and about to run."""

    def watchers(self) -> Watchers:
        """Returns coroutines that run beside the stages."""
        return []

    def checkpoints(self) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    def finishing(self, halves: Sequence[Sequence[AnyStage]]) -> Sequence[AnyStage]:
        """Returns the stages that do the work `finish` waits for."""
        return []

    async def finish(self) -> None:  # noqa: B027
        """Called when the run has failed; the stages go on until this returns."""

    async def keep(self, error: Exception) -> None:  # noqa: B027
        """Called when the run has failed, by `error`, and its stages have ended; checkpoints can still be written."""

    async def end(self) -> None:  # noqa: B027
        """Called when all stages have done their work; checkpoints can still be written."""

    async def close(self) -> None:  # noqa: B027
        """Called when the run has ended."""

    def release(self) -> None:  # noqa: B027
        """Frees resources outside of this process's memory, however the run ended."""

    # -- how ----------------------------------------------------------------------------------------------------------------

    def halves(self) -> list[list[AnyStage]]:
        """Returns the stages with the user's own among them."""
        run = self._run
        return with_custom(
            self.stages(type(run), run.config, run.prepared.derived, self.parts), run.prepared.stages, self.explorer
        )

    def _fleet(self, store: WeightSource, version: int, empty: bool) -> EngineFleet:
        """Makes the fleet of engines, which begin with `version`. `empty`: they do not have its weights yet."""
        run, config, engines = self._run, self._run.config, self._clusters["actor_infer"]
        return EngineFleet(
            engines,
            store,
            Fleet(len(engines), version, config.max_engine_restarts, empty, engines.restarts),
            run.state.groups.changes,
            config.weight_update_mode,
            run.devices,
            restartable=run.backend.isolated and config.max_engine_restarts > 0,
            health_interval_s=config.engine_health_interval_s,
            health_timeout_s=config.engine_health_timeout_s,
            rolling=config.weight_update_rolling,
            broadcast=broadcast(config, run.backend, self._clusters.get("actor_train"), engines),
            start_empty=empty,
        )

    async def _explorer(self, engines: EngineFleet, weights: EngineUpdates) -> Explorer:
        state, prepared = self._run.state, self._run.prepared
        trace = state.record.files.trace
        given = Exploration(state.groups, weights, state.schedule, state.reports, prepared.filters, prepared.validation, trace)
        explorer = await self._run.explorer(given, self._clusters, engines, self.ledger)
        engines.send_by(explorer.routing)
        return explorer


class _WithTrainer(Wiring):
    trainer: Trainer

    def until(self, halves: Sequence[Sequence[AnyStage]]) -> Sequence[AnyStage]:
        return halves[-1]

    def checkpoints(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._checkpoints

    def watchers(self) -> Watchers:
        return [self._checkpoints.watch(), *([self._copy.follow()] if self._copy is not None else [])]

    async def end(self) -> None:
        """Writes the last checkpoint, if no step has begun it; it is complete when this returns."""
        if not self._run.ends_early:
            await self._run.state.groups.drop_all("surplus")
        await self._checkpoints.settle()
        await self._save()

    def finishing(self, halves: Sequence[Sequence[AnyStage]]) -> Sequence[AnyStage]:
        return [one for place in takewhile(lambda place: place.name != "publish", halves[-1]) for one in singles(place)]

    async def finish(self) -> None:
        """Trains the step whose weights change to its end; no other begins."""
        groups, milestones = self._run.state.groups, self.trainer.milestones
        groups.stop(hurried=True)
        await groups.until(lambda: milestones.whole)

    async def keep(self, error: Exception) -> None:
        state, milestones = self._run.state, self.trainer.milestones
        await self._checkpoints.ended(given_up=unreachable(error))
        if state.record.step > state.saved_step:
            state.note(f"the run fails after step {state.record.step}, which is to have a checkpoint")
            state.lost = await saved_or_why_not(self._save, self._checkpoints, error, milestones, self._clusters)

    async def _save(self) -> None:
        state, devices, checkpoints = self._run.state, self._run.devices, self._checkpoints
        if state.record.step > state.saved_step:
            if "critic" in self._clusters:
                async with devices.hold("critic"):
                    await checkpoints.snapshot_critic()
            async with devices.hold("actor_train"):
                await checkpoints.begin()
            await checkpoints.settle()

    def _open_trainer(self, store: WeightStore) -> None:
        run, state, clusters = self._run, self._run.state, self._clusters
        config, derived, first = run.config, run.prepared.derived, state.first_step
        groups, schedule = state.groups, state.schedule
        self._checkpoints = CheckpointWriter(state, clusters, self.ledger)
        self._copy: PolicyCopy | None = None
        if ROLE in clusters:
            lag = derived.log_prob_lag
            self._copy = PolicyCopy(clusters[ROLE], store, groups, schedule, first, run.devices, self.ledger, lag)
        kind = TrainerOnArrival if config.train_on_arrival else Trainer
        parts = (config, derived, run.loss, groups, schedule, state.reports, state.advantages, first, clusters, store)
        self.trainer = kind(*parts, self._checkpoints, self._copy)


class BothHalves(_WithTrainer):
    recovery = TrainerRecovery
    _store: WeightStore | None = None

    @staticmethod
    def stages(kind: type[RunLifecycle], config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        explore = exploring(parts.explorer, kind.rollouts(config, parts.explorer))
        return [explore, [*training(parts.trainer, parts.publisher, derived, config.roles()), validating(parts.explorer)]]

    async def open(self) -> bool:
        run, state = self._run, self._run.state
        self._store = store = weight_store(run.config)
        empty = run.prepared.derived.engines_start_empty or state.engines_are_stale
        self.engines = engines = self._fleet(store, state.first_step, empty)
        self._open_trainer(store)
        self.weights = WeightUpdates(engines, store, state.groups, state.schedule, state.record.files.trace, self._copy)
        self.updates = self.weights.stats
        if empty:
            async with run.devices.hold("actor_train"):
                first = await self.trainer.gather_weights(state.first_step)
            await store.publish(first.manifest, first.buckets)
            await engines.load()
        self.trainer.announce = self.weights.begin
        self.explorer = self.counter = explorer = await self._explorer(engines, self.weights)
        self.parts = replace(NO_PARTS, explorer=explorer, trainer=self.trainer, publisher=self.weights)
        return True

    def begin(self, halves: Sequence[Sequence[AnyStage]]) -> None:
        """No step publishes the version that the run begins with, and it is validated like every other: it enters here."""
        halves[-1][-1].offer(self._run.state.first_step)

    def watchers(self) -> Watchers:
        assert self.engines is not None
        return [self.engines.supervise(), self.weights.run(), self.weights.send_ahead(), *super().watchers()]

    async def close(self) -> None:
        assert self.engines is not None
        with contextlib.suppress(*LOST):  # the run is over, whatever becomes of an engine now
            await self.engines.read_stats()

    def release(self) -> None:
        if self._store is not None:
            self._store.close()


class TrainerAlone(_WithTrainer):
    """A trainer whose explorers are processes of their own."""

    @staticmethod
    def stages(kind: type[RunLifecycle], config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        return [training(parts.trainer, parts.publisher, derived, config.roles())]

    async def open(self) -> bool:
        run, state = self._run, self._run.state
        self._store = published_weights(run.config, run.backend, state.first_step, state.identity.id, *served_at(run.config))
        self._open_trainer(self._store)
        self.weights = self.counter = Publisher(self._store, state.shared_groups, state.reports, state.known, self._copy)
        self.updates = self.weights.stats
        self.parts = replace(NO_PARTS, trainer=self.trainer, publisher=self.weights)
        await self.weights.begin(self.trainer, state.first_step)
        return True

    def watchers(self) -> Watchers:
        return [self.weights.record_validations(), *super().watchers()]

    async def close(self) -> None:
        if not self._run.ends_early or self._run.stopped_in_order:
            await self.weights.farewell()
        self._store.close()


class ExplorerAlone(Wiring):
    """An explorer whose trainer and fellow explorers are processes of their own."""

    recovery = ExplorerRecovery

    @staticmethod
    def stages(kind: type[RunLifecycle], config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        explore = exploring(parts.explorer, kind.rollouts(config, parts.explorer))
        return [explore, [announcing(parts.versions), validating(parts.explorer)]]

    async def open(self) -> bool:
        run, state = self._run, self._run.state
        version = state.groups.admission.newest
        empty = run.prepared.derived.engines_start_empty or state.engines_are_stale or version > 0
        source = followed_weights(run.config, state.identity.id, run.backend)
        self.engines = engines = self._fleet(source, version, empty)
        self.weights = FollowedWeights(engines, state.shared_groups, state.schedule, state.record.files.trace)
        self.updates = self.weights.stats
        if not await self.weights.begin():
            return False
        self.explorer = self.counter = explorer = await self._explorer(engines, self.weights)
        self.parts = replace(NO_PARTS, explorer=explorer, versions=self.weights)
        return True

    def watchers(self) -> Watchers:
        assert self.engines is not None
        return [self.engines.supervise(), self.weights.run(), self.weights.follow(), self._run.state.mirror_steps()]

    async def close(self) -> None:
        status, reason = self._run.state.groups.ended or ("", "")
        if status == "failed":
            raise RuntimeError(f"the trainer failed: {reason}")
        if status == "stopped":
            self._run.stopped_by = f"the trainer stopped: {reason}"


class Bench(Wiring):
    """Evaluates models that were trained before, one after another."""

    @staticmethod
    def stages(kind: type[RunLifecycle], config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        return [[announcing(parts.versions), validating(parts.explorer)]]

    async def open(self) -> bool:
        run, state, models = self._run, self._run.state, self._run.prepared.benched
        store = model_source(run.config, models, run.inventory.kind == "cuda")
        self.engines = engines = self._fleet(store, state.first_step, run.prepared.derived.engines_start_empty)
        await engines.load()
        self.weights = ModelsInTurn(engines, state.groups, state.schedule, state.record.files.trace, models)
        self.updates = self.weights.stats
        self.explorer = self.counter = explorer = await self._explorer(engines, self.weights)
        self.parts = replace(NO_PARTS, explorer=explorer, versions=self.weights)
        return True

    def watchers(self) -> Watchers:
        assert self.engines is not None
        return [self.engines.supervise(), self.weights.run()]

    async def close(self) -> None:
        check_complete(self._run.prepared.benched, self._run.state.record.results)


WIRINGS: dict[str, type[Wiring]] = {"both": BothHalves, "train": TrainerAlone, "explore": ExplorerAlone, "bench": Bench}


def with_custom(
    halves: Sequence[list[AnyStage]], custom: Sequence[CustomStage], explorer: Explorer | None
) -> list[list[AnyStage]]:
    return [insert(half, custom, explorer) for half in halves]
