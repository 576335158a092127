"""The RLVR run: both halves in one driver, wired from the same stages whether synchronous or asynchronous.

    dataloader → generate → reward → rollout → [buffer] → batch → (log_prob) → (reference) → advantage → train
        ▲                                                                                                  │
        └── admission ◀── version published ◀── validation ◀── parameter_update ◀── [weight store] ◀───────┘

What is synchronous about `async_generation_ratio: 0` is only what admission lets start.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from roll.algorithms.loss import prepare_batch
from roll.buffer.interface import Lease
from roll.configs.rlvr import RLVRConfig
from roll.data.seeding import derive_seed
from roll.data.token_batch import TokenBatch
from roll.distributed.backend import Backend
from roll.distributed.cluster import Cluster
from roll.distributed.device_locks import DeviceLocks
from roll.distributed.devices import Inventory
from roll.metrics.ledger import Ledger
from roll.pipeline import roles
from roll.pipeline.explorer_stages import DataloaderStage, GenerateStage, Rewards, RewardStage, RolloutStage, group_key
from roll.pipeline.flow import Flow
from roll.pipeline.rlvr import batch as batching
from roll.pipeline.rlvr.clusters import start_clusters
from roll.pipeline.rlvr.preparation import Prepared, decisions, sampling_params
from roll.pipeline.rlvr.run_state import RunState
from roll.pipeline.run_record import ACCURACY
from roll.pipeline.stage import Stage
from roll.pipeline.trainer_stages import (
    AdvantageStage,
    BatchStage,
    LogProbStage,
    ParameterUpdateStage,
    ReferenceStage,
    TrainItem,
    TrainStage,
    UpdateStats,
)
from roll.pipeline.validation import ValidationResult, ValidationStage
from roll.rollout.explorer import Explorer
from roll.rollout.router import Router
from roll.strategies.infer.interface import EngineStats
from roll.weights.store import MemoryWeightStore

MIB = 1 << 20
REFRESH_S = 0.5
"""Time between two refreshes of the display."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The stages of a run, and the ones that have to be spoken to."""

    flow: Flow
    dataloader: DataloaderStage
    batches: BatchStage
    update: ParameterUpdateStage
    validation: ValidationStage
    rewards: Rewards
    trainer_half: tuple[Stage[Any, Any], ...]

    def stop(self) -> None:
        """No group and no step begins any more; what has begun is finished."""
        self.batches.stop()
        self.dataloader.stop()


class RLVRPipeline:
    """`await RLVRPipeline(...).run()` returns the summary, which is also in summary.json. Errors end as status "failed"."""

    def __init__(
        self,
        config: RLVRConfig,
        prepared: Prepared,
        inventory: Inventory,
        backend: Backend,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.prepared = prepared
        self._inventory = inventory
        self._backend = backend
        self._clock = clock
        self._clusters: dict[str, Cluster] = {}
        self._wiring: Wiring | None = None
        self._engine_stats: list[EngineStats] = []
        self._interrupted = False
        self._running: asyncio.Task[Any] | None = None
        self._background: set[asyncio.Task[None]] = set()

        self._loss = roles.loss_spec(config, prepared.derived)
        self.state = RunState(config, prepared, clock)

    # -- running --------------------------------------------------------------------------------------------------------

    async def run(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError):
            # Not on Windows, and not outside the main thread.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.interrupt)
        self._running = asyncio.current_task()
        status, reason = "finished", ""
        started = self._clock()
        try:
            for line in decisions(self.config, self.prepared.derived):
                self.state.record.display.note(line)
            self.state.record.display.note("starting workers ...")
            self._clusters = await start_clusters(self.config, self.prepared, self._inventory, self._backend)
            started = self._clock()
            self.state.record.begin()
            await self._run(self._wire(started))
            if self._interrupted:
                status, reason = "interrupted", f"stopped by a signal after step {self.state.record.step}"
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            status, reason = "interrupted", f"stopped at once by a signal after step {self.state.record.step}"
        except Exception as error:  # the boundary: whatever goes wrong in a role is the run's one-line reason
            status, reason = "failed", one_line(error)
            (self.prepared.run_dir / "traceback.txt").write_text(traceback.format_exc())
        finally:
            self._running = None
            wall_s = self._clock() - started
            for task in self._background:
                task.cancel()
            await self._backend.shutdown()
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

    async def _run(self, wiring: Wiring) -> None:
        self._wiring = wiring
        if self._interrupted:
            wiring.stop()
        display = asyncio.ensure_future(self._refresh(wiring))
        try:
            await wiring.flow.run(wiring.trainer_half, [cluster.watch() for cluster in self._clusters.values()])
        finally:
            display.cancel()
        if not self._interrupted:
            for group_id in list(self.state.admission.live):
                self.state.fates.drop(group_id, "surplus")
        if self.state.record.step > self.state.saved_step:
            await self.state.save(self._clusters["actor_train"])
        self._engine_stats = await self._clusters["actor_infer"].call_all("stats")

    async def _refresh(self, wiring: Wiring) -> None:
        roles = [role for role in self._clusters if not role.startswith("rewards.")] + ["rewards"]
        while True:
            waits_for = {"actor_train": self.state.buffer.waiting_for, "actor_infer": wiring.dataloader.waiting_reason()}
            self.state.record.show(wiring.flow.ledger, roles, waits_for, self.state.admission.counts())
            await asyncio.sleep(REFRESH_S)

    # -- wiring ---------------------------------------------------------------------------------------------------------

    def _wire(self, now: float) -> Wiring:
        config, derived, clusters = self.config, self.prepared.derived, self._clusters
        engines, trainers = clusters["actor_infer"], clusters["actor_train"]
        placed = {"actor_train": config.actor_train, "actor_infer": config.actor_infer, "reference": config.reference}
        locks = DeviceLocks(
            {role: frozenset(worker.devices) for role, worker in placed.items() if worker is not None and role in clusters}
        )
        self._take_turns(locks)
        n = config.num_return_sequences_in_group
        # A queue of one group on the engine: a freed slot is refilled without a round trip.
        router = Router(len(engines), derived.requests_per_engine + n)
        explorer = Explorer(engines, router, self._decode, config.seed, config.is_num_return_sequences_expand)
        rewards = Rewards({domain: clusters[f"rewards.{domain}"] for domain in config.rewards})
        lanes = math.ceil((1 + config.async_generation_ratio) * config.rollout_batch_size) + self.state.admission.extra_groups
        sampling = sampling_params(config.actor_infer.generating_args, derived.max_new_tokens, self.prepared.tokenizer)

        flow = Flow(Ledger(now), locks, self._clock)
        dataloader = DataloaderStage(self.prepared.prompts, self.state.fates, self.state.depth)
        flow.chain(
            dataloader,
            GenerateStage(explorer, sampling, n, lanes),
            RewardStage(rewards, self.state.fates, lanes),
            RolloutStage(self.prepared.filters, self.state.fates, self.state.buffer),
        )
        self.state.fates.on_drop += [self.state.buffer.drop, lambda group_id: self._spawn(explorer.cancel(group_key(group_id)))]
        self.state.fates.on_change.append(self.state.buffer.changed)

        batches = BatchStage(
            self.state.buffer,
            self._make_batch,
            self.state.depth,
            self.state.fates.changed,
            self._clock,
            self.state.first_step,
            config.max_steps,
        )
        validation = self._validation_stage(explorer, rewards)

        def publish(version: int) -> None:
            validation.expect(version)
            self.state.admission.publish(version)
            self.state.fates.changed()

        update = ParameterUpdateStage(MemoryWeightStore(), engines, config.weight_update_mode, publish, validation.engines_free)
        half: list[Stage[Any, Any]] = [batches]
        if derived.recompute_old_logprobs:
            half.append(LogProbStage(lambda batch: self._log_probs(trainers, batch)))
        if "reference" in clusters:
            half.append(ReferenceStage(lambda batch: self._log_probs(clusters["reference"], batch)))
        half += [
            AdvantageStage(lambda batch, lease: self.state.advantages(batch, lease.groups)),
            TrainStage(
                trainers,
                self._loss,
                self._optimiser_batches,
                batching.shards,
                batching.totals_of,
                config.model_update_buffer_size_mb * MIB,
                lambda item: self._after_step(item, batches),
            ),
            update,
            validation,
        ]
        flow.chain(*half)
        validation.begin(self.state.first_step)
        return Wiring(flow, dataloader, batches, update, validation, rewards, tuple(half))

    def _take_turns(self, locks: DeviceLocks) -> None:
        turns = {"actor_infer": ("sleep", "wake"), "actor_train": ("offload", "reload"), "reference": ("offload", "reload")}
        for role, (sleep, wake) in turns.items():
            if role in self._clusters:
                call_all = self._clusters[role].call_all
                locks.on_turn(role, partial(call_all, sleep), partial(call_all, wake))

    def _validation_stage(self, explorer: Explorer, rewards: Rewards) -> ValidationStage:
        config, derived = self.config, self.prepared.derived
        generating = config.validation.generating_args if config.validation else config.actor_infer.generating_args
        return ValidationStage(
            explorer,
            rewards,
            self.prepared.validation,
            sampling_params(generating, derived.val_max_new_tokens, self.prepared.tokenizer),
            derived.val_num_return_sequences,
            self._validation_due,
            self._report_validation,
            self._clock,
        )

    def _validation_due(self, version: int) -> bool:
        due = version % self.config.eval_steps == 0 or version == self.config.max_steps
        # The checkpoint that a run resumes from may have been evaluated already.
        done = any(step == version for step, _ in self.state.record.validation)
        return bool(self.prepared.validation) and due and not done

    # -- what happens to a step -----------------------------------------------------------------------------------------

    def _make_batch(self, lease: Lease) -> TokenBatch:
        temperature = self.config.actor_infer.generating_args.temperature
        return batching.token_batch(lease.groups, temperature, self.config)

    def _optimiser_batches(self, batch: TokenBatch, step: int) -> list[TokenBatch]:
        size = self.prepared.derived.optimizer_batch_size
        seed = derive_seed(self.config.seed, "shuffle", step)
        batches = batching.optimiser_batches(batch, size, self.config.ppo_epochs, seed)
        return [prepare_batch(one, self._loss) for one in batches]

    async def _log_probs(self, cluster: Cluster, batch: TokenBatch) -> Tensor:
        ranks = len(cluster)
        parts: Sequence[Tensor] = await cluster.scatter("log_probs", batching.shards(batch, ranks))
        return batching.gather(parts, batch, ranks)

    async def _after_step(self, item: TrainItem, batches: BatchStage) -> None:
        groups = item.lease.groups
        await self.state.buffer.ack(item.lease)
        self.state.fates.trained(item.lease)
        samples = [sample for group in groups for sample in group.samples]
        counts = self.state.admission.counts()
        now = self._clock()
        metrics = (
            item.metrics
            | batching.reward_metrics(samples)
            | {
                "time/wait_for_batch_s": item.wait_s,
                "time/step_s": now - item.leased_at,
                "scheduler/pipeline_depth": self.state.depth.depth,
                "scheduler/buffered_groups": float(counts["buffered"]),
                "scheduler/in_flight_groups": float(counts["in_flight"]),
                "scheduler/dropped_groups": float(sum(counts["dropped"].values())),
            }
        )
        self.state.record.add_step(item.step, groups, metrics)
        if self.state.record.step % self.config.save_steps == 0 or self.state.record.step == self.config.max_steps:
            await self.state.save(self._clusters["actor_train"])
        batches.step_trained()

    def _report_validation(self, result: ValidationResult) -> None:
        metrics = {
            ACCURACY: result.accuracy,
            "val/score/mean": result.reward,
            "val/errors": float(result.errors),
            "time/validation_s": result.seconds,
        }
        metrics |= {f"val_correct/{tag}/mean": accuracy for tag, accuracy in result.by_tag.items()}
        self.state.record.add_validation(result.version, metrics)

    def _decode(self, token_ids: list[int]) -> str:
        return str(self.prepared.tokenizer.decode(token_ids, skip_special_tokens=True))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _figures(self, wall_s: float) -> dict[str, Any]:
        """Of the run, for summary.json."""
        wiring = self._wiring
        return {
            **self.state.record.figures(wall_s),
            "groups": self.state.admission.counts(),
            "idle_share": {role: wiring.flow.idle_share(role) for role in ("actor_train", "actor_infer")} if wiring else {},
            "weight_updates": (wiring.update.stats if wiring else UpdateStats()).summary(),
            "engines": [
                {"generated_tokens": e.generated_tokens, "prefill_tokens": e.prefill_tokens, "busy_s": e.busy_s}
                for e in self._engine_stats
            ],
            "prompts_skipped": self.prepared.skipped,
            "reward_errors": dict(wiring.rewards.errors) if wiring else {},
            "resumed_from_step": self.state.first_step,
        }


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OSError | RuntimeError | ValueError) and text else f"{type(error).__name__}: {text}"
