"""The loss of one micro-batch: policy gradient, KL to the reference, entropy, and their metrics.

Invariant: loss and gradient add up. The sum over micro-batches and ranks is that of one big batch, because everything is
normalised by the totals of the optimiser batch. Masked entries of any field change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roll.algorithms.aggregation import AggregationMode, aggregate, check_mode
from roll.algorithms.kl import approx_kl
from roll.algorithms.loss_metrics import (
    EffectiveSizeMetric,
    MaxMetric,
    MeanMetric,
    Metrics,
    SumMetric,
    masked_mean,
    reduce_metrics,
)
from roll.algorithms.policy_loss import DEFAULT_VARIANT, LossInputs, PolicyLossArgs, get_policy_loss
from roll.algorithms.ratio import bounded_exp, log_ratio, select

if TYPE_CHECKING:
    from roll.data.token_batch import Padded

__all__ = ["LossSpec", "Metrics", "compute_loss", "reduce_metrics"]


@dataclass(frozen=True, kw_only=True)
class LossSpec:
    """What to optimise: plain values, so it travels to any rank."""

    pg_variant: str = DEFAULT_VARIANT
    """A registered name, or the dotted path of a user's function (see `policy_loss.PolicyLoss`)."""
    args: PolicyLossArgs = field(default_factory=PolicyLossArgs)
    aggregation: AggregationMode = "token-mean"
    norm_length: int | None = None
    """Tokens; needed by the aggregation `seq-mean-token-sum-norm` alone."""
    kl_loss_coef: float = 0.0
    """Weight of KL(policy ‖ reference), estimator k3."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    behaviour_weight_cap: float = 5.0
    """Decoupled losses: upper bound of the weight proximal / behaviour of a token."""

    def __post_init__(self) -> None:
        check_mode(self.aggregation, self.norm_length)
        if not self.behaviour_weight_cap > 0:
            raise ValueError(f"behaviour_weight_cap must be > 0, got {self.behaviour_weight_cap}")


def compute_loss(
    logprobs: Tensor,
    entropy: Tensor | None,
    batch: Padded,
    spec: LossSpec,
    totals_tokens: int,
    totals_sequences: int,
) -> tuple[Tensor, Metrics]:
    """This micro-batch's share of the batch loss (a scalar to call `backward` on) and its metrics for `reduce_metrics`.

    The ratio is taken to the proximal policy if the batch has `proximal_logprobs`, and the loss of each token is then weighted by
    min(proximal / behaviour, cap), without gradient (decoupled objective, arXiv 2110.00641); else to the behaviour policy.

    Args:
        logprobs: [B, T] float32 or wider, under the current weights, aligned like the batch's fields.
        entropy: [B, T] of the token distributions, or None; needed if `spec.entropy_coef` is not 0.
        batch: the micro-batch; needs `reference_logprobs` if `spec.kl_loss_coef` is not 0.
        totals_tokens, totals_sequences: of the optimiser batch, over all micro-batches and ranks (see `aggregate`).
    """
    mask = batch.loss_mask
    proximal = batch.proximal_logprobs
    anchor = batch.behaviour_logprobs if proximal is None else proximal
    inputs = LossInputs(logprobs, anchor, batch.advantages, mask, batch.scores)

    def total(per_token: Tensor) -> Tensor:
        return aggregate(per_token, mask, spec.aggregation, totals_tokens, totals_sequences, spec.norm_length)

    per_token, sums = get_policy_loss(spec.pg_variant)(inputs, spec.args)
    metrics = _ratio_metrics(inputs, batch.behaviour_logprobs)
    metrics |= {f"actor/{name}": MeanMetric(value.detach(), mask.sum()) for name, value in sums.items()}
    if proximal is not None:
        weight = bounded_exp(log_ratio(proximal, batch.behaviour_logprobs, mask)).clamp(max=spec.behaviour_weight_cap).detach()
        per_token = per_token * weight
        metrics["actor/behaviour_weight_mean"] = masked_mean(weight, mask)
    loss = pg_loss = total(per_token)
    metrics["actor/pg_loss"] = SumMetric(pg_loss.detach())

    if batch.reference_logprobs is not None:
        kl_loss = total(approx_kl(logprobs, batch.reference_logprobs.detach(), "k3", mask))
        metrics["actor/kl_loss"] = SumMetric(kl_loss.detach())
        if spec.kl_loss_coef:
            loss = loss + spec.kl_loss_coef * kl_loss
    elif spec.kl_loss_coef:
        raise ValueError("kl_loss_coef is not 0, but the batch has no reference_logprobs")

    if entropy is not None:
        metrics["actor/entropy"] = masked_mean(entropy, mask)
        if spec.entropy_coef:
            loss = loss - spec.entropy_coef * total(entropy)
    elif spec.entropy_coef:
        raise ValueError("entropy_coef is not 0, but no entropy was given")

    metrics["actor/total_loss"] = SumMetric(loss.detach())
    return loss, metrics


@torch.no_grad()
def _ratio_metrics(inputs: LossInputs, behaviour_logprobs: Tensor) -> Metrics:
    """How far the current policy is from the one of the ratio and from the one that sampled."""
    mask, logprobs = inputs.mask, inputs.logprobs.detach()
    ratio = select(inputs.ratio.detach(), mask)
    weight = select(bounded_exp(log_ratio(logprobs, behaviour_logprobs, mask)), mask)
    count = mask.sum()
    return {
        "actor/ratio_mean": MeanMetric(ratio.sum(), count),
        "actor/ratio_max": MaxMetric(ratio.max() if ratio.numel() else ratio.new_zeros(())),
        "actor/approxkl": masked_mean(approx_kl(behaviour_logprobs, logprobs, "k3", mask), mask),
        "actor/behaviour_kl": masked_mean(approx_kl(behaviour_logprobs, logprobs, "k1", mask), mask),
        "actor/ess": EffectiveSizeMetric(weight.sum(), weight.square().sum(), count),
    }
