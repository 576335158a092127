"""Aggregates a per-token loss to one number, normalised over the *global* batch.

Invariant: `aggregate` is linear over rows, and the totals it divides by are those of the whole optimiser batch. So the sum over
micro-batches and ranks, however they are cut, is exactly the value of one big batch, and so is its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from roll.core.algorithms.ratio import select
from roll.core.algorithms.registry import unknown_name
from roll.core.configs.losses import LossAggregation


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Relation of the rows to their rollouts: an episode may be several sequences, a response is one."""

    tokens: Tensor
    """[B], masked-in tokens of the whole rollout of each row, over all its sequences in the step."""
    total: float
    """Rollouts of the optimiser batch; one that lies in it with a share of its tokens counts as that share."""


def check_mode(mode: str, norm_length: int | None) -> None:
    """`ValueError` if `mode` is unknown or lacks the `norm_length` it needs."""
    if mode not in get_args(LossAggregation):
        raise unknown_name("loss aggregation", mode, get_args(LossAggregation))
    if mode == "seq-mean-token-sum-norm" and (norm_length is None or norm_length <= 0):
        raise ValueError(f"loss aggregation {mode!r} needs a norm_length > 0, got {norm_length}")


def divisor(mode: str, totals_tokens: int, totals_sequences: int, totals_rollouts: float | None = None) -> float:
    """Returns the divisor of a batch loss: the one number in it that is known only when the batch is complete."""
    if mode == "rollout-mean":
        return totals_rollouts or 1
    return max(totals_tokens if mode == "token-mean" else totals_sequences, 1)


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    mode: LossAggregation,
    totals_tokens: int,
    totals_sequences: int,
    norm_length: int | None = None,
    rollouts: Rollouts | None = None,
) -> Tensor:
    """This micro-batch's share of the batch loss.

    Args:
        per_token: [B, T]; masked entries may hold anything, they add neither value nor gradient.
        mask: [B, T] bool. Each row is one whole sequence.
        mode: with x = `per_token`, K and N the totals:
            `token-mean` Σx / K, every token of the batch weighs the same;
            `seq-mean-token-sum` Σx / N;
            `seq-mean-token-mean` Σ_i (mean of x over the tokens of i) / N, every sequence weighs the same;
            `seq-mean-token-sum-norm` Σx / (N · norm_length), no length bias (Dr. GRPO, arXiv 2503.20783);
            `rollout-mean` Σ_r (mean of x over the tokens of all sequences of rollout r) / R, every rollout weighs the same,
            however many sequences it became.
        totals_tokens: masked-in tokens of the optimiser batch, over all micro-batches and ranks.
        totals_sequences: sequences of the optimiser batch with at least one such token.
        norm_length: tokens, a constant of the run; needed by `seq-mean-token-sum-norm` alone.
        rollouts: R is their total; needed by `rollout-mean` alone. `ValueError` if it has none.

    Returns:
        A scalar; 0 (with a gradient of 0) where nothing is masked in.
    """
    check_mode(mode, norm_length)
    per_sequence = select(per_token, mask).sum(dim=1)
    if mode == "seq-mean-token-mean":
        per_sequence = per_sequence / mask.sum(dim=1).clamp(min=1)
    elif mode == "seq-mean-token-sum-norm" and norm_length is not None:
        per_sequence = per_sequence / norm_length
    elif mode == "rollout-mean":
        if rollouts is None:
            raise ValueError(f"loss aggregation {mode!r} needs the rollouts that the rows belong to")
        per_sequence = per_sequence / rollouts.tokens.clamp(min=1)
    return per_sequence.sum() / divisor(mode, totals_tokens, totals_sequences, None if rollouts is None else rollouts.total)
