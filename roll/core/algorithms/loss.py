"""The loss of one micro-batch: policy gradient, train/infer correction, KL to the reference, entropy, and their metrics.

Invariant: loss and gradient add up. The sum over micro-batches and ranks is that of one big batch, because everything is
normalised by the totals of the optimiser batch, tokens that a correction leaves out included. Masked entries of any field
change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roll.core.algorithms.aggregation import Rollouts, aggregate, check_mode
from roll.core.algorithms.correction import (
    ESS,
    Correction,
    ImportanceWeight,
    correct,
    correction_metrics,
    engine_mismatch_metrics,
    mismatch_metrics,
)
from roll.core.algorithms.kl import approx_kl
from roll.core.algorithms.loss_metrics import (
    EffectiveSizeMetric,
    MaxMetric,
    MeanMetric,
    Metrics,
    SumMetric,
    gradient_left,
    masked_mean,
    reduce_metrics,
)
from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import LossInputs, prepare_of, traits_of
from roll.core.algorithms.ratio import bounded_exp, log_ratio, select
from roll.core.configs.losses import DEFAULT_LOSS, KLLossEstimator, LossAggregation, PolicyLossArgs

if TYPE_CHECKING:
    from roll.core.data.token_batch import Padded, TokenBatch

__all__ = ["LossSpec", "Metrics", "compute_loss", "prepare_batch", "reduce_metrics"]

DECOUPLED_WEIGHT = ImportanceWeight()
"""Proximal over behaviour, by token, truncated: the weight of a decoupled loss unless the correction says otherwise."""


@dataclass(frozen=True, kw_only=True)
class LossSpec:
    """Specification of the loss: plain values, so it travels to any rank."""

    pg_variant: str = DEFAULT_LOSS
    """A registered name, or the dotted path of a user's function (see `policy_loss.PolicyLoss`)."""
    args: PolicyLossArgs = field(default_factory=PolicyLossArgs)
    aggregation: LossAggregation = "token-mean"
    norm_length: int | None = None
    """Tokens; needed by the aggregation `seq-mean-token-sum-norm` alone."""
    kl_loss_coef: float = 0.0
    """Weight of KL(policy ‖ reference)."""
    kl_estimator: KLLossEstimator = "k3"
    """See `approx_kl`."""
    kl_clamp: float | None = None
    """The estimate of a token is limited to ± this."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    divergence: float | None = None
    """The β of the divergence from the teachers (`distillation.divergence`); None: the loss has none."""
    correction: Correction = field(default_factory=Correction)
    """Correction of the distance to the policy that sampled."""
    engines: int = 1
    """Number of engines that sampled; for metrics."""
    full_rate_ess: float | None = None
    """The effective sample size from which on a step has its whole learning rate (see `rate_scale`); None: whatever it is."""

    def __post_init__(self) -> None:
        check_mode(self.aggregation, self.norm_length)

    def rate_scale(self, metrics: Mapping[str, float]) -> float:
        """The factor on the learning rate of an optimiser step with these metrics, in [0, 1]: √min(1, ESS / full_rate_ess), that
        of VCPO (arXiv 2602.17616). A gradient that a share of the responses decides has the noise of a batch of that share, for
        which AdamW's rate is smaller by the square root."""
        if self.full_rate_ess is None:
            return 1.0
        return math.sqrt(min(1.0, metrics.get(ESS, 1.0) / self.full_rate_ess))


def prepare_batch(batch: TokenBatch, spec: LossSpec) -> TokenBatch:
    """A whole optimiser batch, with its advantages, as the variant wants it (see `policy_loss`), before it is cut over
    ranks and micro-batches. `ValueError` if it lacks the proximal log-probs that the variant needs."""
    variant = get_policy_loss(spec.pg_variant)
    if traits_of(variant).needs_proximal and batch.proximal_logprobs is None:
        raise ValueError(f"{spec.pg_variant} needs proximal_logprobs, but the batch has none")
    prepare = prepare_of(variant)
    return batch if prepare is None else prepare(batch, spec.args)


def compute_loss(
    logprobs: Tensor,
    entropy: Tensor | None,
    batch: Padded,
    spec: LossSpec,
    totals_tokens: int,
    totals_sequences: int,
    totals_rollouts: float | None = None,
    divergence: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """This micro-batch's share of the batch loss (a scalar to call `backward` on) and its metrics for `reduce_metrics`.

    If the batch has `proximal_logprobs` (those of the step's first weights), the ratio is taken to them and the loss of each
    token weighted by proximal over behaviour (decoupled objective, arXiv 2110.00641): by `DECOUPLED_WEIGHT`, or as
    `spec.correction` says. Else the ratio is taken to the behaviour policy, and the correction compares the current policy.

    Args:
        logprobs: [B, T] float32 or wider, under the current weights, aligned like the batch's fields.
        entropy: [B, T] of the token distributions, or None; needed if `spec.entropy_coef` is not 0.
        batch: the micro-batch; needs `reference_logprobs` if `spec.kl_loss_coef` is not 0. A trained token whose behaviour
            log-prob is not finite is left out and counted in `actor/behaviour_not_finite`.
        totals_tokens, totals_sequences: of the optimiser batch, over all micro-batches and ranks (see `aggregate`).
        totals_rollouts: likewise; `rollout-mean` needs it, and the batch's `rollout_tokens`.
        divergence: [B, T] from the teachers, whose weights the batch has; 0 without a teacher.
    """
    mask, totals = batch.loss_mask, (totals_tokens, totals_sequences)
    tokens, rollouts = batch.rollout_tokens, totals_rollouts
    of_rollouts = Rollouts(tokens, rollouts) if tokens is not None and rollouts is not None else None

    def total(per_token: Tensor, chosen: Tensor = mask) -> Tensor:
        return aggregate(select(per_token, chosen), mask, spec.aggregation, *totals, spec.norm_length, of_rollouts)

    per_token, usable, metrics = _policy_loss(logprobs, batch, spec)
    metrics |= gradient_left(select(per_token, usable), logprobs, batch.advantages, mask)
    loss = total(per_token, usable)
    metrics["actor/pg_loss"] = SumMetric(loss.detach())
    loss = _regularised(loss, logprobs, entropy, batch, spec, total, metrics, divergence)
    metrics["actor/total_loss"] = SumMetric(loss.detach())
    return loss, metrics


def _regularised(
    loss: Tensor,
    logprobs: Tensor,
    entropy: Tensor | None,
    batch: Padded,
    spec: LossSpec,
    total: Callable[[Tensor], Tensor],
    metrics: Metrics,
    divergence: Tensor | None,
) -> Tensor:
    """The loss with divergences from teachers and reference and the entropy bonus, which are also told to `metrics`."""
    mask = batch.loss_mask
    if divergence is not None:
        assert batch.teacher_weights is not None, "they come with the teachers' tokens"
        metrics["actor/divergence"] = masked_mean(divergence, mask)
        loss = loss + total(divergence * batch.teacher_weights[:, None])
    if batch.reference_logprobs is not None:
        kl_loss = total(approx_kl(logprobs, batch.reference_logprobs.detach(), spec.kl_estimator, mask, spec.kl_clamp))
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
    return loss


def _policy_loss(logprobs: Tensor, batch: Padded, spec: LossSpec) -> tuple[Tensor, Tensor, Metrics]:
    """Returns [B, T] the corrected loss of each token, [B, T] bool the tokens it holds for, and metrics of both."""
    mask, proximal, behaviour = batch.loss_mask, batch.proximal_logprobs, batch.behaviour_logprobs
    variant = get_policy_loss(spec.pg_variant)
    if traits_of(variant).anchor == "none":
        per_token, _ = variant(LossInputs(logprobs, logprobs, batch.advantages, mask, batch.scores), spec.args)
        return per_token, mask, {}
    decoupled = proximal is not None and traits_of(variant).anchor == "step"
    trained = logprobs.detach() if proximal is None else proximal
    usable = mask & behaviour.isfinite()
    inputs = LossInputs(logprobs, trained if decoupled else behaviour, batch.advantages, usable, batch.scores)

    per_token, sums = variant(inputs, spec.args)
    metrics = _ratio_metrics(inputs, behaviour)
    metrics |= {f"actor/{name}": MeanMetric(value.detach(), mask.sum()) for name, value in sums.items()}
    metrics |= mismatch_metrics(trained, behaviour, usable)
    if batch.fresh_from is not None:
        metrics |= engine_mismatch_metrics(trained, behaviour, usable, batch.fresh_from, spec.engines)
    metrics["actor/behaviour_not_finite"] = MeanMetric((mask & ~usable).sum(), mask.sum())
    correction = spec.correction
    if decoupled and correction.weight is None:
        correction = replace(correction, weight=DECOUPLED_WEIGHT)
    if correction == Correction():
        return per_token, usable, metrics
    corrected = correct(trained, behaviour, usable, correction)
    return per_token * corrected.weight, corrected.kept, metrics | correction_metrics(corrected, mask)


@torch.no_grad()
def _ratio_metrics(inputs: LossInputs, behaviour_logprobs: Tensor) -> Metrics:
    """Returns the distances of the current policy from the policy of the ratio and from the one that sampled."""
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
