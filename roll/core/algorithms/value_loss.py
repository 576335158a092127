"""The loss of a critic on one micro-batch: how far its values are from the returns.

As in `loss`, value and gradient add up over micro-batches and ranks, and masked entries of any field, NaN included, change
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roll.core.algorithms.aggregation import aggregate
from roll.core.algorithms.loss_metrics import ExplainedVarianceMetric, Metrics, SumMetric, masked_mean
from roll.core.algorithms.ratio import select


@dataclass(frozen=True, kw_only=True)
class ValueLossSpec:
    """Plain values, so it travels to any rank."""

    clip: float | None = None
    """Values move by no more than this from those that the advantages were made of, without the loss getting smaller."""


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, spec: ValueLossSpec, totals_tokens: int
) -> tuple[Tensor, Metrics]:
    """This micro-batch's share of ½ · the mean over all trained tokens of the batch of max((V − R)², (V_c − R)²), where V_c is V
    limited to V_old ± clip; of (V − R)² without a clip (the value clipping of PPO's reference code, openai/baselines `ppo2`).

    Every token weighs the same, whatever `loss_agg_mode` says of the policy's: each is a state to be judged.

    Args:
        values: [B, T] float32 or wider, under the current weights.
        old_values, returns: [B, T], constants; see `returns.gae`.
        mask: [B, T] bool.
        totals_tokens: tokens in the mask of the optimiser batch, over all micro-batches and ranks.

    Returns:
        A scalar to call `backward` on, and metrics for `reduce_metrics`.
    """
    values, old, target = select(values, mask), select(old_values, mask), select(returns, mask)
    error = (values - target).square()
    metrics: Metrics = {}
    if spec.clip is not None:
        # Not old + (values - old).clamp(..): its rounding would count as clipping.
        clipped = (values.clamp(old - spec.clip, old + spec.clip) - target).square()
        metrics["critic/value_clipfrac"] = masked_mean((clipped > error).float(), mask)
        error = torch.maximum(error, clipped)
    loss = aggregate(0.5 * error, mask, "token-mean", totals_tokens, 1)
    return loss, metrics | {
        "critic/value_loss": SumMetric(loss.detach()),
        "critic/values/mean": masked_mean(values, mask),
        "critic/returns/mean": masked_mean(target, mask),
        "critic/explained_variance": ExplainedVarianceMetric.of(values.detach(), target, mask),
    }
