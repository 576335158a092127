"""A run, from its first worker to its summary: what all pipelines share. Both halves live in one driver, synchronous or not.

A pipeline subclasses it and says how its groups come about (`explorer_half`) and what becomes of their rewards (`advantages`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from roll.configs.ppo import PPOConfig
from roll.data.sample import Sample
from roll.distributed.backend import Backend, WorkerSpec
from roll.distributed.cluster import Cluster
from roll.distributed.devices import Inventory
from roll.pipeline import roles
from roll.pipeline.advantages import Advantages
from roll.pipeline.batch import Keep
from roll.pipeline.clusters import start_clusters
from roll.pipeline.engine_fleet import EngineFleet
from roll.pipeline.explorer_stages import ExplorerHalf
from roll.pipeline.preparation import Prepared, decisions
from roll.pipeline.run_state import RunState
from roll.pipeline.step_work import StepWork
from roll.pipeline.trainer_stages import gather_weights
from roll.pipeline.weight_broadcast import LOST, WeightBroadcast
from roll.pipeline.weight_updates import UpdateStats
from roll.pipeline.wiring import MIB, Wiring, wire
from roll.rollout.fleet import Fleet
from roll.strategies.infer.interface import EngineStats
from roll.weights.directory import DirectoryWeightStore
from roll.weights.store import MemoryWeightStore, WeightStore

REFRESH_S = 0.5
"""Time between two refreshes of the display."""


class TrainingPipeline(ABC):
    """`await Pipeline(...).run()` returns the summary, which is also in summary.json. Errors end as status "failed"."""

    keep: Keep | None = None
    """Which samples are trained; None: all."""
    has_validation = False

    def __init__(
        self,
        config: PPOConfig,
        prepared: Prepared,
        advantages: Advantages,
        inventory: Inventory,
        backend: Backend,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inventory = inventory
        self.backend = backend
        self.clock = clock
        self._config = config
        self._prepared = prepared
        self._clusters: dict[str, Cluster] = {}
        self._wiring: Wiring | None = None
        self._engine_stats: list[EngineStats] = []
        self._interrupted = False
        self._running: asyncio.Task[Any] | None = None
        self.fleet: EngineFleet
        """From the moment all workers are up."""

        self._loss = roles.loss_spec(config, prepared.derived)
        self.state = RunState(config, prepared, advantages, clock)

    # -- what a pipeline gives ------------------------------------------------------------------------------------------

    @abstractmethod
    def own_specs(self) -> Mapping[str, Sequence[WorkerSpec]]:
        """The workers of the pipeline's own roles."""

    @abstractmethod
    async def explorer_half(self, clusters: Mapping[str, Cluster]) -> ExplorerHalf:
        """Once, when all workers are up. Who meets an engine that died tells `self.fleet`."""

    def rollout_metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        """What there is to tell of a step's samples besides rewards and lengths."""
        return {}

    def watched(self, clusters: Mapping[str, Cluster]) -> list[Coroutine[Any, Any, None]]:
        """Run beside the stages, and end the run by raising: a dead worker is noticed even when nobody calls it."""
        return [cluster.watch() for role, cluster in clusters.items() if role != "actor_infer"]

    def lanes(self) -> int:
        """Groups that may be rolled out at the same time: as many as admission ever lets start."""
        config = self._config
        return math.ceil((1 + config.async_generation_ratio) * config.groups_per_step) + self.state.admission.extra_groups

    # -- running --------------------------------------------------------------------------------------------------------

    async def run(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError):
            # Not on Windows, and not outside the main thread.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.interrupt)
        self._running = asyncio.current_task()
        status, reason = "finished", ""
        started = self.clock()
        try:
            for line in decisions(self._config, self._prepared.derived):
                self.state.record.display.note(line)
            self.state.record.display.note("starting workers ...")
            self._clusters = await start_clusters(self._config, self._prepared, self.own_specs(), self.inventory, self.backend)
            self.fleet = self._engine_fleet()
            if self._prepared.derived.engines_start_empty:
                await self._fill_engines()
            half = await self.explorer_half(self._clusters)
            started = self.clock()
            self.state.record.begin()
            await self._run(self._wire(half))
            if self._interrupted:
                status, reason = "interrupted", f"stopped by a signal after step {self.state.record.step}"
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            status, reason = "interrupted", f"stopped at once by a signal after step {self.state.record.step}"
        except Exception as error:  # the boundary: whatever goes wrong in a role is the run's one-line reason
            status, reason = "failed", one_line(error)
            with contextlib.suppress(OSError):  # a full disk may be the reason itself
                (self._prepared.run_dir / "traceback.txt").write_text(traceback.format_exc())
        finally:
            self._running = None
            wall_s = self.clock() - started
            for task in self._wiring.background if self._wiring else ():
                task.cancel()
            await self.backend.shutdown()
        summary = {"status": status, "reason": reason, "wall_s": wall_s} | self._figures(wall_s)
        self.state.record.finish(summary, self._wiring.flow.ledger if self._wiring else None)
        return summary

    def interrupt(self) -> None:
        """Ends the run after the step that is being trained, with a checkpoint; at once, without one, if that was asked for
        before or workers are only just starting."""
        if self._running is not None and (self._interrupted or self._wiring is None):
            self._running.cancel()
        elif self._wiring is not None:
            self.state.record.display.note("stopping after this step; once more to stop at once")
            self._wiring.stop()
        self._interrupted = True

    def _wire(self, half: ExplorerHalf) -> Wiring:
        config, prepared, clusters = self._config, self._prepared, self._clusters
        trainers = clusters["actor_train"]
        work = StepWork(config, prepared.derived, self._loss, self.state, trainers, self.keep, self.rollout_metrics, self.clock)
        return wire(config, prepared, self.state, clusters, self.fleet, half, work, self._loss, self.has_validation, self.clock)

    def _engine_fleet(self) -> EngineFleet:
        config, engines, empty = self._config, self._clusters["actor_infer"], self._prepared.derived.engines_start_empty
        return EngineFleet(
            engines,
            self._weight_store(),
            Fleet(len(engines), self.state.first_step, config.max_engine_restarts, empty),
            config.weight_update_mode,
            restartable=self.backend.isolated and config.max_engine_restarts > 0,
            health_interval_s=config.engine_health_interval_s,
            health_timeout_s=config.engine_health_timeout_s,
            rolling=config.weight_update_rolling,
            broadcast=self._weight_broadcast(),
            start_empty=empty,
        )

    async def _fill_engines(self) -> None:
        trainers, store = self._clusters["actor_train"], self.fleet.store
        weights = await gather_weights(trainers, store, self.state.first_step, self._config.model_update_buffer_size_mb * MIB)
        await store.publish(weights.manifest, weights.buckets)
        await self.fleet.fill()

    def _weight_store(self) -> WeightStore:
        if self._config.model_update_transport == "checkpoint_dir":
            return DirectoryWeightStore(self._prepared.run_dir.resolve() / "weights")
        return MemoryWeightStore()

    def _weight_broadcast(self) -> WeightBroadcast | None:
        config, clusters = self._config, self._clusters
        if config.model_update_transport != "collective" or not self.backend.isolated:
            return None
        address, timeout_s = self.backend.driver_address(), config.engine_health_timeout_s
        return WeightBroadcast(clusters["actor_train"], clusters["actor_infer"], address, timeout_s)

    async def _run(self, wiring: Wiring) -> None:
        self._wiring = wiring
        if self._interrupted:
            wiring.stop()
        display = asyncio.ensure_future(self._refresh(wiring))
        try:
            watchers = [self.fleet.supervise(), wiring.updates.run(), *self.watched(self._clusters)]
            await wiring.flow.run(wiring.trainer_half, watchers)
        finally:
            display.cancel()
        if not self._interrupted:
            for group_id in list(self.state.admission.live):
                self.state.fates.drop(group_id, "surplus")
        if self.state.record.step > self.state.saved_step:
            await self._save_last(wiring)
        with contextlib.suppress(*LOST):  # the run is over, whatever becomes of an engine now
            self._engine_stats = await self.fleet.stats()

    async def _save_last(self, wiring: Wiring) -> None:
        if "critic" in self._clusters:
            async with wiring.devices.hold("critic"):
                await self.state.save_critic(self._clusters["critic"], self.state.record.step)
        async with wiring.devices.hold("actor_train"):
            await self.state.save(self._clusters["actor_train"])

    async def _refresh(self, wiring: Wiring) -> None:
        roles_shown = [role for role in self._clusters if not role.startswith("rewards.")] + ["rewards"]
        while True:
            waits_for = {"actor_train": self.state.buffer.waiting_for, "actor_infer": wiring.dataloader.waiting_reason()}
            self.state.record.show(wiring.flow.ledger, roles_shown, waits_for, self.state.admission.counts())
            await asyncio.sleep(REFRESH_S)

    def _figures(self, wall_s: float) -> dict[str, Any]:
        """Of the run, for summary.json."""
        wiring = self._wiring
        return {
            **self.state.record.figures(wall_s),
            "groups": self.state.admission.counts(),
            "idle_share": {role: wiring.flow.idle_share(role) for role in ("actor_train", "actor_infer")} if wiring else {},
            "engine_restarts": self.fleet.fleet.restarts if wiring else 0,
            "engine_recovery_s": self.fleet.recovered_s if wiring else [],
            "weight_updates": self._update_figures(),
            "engines": [
                {"generated_tokens": e.generated_tokens, "prefill_tokens": e.prefill_tokens, "busy_s": e.busy_s}
                for e in self._engine_stats
            ],
            **(wiring.explorer_half.figures() if wiring else {}),
            "resumed_from_step": self.state.first_step,
        }

    def _update_figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = (self._wiring.updates.stats if self._wiring else UpdateStats()).summary()
        if self._wiring and (broadcast := self.fleet.broadcast):
            figures["broadcasts"] = {"sent": broadcast.sent, "failed": broadcast.failed}
        return figures


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OSError | RuntimeError | ValueError) and text else f"{type(error).__name__}: {text}"
