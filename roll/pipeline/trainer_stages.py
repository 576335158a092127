"""The trainer half of a run: groups are leased, scored, given advantages, trained, and the new weights published.

The batch of a step moves through the stages as one `TrainItem`. The next step's groups are leased when the one before is trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from roll.algorithms.loss import LossSpec
from roll.buffer.interface import Buffer, Lease
from roll.data.token_batch import TokenBatch
from roll.distributed.cluster import Cluster
from roll.pipeline.stage import Closed, Stage
from roll.rollout.pipeline_depth import PipelineDepth
from roll.strategies.infer.interface import WeightUpdateMode
from roll.strategies.train.interface import BatchTotals
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


LogProbs = Callable[[TokenBatch], Awaitable[Any]]
"""TokenBatch -> [N] log-probs, by some cluster."""


class LogProbStage(Stage[TrainItem, TrainItem]):
    """Proximal log-probs: those of the weights that the step starts from."""

    name = "log_prob"
    role = "actor_train"

    def __init__(self, log_probs: LogProbs) -> None:
        super().__init__()
        self._log_probs = log_probs

    async def process(self, item: TrainItem) -> TrainItem:
        item.batch = item.batch.with_(proximal_logprobs=await self._log_probs(item.batch))
        return item


class ReferenceStage(Stage[TrainItem, TrainItem]):
    """Log-probs of the frozen reference policy."""

    name = "reference"
    role = "reference"

    def __init__(self, log_probs: LogProbs) -> None:
        super().__init__()
        self._log_probs = log_probs

    async def process(self, item: TrainItem) -> TrainItem:
        item.batch = item.batch.with_(reference_logprobs=await self._log_probs(item.batch))
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


class TrainStage(Stage[TrainItem, NewWeights]):
    """The optimiser steps of a batch, then the gathering of the new weights. What follows a step (accounts, metrics, a
    checkpoint) happens in `on_trained`, while the weights are exactly those of the step."""

    name = "train"
    role = "actor_train"

    def __init__(
        self,
        cluster: Cluster,
        loss: LossSpec,
        optimiser_batches: Callable[[TokenBatch, int], list[TokenBatch]],
        shards: Callable[[TokenBatch, int], list[TokenBatch]],
        totals_of: Callable[[TokenBatch], BatchTotals],
        bucket_bytes: int,
        on_trained: Callable[[TrainItem], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._loss = loss
        self._optimiser_batches = optimiser_batches
        self._shards = shards
        self._totals_of = totals_of
        self._bucket_bytes = bucket_bytes
        self._on_trained = on_trained

    async def process(self, item: TrainItem) -> NewWeights:
        item.metrics |= await self._train(item)
        await self._on_trained(item)
        return await gather_weights(self._cluster, item.step + 1, self._bucket_bytes)

    async def _train(self, item: TrainItem) -> dict[str, float]:
        batches = [b for b in self._optimiser_batches(item.batch, item.step) if self._totals_of(b).tokens > 0]
        if not batches:
            return {"actor_train/optimiser_steps": 0.0}
        totals = [self._totals_of(batch) for batch in batches]
        by_batch = [self._shards(batch, self._cluster.num_shards) for batch in batches]
        by_shard = [list(of_shard) for of_shard in zip(*by_batch, strict=True)]
        metrics: list[dict[str, float]] = (await self._cluster.scatter("train", by_shard, self._loss, totals))[0]
        mean = {name: sum(m[name] for m in metrics) / len(metrics) for name in metrics[0]}
        return mean | {"actor_train/optimiser_steps": float(len(batches))}


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
        engines: Cluster,
        mode: WeightUpdateMode,
        publish: Callable[[int], None],
        engines_free: Callable[[], Awaitable[None]],
    ) -> None:
        """`engines_free` is awaited between sending and flipping: a running evaluation of the present version holds it."""
        super().__init__()
        self._store = store
        self._engines = engines
        self._mode = mode
        self._publish = publish
        self._engines_free = engines_free
        self.stats = UpdateStats()

    async def process(self, item: NewWeights) -> int:
        version = item.manifest.version
        await self._store.publish(item.manifest, item.buckets)
        await asyncio.gather(*(self._send(rank, version) for rank in range(len(self._engines))))
        await self._engines_free()
        pauses = await self._engines.call_all("activate_weights", item.manifest, self._mode)
        self.stats.count += 1
        self.stats.bytes += item.manifest.nbytes * len(self._engines)
        self.stats.pauses_s += pauses
        self._publish(version)
        return version

    async def _send(self, rank: int, version: int) -> None:
        async def receive(version: int, bucket: BucketRef) -> None:
            await self._engines.call(rank, "receive_bucket", version, bucket)

        await self._store.pull(version, receive)
