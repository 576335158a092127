"""The training side of a run: a step in the order in which it happens. The batch of a step moves through it as one `Step`.

    lease → (values | log_probs | reference | teachers) → advantages → (update_critic | update) → gather

Stages side by side (`|`) work at the same time where devices allow it. The next step begins when the step before is trained, its
accounts and metrics are written, and a snapshot is taken for its checkpoint. Roles that score on devices of their own
(`Derived.scored_ahead`) run one step ahead: its groups are leased when the step before has begun. Values that change with the
weights, or go into a checkpoint, still wait for their turn: no number depends on which role runs ahead. So do actor_log_prob's
weights: the step number determines their version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from roll.core.algorithms.correction import ESS
from roll.core.algorithms.loss import LossSpec, prepare_batch
from roll.core.algorithms.value_loss import ValueLossSpec
from roll.core.configs.derived import Derived
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.sizes import MIB
from roll.core.data.seeding import derive_seed
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.engines.policy_copy import PolicyCopy
from roll.core.errors import Closed, contained
from roll.core.groups.groups import Groups
from roll.core.groups.lease import Lease
from roll.core.groups.pipeline_depth import StepTimes
from roll.core.groups.schedule import StepSchedule
from roll.core.record.callbacks import Reports
from roll.core.trainer import batch as batching
from roll.core.trainer.advantages import Advantages
from roll.core.trainer.checkpoint_writer import CheckpointWriter
from roll.core.trainer.milestones import Milestone, Milestones
from roll.core.trainer.optimise import optimise
from roll.core.weights.store import Buckets, WeightStore
from roll.core.weights.transport import NewWeights, gather_weights

logger = logging.getLogger(__name__)
Shares: TypeAlias = tuple[list[list[int]], list[Any]]
"""The samples of each rank, and its result."""
Asks: TypeAlias = Callable[..., Awaitable[Shares]]
"""A method of the workers of a role, a batch, and its other arguments."""


@dataclass(slots=True)
class Step:
    """One step's batch on its way through the trainer."""

    lease: Lease
    batch: TokenBatch
    metrics: dict[str, float] = field(default_factory=dict)
    idle_s: float = 0.0
    """Seconds that the trainer had no groups."""
    scored_at: float = 0.0
    scored_s: float = 0.0
    """Time at which the roles that score ahead had scored it, and the seconds that took."""

    @property
    def number(self) -> int:
        """Steps done before this one: the policy version that it trains."""
        return self.lease.step

    @property
    def label(self) -> str:
        return f"step {self.number + 1}"


Teaching: TypeAlias = Callable[[Step, str, Asks, batching.Keep], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Training:
    """The part of a run that its trainer works on."""

    groups: Groups
    schedule: StepSchedule
    reports: Reports
    advantages: Advantages
    first_step: int
    """Number of steps done already."""
    checkpoints: CheckpointWriter
    announce: Callable[[Buckets], None]
    """Called when the gathering of a version begins."""
    teaching: Teaching | None = None
    """Puts a teacher's answers into a step's batch."""


class Trainer:
    """Trains the steps of a run. `store`: receives new weights. `copy`: a copy of the policy that recomputes log-probs in its
    place."""

    on_arrival = False
    """True if a step takes its groups as they arrive, False if all together."""

    def __init__(
        self,
        config: PPOConfig,
        derived: Derived,
        loss: LossSpec,
        training: Training,
        clusters: Mapping[str, Cluster],
        store: WeightStore,
        copy: PolicyCopy | None = None,
    ) -> None:
        self._config = config
        self._derived = derived
        # Explorers of other processes number their engines themselves, each from 0.
        self._loss = replace(loss, engines=len(clusters["actor_infer"]) if "actor_infer" in clusters else 1)
        self._value_loss = ValueLossSpec(clip=config.value_clip)
        self._groups, self._schedule = training.groups, training.schedule
        self._teaching = training.teaching
        self._reports, self._advantages, self._announce = training.reports, training.advantages, training.announce
        self._policy = clusters["actor_train"]
        self._critic = clusters.get("critic")
        self._clusters = clusters
        self._copy, self._store, self._checkpoints = copy, store, training.checkpoints
        self._batches = training.reports.record.journals.batches
        self._next = training.first_step
        self.milestones = Milestones(self._groups, self._next)
        self._done_at = 0.0
        self._step_s = 0.0
        """Seconds that the step before took."""
        self._scored_at = 0.0
        """Time at which the step before was scored ahead."""
        self._ess: float | None = None
        """Effective sample size of the importance weights of the step before."""

    async def lease(self) -> Step:
        """Leases the next step, with its groups. Raises `Closed` after the last."""
        await self.milestones.until(Milestone.DONE, self._next - bool(self._derived.scored_ahead), "lease")
        lease = await self._groups.lease(self._next, self.on_arrival)
        self._next += lease.last
        await self._batches.leased(lease.step, lease.groups)
        temperature = self._config.actor_infer.generating_args.temperature
        compared = self._scored_with(lease.step)
        # In a thread: all tokens of a step take time, and the event loop serves the rollouts.
        made = asyncio.to_thread(batching.token_batch, lease.groups, temperature, self._advantages.trains, compared)
        return Step(lease, await made)

    def _scored_with(self, step: int) -> int:
        """Returns the version whose log-probs are compared with the sampler's."""
        return step if self._copy is None else self._copy.version_for(step)

    # -- what a stage waits for before it works; the wait ends with `Closed` if the run stops before -------------------------

    async def after_previous_step(self, step: Step, stage: str) -> None:
        """Waits until the step before is trained and recorded. `stage`: the waiting stage."""
        await self.milestones.until(Milestone.DONE, step.number, stage)

    async def before_values(self, step: Step) -> None:
        """Waits for the critic that has learnt from the step before."""
        ahead = "critic" in self._derived.scored_ahead
        await self.milestones.until(Milestone.CRITIC_UPDATED if ahead else Milestone.DONE, step.number, "value")

    async def before_log_probs(self, step: Step) -> None:
        """Waits until the weights that the step starts from are trained, or a copy has its version."""
        if "actor_log_prob" not in self._derived.scored_ahead:
            await self.after_previous_step(step, "log_prob")
        if self._copy is not None:
            await self._copy.ready_for(step.number)

    async def before_frozen(self, step: Step, role: str) -> None:
        """Waits for nothing if the role, which never changes, has devices of its own."""
        if role not in self._derived.scored_ahead:
            await self.after_previous_step(step, role)

    async def before_advantages(self, step: Step) -> None:
        """Waits for the step before. Its waits and this step's are then known, and the groups' depth learns from them."""
        await self.after_previous_step(step, "advantage")
        lease, groups = step.lease, self._groups
        if groups.hurried or (groups.stopped and lease.leased_at < self._done_at):
            raise Closed
        step.idle_s = max(0.0, lease.leased_at - max(lease.asked_at, self._done_at))
        asked_at, self._scored_at = max(lease.asked_at, self._scored_at), step.scored_at
        if self._step_s:
            times = StepTimes(asked_at, lease.complete_at, lease.leased_at, step.scored_s, self._done_at)
            reused = lease.reuses / len(lease.groups)
            await groups.observe_step(times.wait_s, self._step_s, times.slack_s, reused, self._ess)

    async def before_policy_update(self, step: Step) -> None:
        """Waits until the weights of the step before are gathered. From here on the step is always trained, even if the run
        stops."""
        await self.milestones.until(Milestone.GATHERED, step.number, "policy", even_stopped=True)

    # -- a step -------------------------------------------------------------------------------------------------------------

    async def values(self, step: Step) -> Step:
        """Computes the critic's values of the states that the tokens were sampled in."""
        assert self._critic is not None
        values = await self._per_token(self._critic, "values", step, step.batch)
        step.batch = step.batch.with_(values=values)
        return step

    async def log_probs(self, step: Step) -> Step:
        """Computes proximal log-probs: those of the weights that the step starts from, or of a copy's version."""
        scorer = self._policy if self._copy is None else self._copy.cluster
        log_probs = await self._per_token(scorer, "log_probs", step, step.batch)
        step.batch = step.batch.with_(proximal_logprobs=log_probs)
        if self._copy is not None and step.lease.last:
            self._copy.scored(step.number)
        return step

    async def reference(self, step: Step) -> Step:
        """Computes log-probs of the frozen reference policy."""
        log_probs = await self._per_token(self._clusters["reference"], "log_probs", step, step.batch)
        step.batch = step.batch.with_(reference_logprobs=log_probs)
        return step

    async def teach(self, step: Step, role: str) -> Step:
        """Asks a teacher about the samples that it teaches."""
        assert self._teaching is not None, "prepared with the configuration of its teachers"
        asks = partial(self._asked, self._clusters.get(role, self._policy), step)
        await self._teaching(step, role, asks, self._advantages.trains)
        return step

    async def advantages(self, step: Step) -> Step:
        step.batch, metrics = await asyncio.to_thread(contained, self._advantages, step.batch, step.lease.groups)
        step.metrics |= metrics
        return step

    async def update_critic(self, step: Step) -> Step:
        """Takes the critic's optimiser steps. If a checkpoint of the step will be made, takes the critic's part of it now: later
        another role may have its devices."""
        assert self._critic is not None
        batches = [_for(self._critic, batch) for batch in self._cut(step, self._derived.critic_steps_per_epoch)]
        self.milestones.passed(Milestone.BEGUN, step.number + 1)
        step.metrics |= await optimise(self._critic, batches, self._value_loss)
        if self._schedule.saves(step.number + 1):
            await self._checkpoints.snapshot_critic()
        self.milestones.passed(Milestone.CRITIC_UPDATED, step.number + 1)
        return step

    async def update(self, step: Step) -> Step:
        """Takes the policy's optimiser steps: none while the critic warms up."""
        batches: list[TokenBatch] = []
        if step.number >= self._config.critic_warmup:
            cut = await asyncio.to_thread(self._cut, step, self._derived.optimizer_steps_per_epoch)
            batches = [prepare_batch(batch, self._loss) for batch in cut]
        self.milestones.passed(Milestone.BEGUN, step.number + 1)
        step.metrics |= await optimise(self._policy, batches, self._loss)
        return step

    async def gather(self, step: Step) -> NewWeights | None:
        """Finishes the step: marks its groups trained, records metrics and starts a checkpoint if one is due. Returns the new
        weights, or None if this version is not published."""
        await self._finish(step)
        version = step.number + 1
        weights = await self.gather_weights(version) if self._schedule.publishes(version) else None
        self.milestones.passed(Milestone.GATHERED, version)
        return weights

    async def train(self, step: Step) -> NewWeights | None:
        """Runs `update` and `gather` without releasing the devices."""
        return await self.gather(await self.update(step))

    async def gather_weights(self, version: int) -> NewWeights:
        coming = Buckets(version)
        self._announce(coming)
        bucket_bytes = self._config.model_update_buffer_size_mb * MIB
        weights = await gather_weights(self._policy, self._store, version, bucket_bytes, coming)
        self._batches.gathered(weights.manifest)
        return weights

    async def _finish(self, step: Step) -> None:
        self._step_s = monotonic() - max(step.lease.leased_at, self._done_at)
        self._ess = step.metrics.get(ESS, self._ess)
        await self._groups.trained(step.lease)
        groups = step.lease.groups
        samples = [sample for group in groups for sample in group.samples]
        admission = self._groups.admission
        counts = admission.counts()
        metrics = (
            step.metrics
            | await asyncio.to_thread(self._advantages.rollouts, groups)
            | self._advantages.describe(samples)
            | {
                "time/wait_for_batch_s": step.idle_s,
                "time/step_s": self._step_s,
                "staleness/engines_behind": float(step.number - admission.version),
                "scheduler/async_ratio": admission.ratio,
                "scheduler/pipeline_depth": self._groups.depth.depth,
                "scheduler/buffered_groups": float(counts["buffered"]),
                "scheduler/in_flight_groups": float(counts["in_flight"]),
                "scheduler/dropped_groups": float(sum(counts["dropped"].values())),
                "scheduler/reused_groups": float(counts["reused"]),
            }
        )
        if self._copy is not None:
            metrics["staleness/proximal_lag"] = float(step.number - self._scored_with(step.number))
        self._batches.trained(step.number)
        row = self._reports.record.add_step(step.number, groups, step.batch, metrics)
        self.milestones.passed(Milestone.RECORDED, step.number + 1)
        await self._reports.step(row)
        if self._schedule.saves(step.number + 1):
            await self._checkpoints.begin()
        self._done_at = monotonic()
        self.milestones.passed(Milestone.DONE, step.number + 1)

    def _cut(self, step: Step, count: int) -> list[TokenBatch]:
        """Returns the batches of the optimiser steps."""
        seed = derive_seed(self._config.seed, "shuffle", step.number)
        return batching.optimiser_batches(step.batch, count, self._config.ppo_epochs, seed)

    async def _per_token(self, cluster: Cluster, method: str, step: Step, batch: TokenBatch) -> Tensor:
        """Returns [N], the results of a method of all workers (`log_probs`, `values`) for a batch of the step."""
        by_rank, parts = await self._asked(cluster, step, method, batch)
        return batching.gather(parts, batch, by_rank)

    async def scores(self, cluster: Cluster, method: str, batch: TokenBatch) -> Tensor:
        by_rank, parts = await self._scattered(cluster, method, batch)
        return batching.gather(parts, batch, by_rank)

    async def _asked(self, cluster: Cluster, step: Step, method: str, batch: TokenBatch, *args: object) -> Shares:
        """Returns `_scattered`, on the clock of the step."""
        begun_at = monotonic()
        found = await self._scattered(cluster, method, batch, *args)
        if cluster.role in self._derived.scored_ahead:
            step.scored_at = monotonic()
            step.scored_s = max(step.scored_s, step.scored_at - begun_at)
        return found

    async def _scattered(self, cluster: Cluster, method: str, batch: TokenBatch, *args: object) -> Shares:
        batch = _for(cluster, batch)
        by_rank = await asyncio.to_thread(batching.shares, batch, cluster.num_shards)  # it compares all tokens
        shards = await asyncio.to_thread(lambda: [batch.select(indices) for indices in by_rank])
        return by_rank, await cluster.scatter(method, shards, *args)


def _for(cluster: Cluster, batch: TokenBatch) -> TokenBatch:
    """Returns the batch for a role: a model that is not the policy has experts of its own."""
    return batch if cluster.role in ("actor_train", "actor_log_prob") else batch.with_(routes=None)
