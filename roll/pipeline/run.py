"""A run on one page: both halves as lists of stages, the flow that runs them, and what is watched beside it.

    admit → (rollouts) → keep → [groups] → lease → (value | log_prob | reference) → advantage → train → publish → validate
      ▲                                                                                            │
      └── admission ◀── version served ◀── engines flip ◀── [weight store] ◀───────────────────────┘

RLVR and agentic runs subclass `Pipeline` and say how their groups come about (`explorer`). Both halves live in one driver,
synchronous or not: what is synchronous about `async_generation_ratio: 0` is only what admission lets start.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from roll.configs.ppo import PPOConfig
from roll.distributed.backend import Backend, WorkerSpec
from roll.distributed.cluster import Cluster
from roll.distributed.device_locks import DeviceLocks
from roll.distributed.devices import Inventory
from roll.metrics.ledger import Ledger
from roll.pipeline import roles
from roll.pipeline.advantages import Advantages
from roll.pipeline.beside import beside
from roll.pipeline.checkpoint_writer import CheckpointWriter
from roll.pipeline.clusters import start_clusters
from roll.pipeline.engine_fleet import EngineFleet, engine_fleet
from roll.pipeline.explorer import Explorer
from roll.pipeline.flow import Flow
from roll.pipeline.hang_watch import HangWatch
from roll.pipeline.preparation import Prepared, decisions
from roll.pipeline.stage import SourceStage, Stage
from roll.pipeline.state import RunState
from roll.pipeline.summary import figures
from roll.pipeline.trainer import Trainer
from roll.pipeline.weight_broadcast import LOST
from roll.pipeline.weight_updates import WeightUpdates


class Pipeline(ABC):
    """`await Pipeline(...).run()` returns the summary, which is also in summary.json. Errors end as status "failed"."""

    def __init__(
        self,
        config: PPOConfig,
        prepared: Prepared,
        advantages: Advantages,
        inventory: Inventory,
        backend: Backend,
    ) -> None:
        self.inventory = inventory
        self.backend = backend
        self.state = RunState(config, prepared, advantages)
        self._config = config
        self._prepared = prepared
        self._loss = roles.loss_spec(config, prepared.derived)
        self._clusters: dict[str, Cluster] = {}
        self._interrupted = False
        self._task: asyncio.Task[Any] | None = None
        self._parts: tuple[Flow, EngineFleet, WeightUpdates, Explorer] | None = None
        """From the moment that all workers are up."""

    # -- what a pipeline gives ------------------------------------------------------------------------------------------

    @abstractmethod
    def own_specs(self) -> Mapping[str, Sequence[WorkerSpec]]:
        """The workers of the pipeline's own roles."""

    @abstractmethod
    async def explorer(self, clusters: Mapping[str, Cluster], engines: EngineFleet, weights: WeightUpdates) -> Explorer:
        """Makes the explorer; called once, when all workers are up."""

    def watched(self, clusters: Mapping[str, Cluster]) -> list[Coroutine[Any, Any, None]]:
        """Run beside the stages, and end the run by raising: a dead worker is noticed even when nobody calls it."""
        return [cluster.watch() for role, cluster in clusters.items() if role != "actor_infer"]

    # -- the page -------------------------------------------------------------------------------------------------------

    async def _explore_and_train(self, clusters: Mapping[str, Cluster]) -> None:
        config, derived, state = self._config, self._prepared.derived, self.state
        engines = engine_fleet(config, self._prepared, clusters, state, self.backend)
        weights = WeightUpdates(engines, state.groups, state.schedule, state.record.files.trace)
        ledger = Ledger(time.monotonic(), state.record.files.trace)
        checkpoints = CheckpointWriter(state, clusters, ledger)
        trainer = Trainer(config, derived, self._loss, state, clusters, engines.store, checkpoints)
        if derived.engines_start_empty:
            await engines.fill(await trainer.gather_weights(state.first_step))
        explorer = await self.explorer(clusters, engines, weights)
        engines.routing.append(explorer.routing)
        with_critic, with_reference = "critic" in clusters, "reference" in clusters

        explore = [SourceStage("admit", explorer.next), *explorer.rollouts, Stage("keep", explorer.keep)]
        scoring = [
            with_critic and Stage("value", trainer.values, role="critic"),
            derived.recompute_old_logprobs and Stage("log_prob", trainer.log_probs, role="actor_train"),
            with_reference and Stage("reference", trainer.reference, role="reference"),
        ]
        training: list[Stage[Any, Any]] = [Stage("train", trainer.train, role="actor_train")]
        if with_critic:
            # The critic first: where the two take turns, the policy has the devices when its weights are gathered.
            critic = Stage("critic", trainer.update_critic, role="critic")
            policy = Stage("policy", trainer.update, role="actor_train")
            training = [*beside("train", [critic, policy]), Stage("gather", trainer.gather, role="actor_train")]
        train: list[Stage[Any, Any]] = [
            SourceStage("lease", trainer.lease),
            *beside("scoring", scoring),
            Stage("advantage", trainer.advantages),
            *training,
            Stage("publish", weights.publish),
            Stage("validate", explorer.validate, role="actor_infer"),
        ]
        devices = _device_locks(config, clusters, engines)
        flow = Flow(ledger, devices, time.monotonic, state.groups.changes.waits)
        flow.join(explore)
        flow.join(train)
        train[-1].offer(state.first_step)
        self._parts = flow, engines, weights, explorer
        state.record.begin(explorer, ledger)
        shown = state.record.refresh(ledger, list(clusters), state.groups)
        kept = state.record.files.keep(lambda: self._figures(state.record.running_s()), ledger)
        hangs = HangWatch(flow, clusters, state.record.run_dir / "stacks", state.record.display)
        beside_it = [shown, kept, state.record.memory.run(clusters), hangs.run(), checkpoints.watch()]
        async with checkpoints:
            await flow.run(until=train, watch=[engines.supervise(), weights.run(), *beside_it, *self.watched(clusters)])
            await self._end(checkpoints, with_critic, devices)
        with contextlib.suppress(*LOST):  # the run is over, whatever becomes of an engine now
            await engines.read_stats()

    async def _end(self, checkpoints: CheckpointWriter, with_critic: bool, devices: DeviceLocks) -> None:
        """The last checkpoint, if no step has begun it; it is complete when this returns."""
        state = self.state
        if not self._interrupted:
            await state.groups.drop_all("surplus")
        await checkpoints.settle()
        if state.record.step > state.saved_step:
            if with_critic:
                async with devices.hold("critic"):
                    await checkpoints.snapshot_critic()
            async with devices.hold("actor_train"):
                await checkpoints.begin()
            await checkpoints.settle()

    # -- running --------------------------------------------------------------------------------------------------------

    async def run(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError):
            # Not on Windows, and not outside the main thread.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.interrupt)
        self._task = asyncio.current_task()
        record, status, reason = self.state.record, "finished", ""
        try:
            for line in decisions(self._config, self._prepared.derived):
                record.display.note(line)
            clusters = await start_clusters(
                self._config, self._prepared, self.own_specs(), self.inventory, self.backend, record.display
            )
            await self._explore_and_train(clusters)
            if self._interrupted:
                status, reason = "interrupted", f"stopped by a signal after step {record.step}"
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            status, reason = "interrupted", f"stopped at once by a signal after step {record.step}"
        except Exception as error:  # boundary: a role may raise anything, which is the run's one-line reason
            status, reason = "failed", one_line(error)
            with contextlib.suppress(OSError):  # a full disk may be the reason itself
                (self._prepared.run_dir / "traceback.txt").write_text(traceback.format_exc())
        finally:
            self._task = None
            wall_s = record.running_s()
            await self.backend.shutdown()
        summary = {"status": status, "reason": reason} | self._figures(wall_s)
        record.finish(summary)
        return summary

    def _figures(self, wall_s: float) -> dict[str, Any]:
        """Those of the run so far."""
        return {"wall_s": wall_s} | figures(self.state, wall_s, self._parts)

    def interrupt(self) -> None:
        """Ends the run after the step that is being trained, with a checkpoint; at once, without one, if that was asked for
        before or workers are only just starting."""
        if self._interrupted or self._parts is None:
            if self._task is not None:
                self._task.cancel()
        else:
            self.state.record.display.note("stopping after this step; once more to stop at once")
        self._interrupted = True
        self.state.groups.stop()


def _device_locks(config: PPOConfig, clusters: Mapping[str, Cluster], engines: EngineFleet) -> DeviceLocks:
    """Roles that share a device take turns; who leaves it frees what it can."""
    placed = config.roles()
    locks = DeviceLocks({role: frozenset(worker.devices) for role, worker in placed.items()})
    locks.on_turn("actor_infer", engines.sleep, engines.wake)
    for role in [role for role in placed if role != "actor_infer"]:
        call_all = clusters[role].call_all
        locks.on_turn(role, partial(call_all, "offload"), partial(call_all, "reload"))
    return locks


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OSError | RuntimeError | ValueError) and text else f"{type(error).__name__}: {text}"
