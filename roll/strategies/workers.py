"""The workers of the roles: thin hosts of a strategy, each a data-parallel rank."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from roll.algorithms.loss import LossSpec
from roll.algorithms.value_loss import ValueLossSpec
from roll.data.token_batch import TokenBatch
from roll.strategies.infer.engines import make_infer_strategy
from roll.strategies.infer.interface import EngineStats, GenerateRequest, GenerateResult, InferStrategy, WeightUpdateMode
from roll.strategies.train import make_train_strategy
from roll.strategies.train.checkpoint_files import Snapshot
from roll.strategies.train.interface import (
    AccumulatingStrategy,
    BatchTotals,
    Checkpointed,
    CriticStrategy,
    RankContext,
    TrainStrategy,
)
from roll.strategies.train.process import resolve_dtype
from roll.strategies.train.spec import TrainSpec
from roll.weights.adapter import AdapterSource
from roll.weights.broadcast import BroadcastGroups, Member
from roll.weights.bucket import Bucket, Readable, WeightManifest
from roll.weights.delta import LastShare, Link
from roll.weights.directory import BucketFile
from roll.weights.node_files import host, node_file, path_of
from roll.weights.received import ReceivedWeights


class CheckpointedWorker:
    """What the ranks of policy, reference and critic have in common."""

    strategy: Checkpointed
    _snapshot: Snapshot | None = None

    def snapshot(self) -> None:
        """Takes what the next `write` writes."""
        self._snapshot = self.strategy.snapshot()

    async def write(self, directory: str) -> list[str]:
        """Writes the snapshot beside the training, in a thread of the event loop's pool, and lets go of it. Returns the files of
        tensors that lie in the folder then, as this machine sees it. Raises `OSError`, naming the folder, if the disk is full,
        say."""
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
        self._export: Iterator[Bucket] | None = None
        self._last_share = LastShare()
        self._groups = BroadcastGroups()

    def log_probs(self, batch: TokenBatch) -> Tensor:
        return self.strategy.log_probs(batch)

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

    def begin_export(self, bucket_bytes: int, link: Link | None = None) -> None:
        """This rank's share of the buckets comes with `next_bucket`, each gathered when it is asked for. `link`: they are those
        of a version in a chain."""
        buckets = self.strategy.export_weights(bucket_bytes)
        self._export = buckets if link is None else self._last_share.linked(link, buckets)

    def next_bucket(self, path: str = "") -> tuple[Bucket | None, tuple[tuple[str, ...], int, int] | None]:
        """The next bucket of the share, which becomes a file if there is a path, and (names, checksum, bytes) of it; (None, None)
        after the last. Gathering is a collective: it returns when the other ranks are asked, too."""
        assert self._export is not None, "next_bucket before begin_export"
        bucket = next(self._export, None)
        if bucket is None:
            self._export = None
            return None, None
        made = bucket.names, bucket.checksum, bucket.nbytes
        if path:
            BucketFile.write(bucket, Path(path))
        return None if path else bucket, made

    async def broadcast(self, member: Member, *buckets: Bucket) -> None:
        """Sends the buckets beside the training, in a thread of the event loop's pool."""
        await asyncio.to_thread(self._groups.send, member, buckets)


class InferWorker:
    """An engine of actor_infer."""

    def __init__(self, strategy_name: str, options: dict[str, object]) -> None:
        devices: Any = options.get("devices", ["cpu"])
        self._serve(make_infer_strategy(strategy_name, options), len(devices))

    def _serve(self, strategy: InferStrategy, devices: int) -> None:
        self.strategy, self._devices = strategy, devices
        self._groups = BroadcastGroups()
        self._receiving: int | None = None
        """The version whose broadcast has not been given up."""
        self._shared: list[int] = []
        """Descriptors of the buckets that other engines may read."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return await self.strategy.generate(request)

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await self.strategy.abort(request_ids)

    async def receive_bucket(self, version: int, bucket: Readable) -> None:
        self._receiving = None
        await self.strategy.receive_bucket(version, await asyncio.to_thread(bucket.read))

    async def place(self) -> tuple[str, int]:
        """Its host, whose workers can open each other's files under /proc, and how many devices it has there."""
        return host(), self._devices

    async def receive_broadcast(self, version: int, member: Member, count: int, shares: bool) -> list[BucketFile]:
        """Takes the place of `count` calls of `receive_bucket`. A caller that calls `receive_bucket`, or begins to broadcast
        another version, has given this version's broadcasts up. `shares`: returns the buckets for other engines of the host,
        which can read them until this one has loaded them."""
        self._receiving, buckets = version, self._groups.receive(member, count)
        shared: list[BucketFile] = []
        while (bucket := await asyncio.to_thread(next, buckets, None)) is not None and self._receiving == version:
            if shares:
                self._shared.append(await asyncio.to_thread(node_file, bucket))
                shared.append(BucketFile(path_of(self._shared[-1]), bucket.names, bucket.checksum, bucket.nbytes))
                bucket = await asyncio.to_thread(shared[-1].read)
            await self.strategy.receive_bucket(version, bucket)
        return shared

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        try:
            return await self.strategy.activate_weights(manifest, mode)
        finally:
            while self._shared:
                os.close(self._shared.pop())

    async def sleep(self) -> None:
        await self.strategy.sleep()

    async def wake(self) -> None:
        await self.strategy.wake()

    async def stats(self) -> EngineStats:
        return await self.strategy.stats()

    async def close(self) -> None:
        await self.strategy.close()


class LogProbWorker(CheckpointedWorker):
    strategy: TrainStrategy

    def __init__(self, context: RankContext, spec: TrainSpec, adapters: AdapterSource | None = None) -> None:
        """`adapters`: what versions are of that consist of adapters alone."""
        self.strategy = make_train_strategy(context, spec)
        self._received = ReceivedWeights(resolve_dtype(spec.dtype, torch.device(context.device)), adapters)

    def log_probs(self, batch: TokenBatch) -> Tensor:
        return self.strategy.log_probs(batch)

    async def receive_bucket(self, version: int, bucket: Readable) -> None:
        self._received.receive(version, await asyncio.to_thread(bucket.read))

    def take_weights(self, manifest: WeightManifest) -> None:
        """Changes nothing unless the version was received whole and intact."""
        self.strategy.set_weights(self._received.take(manifest))


class CriticWorker(CheckpointedWorker):
    strategy: CriticStrategy

    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        from roll.strategies.train.critic import make_critic  # it brings all back ends along

        self.strategy = make_critic(context, spec)

    def values(self, batch: TokenBatch) -> Tensor:
        return self.strategy.values(batch)

    def train(self, batches: Sequence[TokenBatch], loss: ValueLossSpec, totals: Sequence[BatchTotals]) -> list[dict[str, float]]:
        """Takes one optimiser step for each of the batches (this rank's shares)."""
        return [self.strategy.train_values(batch, loss, total) for batch, total in zip(batches, totals, strict=True)]
