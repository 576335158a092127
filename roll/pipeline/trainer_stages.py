"""The trainer half of a run: groups are leased, scored, given advantages, trained, and the new weights published.

The batch of a step moves through the stages as one `TrainItem`. The next step's groups are leased when the one before is trained.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from roll.algorithms.loss import LossSpec
from roll.buffer.interface import Buffer, Lease
from roll.data.token_batch import TokenBatch
from roll.distributed.cluster import Cluster
from roll.pipeline.optimise import optimise
from roll.pipeline.stage import Closed, Stage
from roll.rollout.pipeline_depth import PipelineDepth
from roll.weights.bucket import Manifest
from roll.weights.directory import BucketFile
from roll.weights.push_interval import PushInterval
from roll.weights.store import BucketRef, KeptBucket, WeightStore

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
    """The gathering of the new weights, after the steps that are published. What follows a step (accounts, metrics, a checkpoint)
    happens in `on_trained`, while the weights are exactly those of the step."""

    name = "gather"
    role = "actor_train"

    def __init__(
        self,
        cluster: Cluster,
        store: WeightStore,
        bucket_bytes: int,
        push: PushInterval,
        on_trained: Callable[[TrainItem], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._store = store
        self._bucket_bytes = bucket_bytes
        self._push = push
        self._on_trained = on_trained

    async def process(self, item: TrainItem) -> NewWeights | None:
        await self._on_trained(item)
        version = item.step + 1
        if not self._push.publishes(version):
            return None
        return await gather_weights(self._cluster, self._store, version, self._bucket_bytes)


class TrainStage(Stage[TrainItem, NewWeights]):
    """Both, without letting go of the devices."""

    name = "train"
    role = "actor_train"

    def __init__(self, policy: PolicyStage, gather: GatherStage) -> None:
        super().__init__()
        self._policy = policy
        self._gather = gather

    async def process(self, item: TrainItem) -> NewWeights | None:
        return await self._gather.process(await self._policy.process(item))


async def gather_weights(cluster: Cluster, store: WeightStore, version: int, bucket_bytes: int) -> NewWeights:
    """The trainer's weights as buckets that stay where the ranks made or wrote them; only names and checksums come here."""
    folder = store.begin(version)
    async with asyncio.TaskGroup() as group:
        shares = [group.create_task(_share(cluster, rank, bucket_bytes, folder)) for rank in range(len(cluster))]
    manifest = Manifest(version)
    buckets: list[BucketRef] = []
    # In turns, as they were made: engines that pull them in this order ask one node after the other.
    for turn in itertools.zip_longest(*(share.result() for share in shares)):
        for bucket, (names, checksum, nbytes) in filter(None, turn):
            manifest.names += names
            manifest.checksums.append(checksum)
            manifest.nbytes += nbytes
            buckets.append(bucket)
    return NewWeights(manifest, buckets)


_Share = list[tuple[BucketRef, tuple[Sequence[str], int, int]]]
"""Buckets, each with (names, checksum, bytes)."""


async def _share(cluster: Cluster, rank: int, bucket_bytes: int, folder: Path | None) -> _Share:
    """What a rank exports."""
    await cluster.call(rank, "begin_export", bucket_bytes)
    share: _Share = []
    if folder is None:
        while True:
            reference, made = await cluster.keep(rank, "next_bucket")
            if made is None:
                return share
            share.append((KeptBucket(rank, reference), made))
    while True:
        path = folder / f"{rank:03}-{len(share):05}.safetensors"
        file: BucketFile | None = await cluster.call(rank, "write_bucket", str(path))
        if file is None:
            return share
        share.append((file, (file.names, file.checksum, file.nbytes)))
