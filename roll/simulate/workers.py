"""The scripted workers of a simulated run: they answer the calls that real ones answer, after the time that a table says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roll.core.data.sample import Sample
from roll.core.data.seeding import derive_seed
from roll.core.data.token_batch import TokenBatch
from roll.core.rewards.worker import RewardResult
from roll.core.weights.bucket import Bucket, BucketFile, WeightManifest, checksum
from roll.core.weights.received import ReceivedBuckets
from roll.core.workers.workers import InferWorker
from roll.simulate.costs import MIB, Costs
from roll.simulate.engine import ScriptedEngine
from roll.simulate.shared_devices import Part

SEEDS = 1 << 31
TRAINED = "trained"
"""Suffix of the files that stand for the trainer's part of a checkpoint: they hold the number of steps."""


class ScriptedInferWorker(InferWorker):
    """The production worker around a scripted engine."""

    engine: type[ScriptedEngine] = ScriptedEngine

    def __init__(self, costs: Costs, grain: int, options: dict[str, Any], part: Part) -> None:
        self._serve(self.engine(costs, options["max_running_requests"], grain, options["version"], part), 1)


class ScriptedTrainWorker:
    """A rank of actor_train, actor_log_prob, reference or critic."""

    def __init__(self, name: str, costs: Costs, grain: int, unseen: int, part: Part) -> None:
        """`unseen`: grains of a sample that take no time: the beginning of an episode, which is never empty."""
        self._name = name
        self._part = part
        self._unseen = unseen
        self._costs = costs
        self._grain = grain
        self._trained = 0
        """Trained steps: the version of its weights."""
        self._snapshot = 0
        self._export: list[Bucket] = []
        self._received: ReceivedBuckets[None] = ReceivedBuckets()
        self._link = asyncio.Lock()

    async def log_probs(self, batch: TokenBatch) -> Tensor:
        return await self._scored(batch, -1.0)

    async def teach(self, batch: TokenBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = (await self._scored(batch, -1.0))[batch.loss_mask]
        return logprobs, torch.zeros(len(logprobs), top, dtype=torch.int32), torch.full((len(logprobs), top), -torch.inf)

    async def values(self, batch: TokenBatch) -> Tensor:
        return await self._scored(batch, 0.0)

    async def train(self, batches: Sequence[TokenBatch], loss: object, totals: Sequence[object]) -> list[dict[str, float]]:
        await self._work(self._costs.train_s, self._costs.train_tokens_per_s, *batches)
        self._trained += 1
        return [{} for _ in batches]

    async def add_gradients(self, batch: TokenBatch, loss: object) -> None:
        await self._work(0.0, self._costs.train_tokens_per_s, batch)

    async def step_on_gradients(self, loss: object, totals: object) -> dict[str, float]:
        await self._part.work(self._costs.train_s)
        self._trained += 1
        return {}

    async def begin_export(self, bucket_bytes: int, link: object = None, to_files: bool = False) -> None:
        """Exports one small bucket in place of the rank's share: its name and version."""
        await asyncio.sleep(self._costs.gather_s)
        tensors = {self._name: torch.tensor([self._trained])}
        self._export = [Bucket(tensors, checksum(tensors))]

    async def next_bucket(self, path: str = "") -> tuple[Bucket | None, tuple[tuple[str, ...], int, int] | None]:
        if not self._export:
            return None, None
        bucket = self._export.pop()
        if path:
            BucketFile.write(bucket, Path(path))
        return bucket, (bucket.names, bucket.checksum, int(self._costs.weights_mb * MIB))

    async def receive_bucket(self, version: int, bucket: Bucket) -> None:
        bucket.verify()
        async with self._link:  # as of an engine
            await asyncio.sleep(self._costs.pull_s)
        self._received.make_room(version, bucket)
        self._received.keep(bucket, None)

    async def take_weights(self, manifest: WeightManifest) -> None:
        self._received.check(manifest)

    async def snapshot(self) -> None:
        await asyncio.sleep(self._costs.snapshot_s)
        self._snapshot = self._trained

    async def write(self, directory: str) -> list[str]:
        await asyncio.sleep(self._costs.write_s)
        file = Path(directory) / f"{self._name}.{TRAINED}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(self._snapshot))
        return [str(file)]

    async def load(self, directory: str) -> None:
        """Loads the trainer's part of a simulated run's checkpoint; actor_log_prob loads it, too."""
        self._trained = int(next(Path(directory).glob(f"*.{TRAINED}")).read_text())

    async def offload(self) -> None:
        await asyncio.sleep(self._costs.call_s + self._costs.turn_s)

    async def reload(self) -> None:
        await self.offload()

    async def _scored(self, batch: TokenBatch, value: float) -> Tensor:
        await self._work(self._costs.score_s, self._costs.score_tokens_per_s, batch)
        return torch.full((batch.num_tokens,), value)

    async def _work(self, fixed_s: float, tokens_per_s: float, *batches: TokenBatch) -> None:
        tokens = self._grain * sum(batch.num_tokens - self._unseen * len(batch) for batch in batches)
        await self._part.work(fixed_s + (tokens / tokens_per_s if tokens_per_s else 0.0))


class ScriptedRewardWorker:
    """Judges as many samples side by side as the domain's `max_concurrency` says."""

    def __init__(self, costs: Costs, seed: int, side_by_side: int) -> None:
        self._costs = costs
        self._seed = seed
        self._places = asyncio.Semaphore(side_by_side)

    async def compute_rewards(self, samples: Sequence[Sample], as_judged: bool) -> list[RewardResult]:
        return list(await asyncio.gather(*map(self._judge, samples)))

    async def _judge(self, sample: Sample) -> RewardResult:
        seconds = self._costs.reward_s.draw(self._of(sample))
        async with self._places:
            await asyncio.sleep(seconds)
        return replace(self._verdict(sample), seconds=seconds)

    def _of(self, sample: Sample) -> int:
        return derive_seed(self._seed, "reward", sample.prompt.uid, sample.index) % SEEDS

    def _verdict(self, sample: Sample) -> RewardResult:
        right = self._costs.pass_rate.draw(derive_seed("pass_rate", sample.prompt.uid))
        return RewardResult(float(random.Random(self._of(sample)).random() < right))
