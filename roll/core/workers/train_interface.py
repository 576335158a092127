"""The interface of every training back end: one rank of one role, called by its worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from roll.core.algorithms.loss import LossSpec
from roll.core.algorithms.value_loss import ValueLossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.weights.bucket import Bucket, Put

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
    """Sizes of the whole optimiser batch over all ranks and micro-batches; they normalise the loss."""

    tokens: int
    """Tokens with `loss_mask` True."""
    sequences: int
    """Samples with at least one such token."""
    rollouts: float | None = None
    """Rollouts of these samples, as `aggregation.Rollouts` counts them; None: not counted."""


class Checkpointed(Protocol):
    """A trained or frozen model, of any back end and with any loss."""

    def snapshot(self) -> Snapshot:
        """Returns the content of a checkpoint taken now. A collective."""

    def write(self, snapshot: Snapshot, directory: Path) -> None:
        """Writes the files that `checkpoint_files` lists; any number of ranks, with any division of the model, can load them.
        Reads no training state and calls no collective, so it may run in its own thread while training goes on."""

    def load(self, directory: Path) -> None:
        """Loads a written checkpoint. Raises `ValueError` with the reason, and changes nothing, if it does not fit."""

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

    def export_weights(self, bucket_bytes: int, borrow: bool = False, place: Put | None = None) -> Iterator[Bucket]:
        """Yields Hugging Face-named weights. A collective: every rank must exhaust it, and gets a share of the buckets (possibly
        none); together they are the model, each tensor once. `borrow`, `place`: as `make_buckets` means them."""

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replaces the weights of a frozen model by those exported by another strategy (`export_weights`), merged and whole, on
        every rank. Raises `ValueError`, and changes nothing, unless they are this model's."""


@runtime_checkable
class AccumulatingStrategy(TrainStrategy, Protocol):
    """A strategy that can spread an optimiser step over several calls, for a batch that is not complete yet."""

    def add_gradients(self, batch: TokenBatch, loss: LossSpec) -> None:
        """Adds the gradients of a part of the batch (this rank's share of it) to those of the earlier parts."""

    def step_on_gradients(self, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        """Takes the optimiser step of all parts, whose totals are now known."""


@runtime_checkable
class TeachingStrategy(TrainStrategy, Protocol):
    """A strategy that knows the distribution of each token."""

    def top_log_probs(self, batch: TokenBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the result of `TrainWorker.teach`."""


class CriticStrategy(Checkpointed, Protocol):
    def values(self, batch: TokenBatch) -> Tensor:
        """[N] float32, the value of the state before each token of this rank's samples: the model's output after reading all
        earlier tokens. 0 where `loss_mask` is False."""

    def train_values(self, batch: TokenBatch, loss: ValueLossSpec, totals: BatchTotals) -> dict[str, float]:
        """Takes one optimiser step towards `batch.returns` on this rank's share of the batch; returns the same metrics on every
        rank."""
