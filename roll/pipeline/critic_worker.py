"""The worker of the critic: a thin host of its strategy, a data-parallel rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from roll.algorithms.value_loss import ValueLossSpec
from roll.data.token_batch import TokenBatch
from roll.strategies.train.critic import CriticStrategy, make_critic
from roll.strategies.train.interface import BatchTotals, RankContext
from roll.strategies.train.spec import TrainSpec


class CriticWorker:
    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        torch.set_num_threads(context.threads)
        self.strategy: CriticStrategy = make_critic(context, spec)

    def values(self, batch: TokenBatch) -> Tensor:
        return self.strategy.values(batch)

    def train(self, batches: Sequence[TokenBatch], loss: ValueLossSpec, totals: Sequence[BatchTotals]) -> list[dict[str, float]]:
        """Takes one optimiser step for each of the batches (this rank's shares)."""
        return [self.strategy.train_values(batch, loss, total) for batch, total in zip(batches, totals, strict=True)]

    def save(self, directory: str) -> None:
        self.strategy.save(Path(directory))

    def load(self, directory: str) -> None:
        self.strategy.load(Path(directory))

    def offload(self) -> None:
        self.strategy.offload()

    def reload(self) -> None:
        self.strategy.reload()
