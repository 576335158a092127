"""What is done to the batch of a step between its stages, and when it has been trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from roll.algorithms.loss import LossSpec, prepare_batch
from roll.buffer.interface import Lease
from roll.configs.derived import Derived
from roll.configs.ppo import PPOConfig
from roll.data.sample import Sample
from roll.data.seeding import derive_seed
from roll.data.token_batch import TokenBatch
from roll.distributed.cluster import Cluster
from roll.metrics.mismatch import suspects
from roll.pipeline import batch as batching
from roll.pipeline.run_record import ACCURACY
from roll.pipeline.run_state import RunState
from roll.pipeline.trainer_stages import TrainItem
from roll.pipeline.validation import ValidationResult
from roll.weights.push_interval import PushInterval

logger = logging.getLogger(__name__)


class StepWork:
    def __init__(
        self,
        config: PPOConfig,
        derived: Derived,
        loss: LossSpec,
        state: RunState,
        trainers: Cluster,
        keep: batching.Keep | None,
        rollout_metrics: Callable[[Sequence[Sample]], dict[str, float]],
        clock: Callable[[], float],
    ) -> None:
        """`keep`: which samples are trained. `rollout_metrics`: what the pipeline tells of a step's samples."""
        self.push = PushInterval(config.weight_push_interval, config.max_steps)
        self._config = config
        self._derived = derived
        self._loss = loss
        self._state = state
        self._trainers = trainers
        self._keep = keep
        self._rollout_metrics = rollout_metrics
        self._clock = clock

    def make_batch(self, lease: Lease) -> TokenBatch:
        return batching.token_batch(lease.groups, self._config.actor_infer.generating_args.temperature, self._keep, lease.step)

    def optimiser_batches(self, batch: TokenBatch, step: int) -> list[TokenBatch]:
        """Of the policy: none while the critic warms up."""
        if step < self._config.critic_warmup:
            return []
        return [prepare_batch(one, self._loss) for one in self._cut(batch, self._derived.optimizer_steps_per_epoch, step)]

    def critic_batches(self, batch: TokenBatch, step: int) -> list[TokenBatch]:
        return self._cut(batch, self._derived.critic_steps_per_epoch, step)

    def _cut(self, batch: TokenBatch, count: int, step: int) -> list[TokenBatch]:
        seed = derive_seed(self._config.seed, "shuffle", step)
        return batching.optimiser_batches(batch, count, self._config.ppo_epochs, seed)

    async def per_token(self, cluster: Cluster, method: str, batch: TokenBatch) -> Tensor:
        """[N] what a method of all workers (`log_probs`, `values`) says of the batch."""
        ranks = cluster.num_shards
        parts: Sequence[Tensor] = await cluster.scatter(method, batching.shards(batch, ranks))
        return batching.gather(parts, batch, ranks)

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is made of that step."""
        return step % self._config.save_steps == 0 or step == self._config.max_steps

    async def finish(self, item: TrainItem) -> None:
        """Accounts, metrics and, when it is due, a checkpoint of a step that has been trained."""
        state = self._state
        groups = item.lease.groups
        await state.buffer.ack(item.lease)
        state.fates.trained(item.lease)
        samples = [sample for group in groups for sample in group.samples]
        counts = state.admission.counts()
        metrics = (
            item.metrics
            | batching.reward_metrics(samples)
            | self._rollout_metrics(samples)
            | {
                "time/wait_for_batch_s": item.wait_s,
                "time/step_s": self._clock() - item.leased_at,
                "scheduler/pipeline_depth": state.depth.depth,
                "scheduler/buffered_groups": float(counts["buffered"]),
                "scheduler/in_flight_groups": float(counts["in_flight"]),
                "scheduler/dropped_groups": float(sum(counts["dropped"].values())),
            }
        )
        self._warn_of_mismatch(item)
        state.record.add_step(item.step, groups, metrics)
        if self.saves(state.record.step):
            await state.save(self._trainers)

    def _warn_of_mismatch(self, item: TrainItem) -> None:
        alarm = self._config.mismatch_alarm
        if alarm is None:
            return
        for engine, nats in suspects(item.metrics, alarm):
            logger.warning(
                "step %d: the log-probs of actor_infer engine %d differ from the trainer's by %.3g nats a token under the same "
                "weights (mismatch_alarm %g): another dtype, or weights that are not what they should be",
                item.step + 1,
                engine,
                nats,
                alarm,
            )

    def validation_due(self, has_validation: bool, version: int) -> bool:
        """Of a version that is, or could be, published."""
        due = self.push.reaches(version, self._config.eval_steps) or version == self._config.max_steps
        # The checkpoint that a run resumes from may have been evaluated already.
        done = any(step == version for step, _ in self._state.record.validation)
        return has_validation and due and not done

    def report_validation(self, result: ValidationResult) -> None:
        metrics: dict[str, Any] = {
            ACCURACY: result.accuracy,
            "val/score/mean": result.reward,
            "val/errors": float(result.errors),
            "time/validation_s": result.seconds,
        }
        metrics |= {f"val_correct/{tag}/mean": accuracy for tag, accuracy in result.by_tag.items()}
        self._state.record.add_validation(result.version, metrics | result.more)
