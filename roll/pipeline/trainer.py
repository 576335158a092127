"""The trainer half of a run: a step in the order in which it happens. The batch of a step moves through it as one `Step`.

    lease → (values | log_probs | reference) → advantages → (update_critic | update) → gather

Stages side by side (`|`) work at the same time where devices allow it. The next step's groups are leased when the step
before is trained, its accounts and metrics are written, and a snapshot is taken for its checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from roll.algorithms.loss import LossSpec, prepare_batch
from roll.algorithms.value_loss import ValueLossSpec
from roll.configs.derived import Derived
from roll.configs.ppo import PPOConfig
from roll.data.seeding import derive_seed
from roll.data.token_batch import TokenBatch
from roll.distributed.cluster import Cluster
from roll.metrics.mismatch import suspects
from roll.pipeline import batch as batching
from roll.pipeline.checkpoint_writer import CheckpointWriter
from roll.pipeline.optimise import optimise
from roll.pipeline.state import RunState
from roll.rollout.groups import Lease
from roll.weights.gather import NewWeights, gather_weights
from roll.weights.store import WeightStore

MIB = 1 << 20

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Step:
    """One step's batch on its way through the trainer."""

    lease: Lease
    batch: TokenBatch
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Steps done before this one: the policy version that it trains."""
        return self.lease.step


class Trainer:
    def __init__(
        self,
        config: PPOConfig,
        derived: Derived,
        loss: LossSpec,
        state: RunState,
        clusters: Mapping[str, Cluster],
        store: WeightStore,
        checkpoints: CheckpointWriter,
    ) -> None:
        """`store`: where new weights are gathered to."""
        self._config = config
        self._derived = derived
        # Explorers of other processes number their engines themselves, each from 0.
        self._loss = replace(loss, engines=len(clusters["actor_infer"]) if "actor_infer" in clusters else 1)
        self._value_loss = ValueLossSpec(clip=config.value_clip)
        self._state = state
        self._policy = clusters["actor_train"]
        self._critic = clusters.get("critic")
        self._reference = clusters.get("reference")
        self._store = store
        self._checkpoints = checkpoints
        self._next = state.first_step
        self._done = asyncio.Event()
        """The step before is trained and written down."""
        self._done.set()

    async def lease(self) -> Step:
        """The next step, with its groups. Raises `Closed` after the last."""
        await self._done.wait()
        lease = await self._state.groups.lease(self._next)
        self._done.clear()
        self._next += 1
        temperature = self._config.actor_infer.generating_args.temperature
        return Step(lease, batching.token_batch(lease.groups, temperature, self._state.advantages.trains, lease.step))

    async def values(self, step: Step) -> Step:
        """The critic's values of the states that the tokens were taken in."""
        assert self._critic is not None
        values = await self._per_token(self._critic, "values", step)
        step.batch = step.batch.with_(values=values)
        return step

    async def log_probs(self, step: Step) -> Step:
        """Proximal log-probs: those of the weights that the step starts from."""
        log_probs = await self._per_token(self._policy, "log_probs", step)
        step.batch = step.batch.with_(proximal_logprobs=log_probs)
        return step

    async def reference(self, step: Step) -> Step:
        """Log-probs of the frozen reference policy."""
        assert self._reference is not None
        log_probs = await self._per_token(self._reference, "log_probs", step)
        step.batch = step.batch.with_(reference_logprobs=log_probs)
        return step

    async def advantages(self, step: Step) -> Step:
        # In a thread: the tensors of a large batch take time, and the event loop serves the rollouts.
        step.batch, metrics = await asyncio.to_thread(self._state.advantages, step.batch, step.lease.groups)
        step.metrics |= metrics
        return step

    async def update_critic(self, step: Step) -> Step:
        """The critic's optimiser steps. If a checkpoint of the step will be made, the critic's part of it is taken now: later
        another role may have its devices."""
        assert self._critic is not None
        batches = self._cut(step, self._derived.critic_steps_per_epoch)
        step.metrics |= await optimise(self._critic, batches, self._value_loss)
        if self._state.schedule.saves(step.number + 1):
            await self._checkpoints.snapshot_critic()
        return step

    async def update(self, step: Step) -> Step:
        """The policy's optimiser steps: none while the critic warms up."""
        batches: list[TokenBatch] = []
        if step.number >= self._config.critic_warmup:
            cut = self._cut(step, self._derived.optimizer_steps_per_epoch)
            batches = [prepare_batch(batch, self._loss) for batch in cut]
        step.metrics |= await optimise(self._policy, batches, self._loss)
        return step

    async def gather(self, step: Step) -> NewWeights | None:
        """Accounts and metrics of the step that was trained, the begin of its checkpoint, and its weights, if they are to be
        published."""
        await self._finish(step)
        version = step.number + 1
        return await self.gather_weights(version) if self._state.schedule.publishes(version) else None

    async def train(self, step: Step) -> NewWeights | None:
        """`update` and `gather` without letting go of the devices."""
        return await self.gather(await self.update(step))

    async def gather_weights(self, version: int) -> NewWeights:
        return await gather_weights(self._policy, self._store, version, self._config.model_update_buffer_size_mb * MIB)

    async def _finish(self, step: Step) -> None:
        state = self._state
        await state.groups.trained(step.lease)
        groups = step.lease.groups
        samples = [sample for group in groups for sample in group.samples]
        counts = state.groups.admission.counts()
        metrics = (
            step.metrics
            | batching.rollout_metrics(groups)
            | state.advantages.describe(samples)
            | {
                "time/wait_for_batch_s": step.lease.wait_s,
                "time/step_s": time.monotonic() - step.lease.leased_at,
                "scheduler/pipeline_depth": state.groups.depth.depth,
                "scheduler/buffered_groups": float(counts["buffered"]),
                "scheduler/in_flight_groups": float(counts["in_flight"]),
                "scheduler/dropped_groups": float(sum(counts["dropped"].values())),
                "scheduler/replayed_groups": float(counts["replayed"]),
            }
        )
        self._warn_of_mismatch(step)
        state.record.add_step(step.number, groups, step.batch, metrics)
        if state.schedule.saves(state.record.step):
            await self._checkpoints.begin()
        self._done.set()

    def _warn_of_mismatch(self, step: Step) -> None:
        alarm = self._config.mismatch_alarm
        for engine, nats in suspects(step.metrics, alarm) if alarm is not None else ():
            logger.warning(
                "step %d: the log-probs of actor_infer engine %d differ from the trainer's by %.3g nats a token under the same "
                "weights (mismatch_alarm %g): another dtype, or weights that are not what they should be",
                step.number + 1,
                engine,
                nats,
                alarm,
            )

    def _cut(self, step: Step, count: int) -> list[TokenBatch]:
        """The batches of the optimiser steps."""
        seed = derive_seed(self._config.seed, "shuffle", step.number)
        return batching.optimiser_batches(step.batch, count, self._config.ppo_epochs, seed)

    async def _per_token(self, cluster: Cluster, method: str, step: Step) -> Tensor:
        """[N] what a method of all workers (`log_probs`, `values`) says of the batch."""
        ranks = cluster.num_shards
        parts = await cluster.scatter(method, batching.shards(step.batch, ranks))
        return batching.gather(parts, step.batch, ranks)
