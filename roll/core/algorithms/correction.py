"""Train/infer correction: weights and masks for the distance between the trained policy and the one that sampled.

The trained policy stands for itself by its log-probs ℓ_t (those of the step's first weights where they were recomputed, else
the current ones, detached), the sampler by the recorded ℓ_b. ρ = exp(ℓ_t − ℓ_b). Everything here is without gradient, and a
statistic of a token, a segment or a whole sequence, never of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from roll.core.algorithms.kl import approx_kl
from roll.core.algorithms.loss_metrics import CorrelationMetric, EffectiveSizeMetric, MaxMetric, MeanMetric, Metrics, masked_mean
from roll.core.algorithms.ratio import bounded_exp, log_ratio, select, sequence_mean, sequence_sum
from roll.core.algorithms.registry import unknown_name
from roll.core.algorithms.returns import turn_starts
from roll.core.configs.losses import DECOUPLED_BOUND, CorrectionLevel, CorrectionMode

ESS = "actor/train_infer_ess_sequence"
"""The metric that says how many of the responses count: (Σρ)² / (n Σρ²), ρ being the ratio of a whole response."""


@dataclass(frozen=True, kw_only=True)
class ImportanceWeight:
    """The weight w of each token's policy loss."""

    level: CorrectionLevel = "token"
    upper_bound: float = DECOUPLED_BOUND
    mode: CorrectionMode = "truncate"
    """`truncate`: min(ρ, upper) (TIS). `mask`: ρ within [lower, upper], 0 outside (MIS, IcePop)."""
    lower_bound: float = 0.5

    def __post_init__(self) -> None:
        _check_level(self.level)
        if self.mode not in get_args(CorrectionMode):
            raise unknown_name("importance weight mode", self.mode, get_args(CorrectionMode))
        if not self.upper_bound > 0 or (self.mode == "mask" and not 0 <= self.lower_bound < self.upper_bound):
            raise ValueError(f"need 0 <= lower_bound < upper_bound, got {self.lower_bound}, {self.upper_bound}")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Keeps the tokens whose ratio ρ, whose difference of probabilities p_t − p_b, or both lie in a range (inclusive).

    The difference is aggregated as the ratio's logarithm is: a mean over the segment (`segment`) or the sequence (`geometric`), a
    sum over the sequence (`sequence`)."""

    level: CorrectionLevel = "token"
    ratio: tuple[float, float] | None = (0.8, 1.2)
    difference: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check_level(self.level)


@dataclass(frozen=True, kw_only=True)
class Correction:
    weight: ImportanceWeight | None = None
    """None: no weight; but a decoupled loss is never without one, see `compute_loss`."""
    filters: tuple[Filter, ...] = ()
    veto_threshold: float | None = None
    """A sequence with any token of ρ below this is left out whole."""


class Corrected(NamedTuple):
    """[B, T] each, without gradient."""

    weight: Tensor
    """0 on the tokens that are left out; 1 where there is nothing to correct."""
    kept: Tensor
    """bool: trained tokens that filters, veto and masking weights leave in."""


def _check_level(level: str) -> None:
    if level not in get_args(CorrectionLevel):
        raise unknown_name("level", level, get_args(CorrectionLevel))


@torch.no_grad()
def correct(trained: Tensor, behaviour: Tensor, mask: Tensor, correction: Correction) -> Corrected:
    """Weights and kept tokens from log-probs ℓ_t and ℓ_b [B, T]; where `mask` is False they may hold anything."""
    log_rho = log_ratio(trained, behaviour, mask)
    kept = mask.clone()
    for rule in correction.filters:
        if rule.ratio is not None:
            kept &= _within(bounded_exp(at_level(log_rho, mask, rule.level)), rule.ratio)
        if rule.difference is not None:
            difference = _probability(trained, mask) - _probability(behaviour, mask)
            kept &= _within(at_level(difference, mask, rule.level), rule.difference)
    if correction.veto_threshold is not None:
        vetoed = mask & (bounded_exp(log_rho) < correction.veto_threshold)
        kept &= ~vetoed.any(dim=1, keepdim=True)
    if correction.weight is None:
        return Corrected(kept.to(log_rho.dtype), kept)
    weight = correction.weight
    rho = bounded_exp(at_level(log_rho, mask, weight.level))
    if weight.mode == "mask":
        kept &= _within(rho, (weight.lower_bound, weight.upper_bound))
    return Corrected(select(rho.clamp(max=weight.upper_bound), kept), kept)


def _within(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    return (values >= bounds[0]) & (values <= bounds[1])


def _probability(logprobs: Tensor, mask: Tensor) -> Tensor:
    """0 where masked. A log-prob above 0, of an engine's rounding, counts as 0."""
    return select(select(logprobs, mask).clamp(max=0).exp(), mask)


def at_level(values: Tensor, mask: Tensor, level: CorrectionLevel) -> Tensor:
    """[B, T] the statistic of `level` on each of its tokens."""
    if level == "token":
        return select(values, mask)
    if level == "segment":
        return _segment_mean(values, mask)
    of_sequence = sequence_sum(values, mask) if level == "sequence" else sequence_mean(values, mask)
    return of_sequence.expand_as(values)


def _segment_mean(values: Tensor, mask: Tensor) -> Tensor:
    segment = turn_starts(mask).long().cumsum(dim=1)  # masked tokens join the segment before them, with value and count 0
    zeros = values.new_zeros(values.shape[0], values.shape[1] + 1)
    sums = zeros.scatter_add(1, segment, select(values, mask))
    counts = zeros.scatter_add(1, segment, mask.to(values.dtype))
    return (sums / counts.clamp(min=1)).gather(1, segment)


@torch.no_grad()
def correction_metrics(corrected: Corrected, mask: Tensor) -> Metrics:
    """Returns metrics of the correction's effect."""
    weight, count = corrected.weight, mask.sum()
    return {
        "actor/is_weight_mean": masked_mean(weight, mask),
        "actor/is_weight_max": MaxMetric(select(weight, mask).max() if weight.numel() else weight.new_zeros(())),
        "actor/is_weight_ess": EffectiveSizeMetric(select(weight, mask).sum(), select(weight, mask).square().sum(), count),
        "actor/train_infer_final_mask_mean": masked_mean(corrected.kept.to(weight.dtype), mask),
    }


@torch.no_grad()
def mismatch_metrics(trained: Tensor, behaviour: Tensor, mask: Tensor) -> Metrics:
    """Returns estimates of the distance of the trained policy ℓ_t from the sampling one ℓ_b, from the sampled tokens."""
    trained, behaviour = select(trained, mask), select(behaviour, mask)
    log_rho = trained - behaviour
    rho = bounded_exp(log_rho)
    p, p_b = _probability(trained, mask), _probability(behaviour, mask)
    rows = mask.any(dim=1, keepdim=True)
    of_sequence = bounded_exp(sequence_sum(log_rho, mask))
    return {
        "actor/train_infer_kl": masked_mean(approx_kl(behaviour, trained, "k1"), mask),
        "actor/train_infer_k3": masked_mean(approx_kl(behaviour, trained, "k3"), mask),
        "actor/train_infer_chi2_token": masked_mean(rho.square() - 1, mask),
        "actor/train_infer_chi2_sequence": masked_mean(of_sequence.square() - 1, rows),
        "actor/train_infer_ppl_ratio": masked_mean(bounded_exp(-sequence_mean(log_rho, mask)), rows),
        "actor/train_infer_prob_diff_mean": masked_mean((p - p_b).abs(), mask),
        "actor/train_infer_prob_diff_max": MaxMetric((p - p_b).abs().max() if p.numel() else p.new_zeros(())),
        "actor/train_infer_pearson": CorrelationMetric.of(p, p_b, mask),
        "actor/train_infer_ess_token": _ess(rho, mask),
        ESS: _ess(of_sequence, rows),
        "actor/train_infer_ratio_token_mean": MeanMetric(select(rho, mask).sum(), mask.sum()),
    }


@torch.no_grad()
def engine_mismatch_metrics(trained: Tensor, behaviour: Tensor, mask: Tensor, fresh_from: Tensor, engines: int) -> Metrics:
    """|ℓ_t − ℓ_b| where it should be nothing but rounding: of the tokens that were sampled with the very weights of ℓ_t. All [B,
    T]; `fresh_from` as in `TokenBatch`. The metrics are also given by engine: an engine that serves other weights than it reports
    stands out."""
    fresh = mask & (fresh_from > 0)
    difference = select((select(trained, fresh) - select(behaviour, fresh)).abs(), fresh)
    metrics: Metrics = {
        "actor/engine_mismatch": masked_mean(difference, fresh),
        "actor/engine_mismatch_max": MaxMetric(difference.max() if difference.numel() else difference.new_zeros(())),
        "actor/engine_mismatch_k3": masked_mean(approx_kl(select(behaviour, fresh), select(trained, fresh), "k3"), fresh),
    }
    for engine in range(engines):
        metrics[f"actor/engine_mismatch/{engine}"] = masked_mean(difference, fresh & (fresh_from == 1 + engine))
    return metrics


def _ess(weights: Tensor, mask: Tensor) -> EffectiveSizeMetric:
    weights = select(weights, mask).double()
    return EffectiveSizeMetric(weights.sum(), weights.square().sum(), mask.sum())
