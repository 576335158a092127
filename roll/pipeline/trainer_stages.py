"""The trainer half of a run: groups are leased, scored, given advantages, trained, and the new weights published.

The batch of a step moves through the stages as one `TrainItem`. The next step's groups are leased when the one before is trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from torch import Tensor

from roll.algorithms.loss import LossSpec
from roll.buffer.interface import Buffer, Lease
from roll.data.token_batch import TokenBatch
from roll.distributed.cluster import Cluster
from roll.pipeline.engine_fleet import EngineFleet
from roll.pipeline.optimise import optimise
from roll.pipeline.stage import Closed, Stage
from roll.rollout.pipeline_depth import PipelineDepth
from roll.weights.bucket import Manifest
from roll.weights.store import BucketRef, WeightStore

Clock = Callable[[], float]


@dataclass(slots=True)
class TrainItem:
    """One step's batch on its way through the trainer."""

    lease: Lease
    wait_s: float
    leased_at: float
    batch: TokenBatch
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Steps done before this one: the policy version it trains on."""
        return self.lease.step


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Gathered, not yet sent."""

    manifest: Manifest
    buckets: list[BucketRef]


class BatchStage(Stage[TrainItem, TrainItem]):
    """Leases the groups of the next step as soon as the step before is trained."""

    name = "batch"

    def __init__(
        self,
        buffer: Buffer,
        make_batch: Callable[[Lease], TokenBatch],
        depth: PipelineDepth,
        depth_changed: Callable[[], None],
        clock: Clock,
        first_step: int,
        max_steps: int,
    ) -> None:
        """`depth_changed` is called after the depth took a step into account: more groups may start now."""
        super().__init__()
        self._depth_changed = depth_changed
        self._buffer = buffer
        self._make_batch = make_batch
        self._depth = depth
        self._clock = clock
        self._step = first_step
        self._max_steps = max_steps
        self._trained = asyncio.Event()
        self._trained.set()
        self._stop = asyncio.Event()
        self._leased_at: float | None = None

    def step_trained(self) -> None:
        self._trained.set()

    def stop(self) -> None:
        """No further step begins."""
        self._stop.set()

    def waiting_reason(self) -> str:
        waiting_for = self._buffer.waiting_for
        return f"step {self._step + 1} waits for {waiting_for}" if waiting_for else ""

    async def receive(self) -> TrainItem:
        await self._trained.wait()
        if self._step >= self._max_steps or self._stop.is_set():
            raise Closed
        asked = self._clock()
        lease = await self._lease()
        now = self._clock()
        if self._leased_at is not None:
            self._depth.observe(wait_s=now - asked, train_s=asked - self._leased_at, slack_s=lease.slack_s)
            self._depth_changed()
        self._leased_at = now
        self._trained.clear()
        self._step += 1
        return TrainItem(lease, now - asked, now, self._make_batch(lease))

    async def _lease(self) -> Lease:
        lease = asyncio.ensure_future(self._buffer.lease(self._step))
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({lease, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not lease.done():
                raise Closed
            return lease.result()
        finally:
            lease.cancel()
            stop.cancel()

    async def process(self, item: TrainItem) -> TrainItem:
        return item


PerToken = Callable[[TokenBatch], Awaitable[Tensor]]
"""TokenBatch -> [N], by some cluster: log-probs, values."""


class LogProbStage(Stage[TrainItem, TrainItem]):
    """Proximal log-probs: those of the weights that the step starts from."""

    name = "log_prob"
    role = "actor_train"

    def __init__(self, log_probs: PerToken) -> None:
        super().__init__()
        self._log_probs = log_probs

    async def process(self, item: TrainItem) -> TrainItem:
        log_probs = await self._log_probs(item.batch)
        item.batch = item.batch.with_(proximal_logprobs=log_probs)
        return item


class ReferenceStage(Stage[TrainItem, TrainItem]):
    """Log-probs of the frozen reference policy."""

    name = "reference"
    role = "reference"

    def __init__(self, log_probs: PerToken) -> None:
        super().__init__()
        self._log_probs = log_probs

    async def process(self, item: TrainItem) -> TrainItem:
        log_probs = await self._log_probs(item.batch)
        item.batch = item.batch.with_(reference_logprobs=log_probs)
        return item


class AdvantageStage(Stage[TrainItem, TrainItem]):
    name = "advantage"

    def __init__(self, with_advantages: Callable[[TokenBatch, Lease], tuple[TokenBatch, dict[str, float]]]) -> None:
        """`with_advantages`: the batch with its advantages, and metrics; called once a step, in order."""
        super().__init__()
        self._with_advantages = with_advantages

    async def process(self, item: TrainItem) -> TrainItem:
        # Aside: the tensors of a large batch take their time, and the event loop serves the rollouts.
        item.batch, metrics = await asyncio.to_thread(self._with_advantages, item.batch, item.lease)
        item.metrics |= metrics
        return item


class PolicyStage(Stage[TrainItem, TrainItem]):
    """The policy's optimiser steps."""

    name = "policy"
    role = "actor_train"

    def __init__(self, cluster: Cluster, loss: LossSpec, batches: Callable[[TokenBatch, int], list[TokenBatch]]) -> None:
        """`batches`: the optimiser batches of a step's batch and number."""
        super().__init__()
        self._cluster = cluster
        self._loss = loss
        self._batches = batches

    async def process(self, item: TrainItem) -> TrainItem:
        metrics = await optimise(self._cluster, self._batches(item.batch, item.step), self._loss)
        item.metrics |= metrics
        return item


class GatherStage(Stage[TrainItem, NewWeights]):
    """The gathering of the new weights. What follows a step (accounts, metrics, a checkpoint) happens in `on_trained`, while the
    weights are exactly those of the step."""

    name = "gather"
    role = "actor_train"

    def __init__(self, cluster: Cluster, bucket_bytes: int, on_trained: Callable[[TrainItem], Awaitable[None]]) -> None:
        super().__init__()
        self._cluster = cluster
        self._bucket_bytes = bucket_bytes
        self._on_trained = on_trained

    async def process(self, item: TrainItem) -> NewWeights:
        await self._on_trained(item)
        return await gather_weights(self._cluster, item.step + 1, self._bucket_bytes)


class TrainStage(Stage[TrainItem, NewWeights]):
    """Both, without letting go of the devices."""

    name = "train"
    role = "actor_train"

    def __init__(self, policy: PolicyStage, gather: GatherStage) -> None:
        super().__init__()
        self._policy = policy
        self._gather = gather

    async def process(self, item: TrainItem) -> NewWeights:
        return await self._gather.process(await self._policy.process(item))


async def gather_weights(cluster: Cluster, version: int, bucket_bytes: int) -> NewWeights:
    """The trainer's weights as buckets that stay where rank 0 made them; only their names and checksums come here."""
    async with asyncio.TaskGroup() as group:
        for rank in range(1, len(cluster)):
            group.create_task(cluster.call(rank, "assist_export", bucket_bytes))
        return await group.create_task(_collect(cluster, version, bucket_bytes))


async def _collect(cluster: Cluster, version: int, bucket_bytes: int) -> NewWeights:
    await cluster.call(0, "begin_export", bucket_bytes)
    manifest = Manifest(version)
    buckets: list[BucketRef] = []
    while True:
        reference, info = await cluster.keep(0, "next_bucket")
        if info is None:
            return NewWeights(manifest, buckets)
        names, checksum, nbytes = info
        manifest.names += names
        manifest.checksums.append(checksum)
        manifest.nbytes += nbytes
        buckets.append(reference)


@dataclass(slots=True)
class UpdateStats:
    """What weight updates cost."""

    count: int = 0
    bytes: int = 0
    pauses_s: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        pauses = self.pauses_s or [0.0]
        return {
            "count": self.count,
            "bytes": self.bytes,
            "pause_s_mean": sum(pauses) / len(pauses),
            "pause_s_max": max(pauses),
        }


class ParameterUpdateStage(Stage[NewWeights, int]):
    """Sends new weights to all engines while they generate and the trainer trains on, then has each flip at a token border.
    A version is published when every engine serves it. Hands on the version."""

    name = "parameter_update"

    def __init__(
        self,
        store: WeightStore,
        engines: EngineFleet,
        publish: Callable[[int], None],
        engines_free: Callable[[], Awaitable[None]],
    ) -> None:
        """`engines_free` is awaited between sending and flipping: a running evaluation of the present version holds it."""
        super().__init__()
        self._store = store
        self._engines = engines
        self._publish = publish
        self._engines_free = engines_free
        self.stats = UpdateStats()

    async def process(self, item: NewWeights) -> int:
        version = item.manifest.version
        await self._store.publish(item.manifest, item.buckets)
        await self._engines.send(version)
        await self._engines_free()
        pauses = await self._engines.flip(item.manifest)
        self.stats.count += 1
        self.stats.bytes += item.manifest.nbytes * len(pauses)
        self.stats.pauses_s += pauses
        self._publish(version)
        return version
