"""What every training back end offers: one rank of one role, called by its worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from roll.algorithms.loss import LossSpec
from roll.algorithms.value_loss import ValueLossSpec
from roll.data.token_batch import TokenBatch
from roll.weights.bucket import Bucket

if TYPE_CHECKING:
    from roll.strategies.train.checkpoint_files import Snapshot


@dataclass(frozen=True, slots=True)
class RankContext:
    """The position of a rank among the ranks of its role."""

    rank: int = 0
    world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    device: str = "cpu"
    threads: int = 1
    """CPU threads of this rank."""
    borrows_cores: bool = False
    """It may have more threads while other workers wait."""
    seed: int = 42
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Sizes of the whole optimiser batch over all ranks and micro-batches: what the loss is normalised by."""

    tokens: int
    """Tokens with `loss_mask` True."""
    sequences: int
    """Samples with at least one such token."""
    rollouts: float | None = None
    """Rollouts that these are of, as `aggregation.Rollouts` counts them; None: not counted."""


class Checkpointed(Protocol):
    """A model that is trained, or frozen, by whatever back end and with whatever loss."""

    def snapshot(self) -> Snapshot:
        """What a checkpoint of this moment holds. A collective."""

    def write(self, snapshot: Snapshot, directory: Path) -> None:
        """Writes the files that `checkpoint_files` lists; any number of ranks, dividing the model in any way, can load them.
        Nothing that trains is read and nothing is collective, so it may run in a thread of its own while training goes on."""

    def load(self, directory: Path) -> None:
        """Loads what was written. Changes nothing unless it fits; a `ValueError` says why it does not."""

    def offload(self) -> None:
        """Frees the accelerator's memory (a no-op on a CPU)."""

    def reload(self) -> None: ...


class TrainStrategy(Checkpointed, Protocol):
    def log_probs(self, batch: TokenBatch) -> Tensor:
        """[N] float32, log-prob of each token of this rank's samples under the current weights, 0 where `loss_mask` is False."""

    def train_step(self, batch: TokenBatch, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        """Takes one optimiser step on this rank's share of the batch; returns the same, reduced metrics on every rank. Besides
        the loss's: `actor_train/grad_norm` (before clipping), `actor_train/lr` and `actor_train/skipped_steps`, the number so far
        of steps not taken, nor counted by the schedule, because the gradient was not finite."""

    def export_weights(self, bucket_bytes: int) -> Iterator[Bucket]:
        """Hugging Face-named weights. A collective: every rank must exhaust it, and gets a share of the buckets (possibly none);
        together they are the model, each tensor once."""

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replaces the weights of a frozen model by those that `export_weights` of another strategy has given, merged and whole,
        on every rank. `ValueError`, and nothing changes, unless they are this model's."""


@runtime_checkable
class AccumulatingStrategy(TrainStrategy, Protocol):
    """One whose optimiser step can be spread over several calls, for a batch that is not complete yet."""

    def add_gradients(self, batch: TokenBatch, loss: LossSpec) -> None:
        """Adds the gradients of a part of the batch (this rank's share of it) to those of the parts before."""

    def step_on_gradients(self, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        """The optimiser step of all parts, whose totals are known now."""


class CriticStrategy(Checkpointed, Protocol):
    def values(self, batch: TokenBatch) -> Tensor:
        """[N] float32, the value of the state that each token of this rank's samples was taken in: what the model says where it
        has read all tokens before that one. 0 where `loss_mask` is False."""

    def train_values(self, batch: TokenBatch, loss: ValueLossSpec, totals: BatchTotals) -> dict[str, float]:
        """Takes one optimiser step towards `batch.returns` on this rank's share of the batch; returns the same metrics on every
        rank."""
