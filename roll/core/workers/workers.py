"""The workers of the roles: thin wrappers around a strategy, each of them one data-parallel rank."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from roll.core.algorithms.loss import LossSpec
from roll.core.algorithms.value_loss import ValueLossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.weights.adapter import AdapterSource
from roll.core.weights.bucket import Bucket, BucketFile, Readable, WeightManifest
from roll.core.weights.received import ReceivedWeights
from roll.core.weights.store import BroadcastMember, Link, Made
from roll.core.weights.transport import receiving_end, sending_end
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import (
    EngineStats,
    GenerateRequest,
    GenerateResult,
    InferStrategy,
    MeasuringStrategy,
    OwnMetric,
    WeightUpdateMode,
)
from roll.core.workers.train_backends import make_critic, make_train_strategy
from roll.core.workers.train_interface import (
    AccumulatingStrategy,
    BatchTotals,
    Checkpointed,
    CriticStrategy,
    RankContext,
    TeachingStrategy,
    TrainStrategy,
)
from roll.core.workers.train_spec import TrainSpec, resolve_dtype

if TYPE_CHECKING:
    from roll.strategies.train.checkpoint_files import Snapshot


class CheckpointedWorker:
    """The common base of the ranks of policy, reference and critic."""

    strategy: Checkpointed
    _snapshot: Snapshot | None = None

    def snapshot(self) -> None:
        """Takes the snapshot for the next `write`."""
        self._snapshot = self.strategy.snapshot()

    async def write(self, directory: str) -> list[str]:
        """Writes the snapshot during training, in a thread of the event loop's pool, and releases it. Returns the tensor files
        that the folder then has, as seen by this machine. Raises `OSError`, naming the folder, for example if the disk is
        full."""
        snapshot, self._snapshot = self._snapshot, None
        assert snapshot is not None, "write before snapshot"
        try:
            await asyncio.to_thread(self.strategy.write, snapshot, Path(directory))
        except SafetensorError as error:  # which names no file
            raise OSError(f"the checkpoint cannot be written: {directory}: {error}") from error
        return [str(path) for path in Path(directory).rglob("*.safetensors")]

    def load(self, directory: str) -> None:
        self.strategy.load(Path(directory))

    def offload(self) -> None:
        self.strategy.offload()

    def reload(self) -> None:
        self.strategy.reload()


class TrainWorker(CheckpointedWorker):
    """A rank of actor_train or reference."""

    strategy: TrainStrategy

    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        self.strategy = make_train_strategy(context, spec)
        self._sending = sending_end()

    def log_probs(self, batch: TokenBatch) -> Tensor:
        return self.strategy.log_probs(batch)

    def teach(self, batch: TokenBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the log-probs [M] of the masked tokens of this rank's samples, in order, and [M, top] int32 ids and float32
        log-probs of the most probable tokens in their place; -inf where there are fewer."""
        if top:
            assert isinstance(self.strategy, TeachingStrategy), "the rules of teachers see to it"
            return self.strategy.top_log_probs(batch, top)
        logprobs = self.strategy.log_probs(batch)[batch.loss_mask]
        nothing = logprobs.new_zeros(len(logprobs), 0)
        return logprobs, nothing.int(), nothing

    def train(self, batches: Sequence[TokenBatch], loss: LossSpec, totals: Sequence[BatchTotals]) -> list[dict[str, float]]:
        """Takes one optimiser step for each of the batches (this rank's shares)."""
        return [self.strategy.train_step(batch, loss, total) for batch, total in zip(batches, totals, strict=True)]

    def add_gradients(self, batch: TokenBatch, loss: LossSpec) -> None:
        self._accumulating.add_gradients(batch, loss)

    def step_on_gradients(self, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        return self._accumulating.step_on_gradients(loss, totals)

    @property
    def _accumulating(self) -> AccumulatingStrategy:
        assert isinstance(self.strategy, AccumulatingStrategy), "the rules of train_on_arrival see to it"
        return self.strategy

    def begin_export(self, bucket_bytes: int, link: Link | None = None, to_files: bool = False, lends: bool = False) -> None:
        """Begins the export of this rank's share of the buckets; `next_bucket` gathers each on demand. `link`: the version's
        place in its chain, which keeps the buckets."""
        place = self._sending.lend(bucket_bytes) if lends else None
        self._sending.begin(self.strategy.export_weights(bucket_bytes, to_files and link is None, place), link)

    def next_bucket(self, path: str = "", slot: int | None = None) -> tuple[Bucket | None, Made | None]:
        """Returns the result of `SendingEnd.next`. Gathering is a collective: it returns when the other ranks are called, too."""
        return self._sending.next(path, slot)

    async def broadcast(self, member: BroadcastMember, *buckets: Bucket) -> None:
        """Sends the buckets during training."""
        await self._sending.broadcast(member, *buckets)


class InferWorker:
    """An engine of actor_infer."""

    def __init__(self, strategy_name: str, options: dict[str, object]) -> None:
        devices: Any = options.get("devices", ["cpu"])
        self._serve(make_infer_strategy(strategy_name, options), len(devices))

    def _serve(self, strategy: InferStrategy, devices: int) -> None:
        self.strategy, self._devices = strategy, devices
        self._receiving = receiving_end()

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return await self.strategy.generate(request)

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await self.strategy.abort(request_ids)

    async def receive_bucket(self, version: int, bucket: Readable) -> bool:
        """Returns True if the bucket was copied from the device where it is lent."""
        self._receiving.give_up()
        if borrowed := await self._receiving.borrow(self.strategy, version, bucket):
            return borrowed
        await self.strategy.receive_bucket(version, await asyncio.to_thread(bucket.read))
        return False

    async def place(self) -> tuple[str, int]:
        """Returns the engine's host, and its number of devices there."""
        return self._receiving.host(), self._devices

    async def receive_broadcast(self, version: int, member: BroadcastMember, count: int, shares: bool) -> list[BucketFile]:
        """Replaces `count` calls of `receive_bucket`. A caller abandons this version's broadcasts by calling `receive_bucket`, or
        by broadcasting another version. Returns the result of `ReceivingEnd.receive`."""
        return await self._receiving.receive(self.strategy.receive_bucket, version, member, count, shares)

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        try:
            return await self.strategy.activate_weights(manifest, mode)
        finally:
            self._receiving.loaded()

    async def sleep(self) -> None:
        await self.strategy.sleep()

    async def wake(self) -> None:
        await self.strategy.wake()

    async def stats(self) -> EngineStats:
        return await self.strategy.stats()

    async def own_metrics(self) -> list[OwnMetric]:
        """Returns the metrics of the engine's package, if it has some."""
        return await self.strategy.own_metrics() if isinstance(self.strategy, MeasuringStrategy) else []

    async def close(self) -> None:
        await self.strategy.close()


class LogProbWorker(CheckpointedWorker):
    strategy: TrainStrategy

    def __init__(self, context: RankContext, spec: TrainSpec, adapters: AdapterSource | None = None) -> None:
        """`adapters`: the base of versions that consist of adapters alone."""
        self.strategy = make_train_strategy(context, spec)
        self._received = ReceivedWeights(resolve_dtype(spec.dtype, torch.device(context.device)), adapters)

    def log_probs(self, batch: TokenBatch) -> Tensor:
        return self.strategy.log_probs(batch)

    async def receive_bucket(self, version: int, bucket: Readable) -> None:
        self._received.receive(version, await asyncio.to_thread(bucket.read))

    def take_weights(self, manifest: WeightManifest) -> None:
        """Loads the received version. Changes nothing unless it was received whole and intact."""
        self.strategy.set_weights(self._received.take(manifest))


class CriticWorker(CheckpointedWorker):
    strategy: CriticStrategy

    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        self.strategy = make_critic(context, spec)

    def values(self, batch: TokenBatch) -> Tensor:
        return self.strategy.values(batch)

    def train(self, batches: Sequence[TokenBatch], loss: ValueLossSpec, totals: Sequence[BatchTotals]) -> list[dict[str, float]]:
        """Takes one optimiser step for each of the batches (this rank's shares)."""
        return [self.strategy.train_values(batch, loss, total) for batch, total in zip(batches, totals, strict=True)]
