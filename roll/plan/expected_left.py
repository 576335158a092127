"""Expected share of a response's gradient that a loss leaves, if sampler and trainer differ only in numerics.

The numerics of two engines add noise δ_t to the log-ratio of each token. Let it be independent, normal and of standard deviation
σ. Ratios average to 1 under the policy that sampled, E[e^δ] = 1, so the mean of δ is −σ²/2 (and KL(sampler ‖ trainer) = σ²/2 per
token: `actor/train_infer_kl` measures it). Of n tokens the sum S is then normal with mean −v/2 and variance v = n·σ². A loss
that weighs every token of a response by f(S) is expected to leave E[f(S)] of its gradient (`gradient_left` measures it). For
`topr`, f(S) = min(e^S, 1), that is 2·Φ(−√v/2): with σ = 0.02 it is 0.75 at 1,000 tokens, 0.37 at 8,000, 0.07 at 32,000. The mean
S/n, of which `gspo` takes its ratio, has a standard deviation of σ/√n; its share depends on how tight the clip is.

Weights that are functions of one token's ratio do not depend on the length and are 1 here. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist

from roll.core.configs.losses import CorrectionFilterConfig, PolicyLossArgs, TrainInferCorrectionConfig

Weight = Callable[[float], float]
"""Weight as a function of S."""
ENGINES_NOISE = 0.02
"""σ assumed where engine and trainer are different programs: KL 2e-4 a token, a common difference of bf16 kernels."""
LEAST = 0.5
"""Less of the gradient is told."""
CELLS = 4000
"""Cells of the sum that approximates the expectation: weights may jump."""


def expected(weight: Weight, tokens: int, noise: float) -> float:
    """E[weight(S)]. `noise`: σ, nats per token."""
    spread = noise * math.sqrt(tokens)
    quantiles = ((cell + 0.5) / CELLS for cell in range(CELLS))
    sums = map(NormalDist(-(spread**2) / 2, spread).inv_cdf, quantiles) if spread else [0.0] * CELLS
    return sum(map(weight, sums)) / CELLS


def weight_of(
    variant: str, args: PolicyLossArgs, correction: TrainInferCorrectionConfig, tokens: int, *, good: bool, own_ratio: bool
) -> Weight:
    """The weight of a response with A > 0 (`good`) or A < 0. `own_ratio`: the variant takes its ratio to the sampler's
    log-probs; else, to those recomputed, it is 1 in the first pass."""
    factors = list(_of_correction(correction, tokens))
    if own_ratio and variant in _OF_RESPONSE:
        factors.append(_OF_RESPONSE[variant](args, tokens, good))
    return lambda total: math.prod(factor(total) for factor in factors)


def _topr(args: PolicyLossArgs, tokens: int, good: bool) -> Weight:
    """The paper's split is by the score; a response with a positive one has A > 0."""
    tapers = not good and args.topr_ratio_level == "sequence"
    return (lambda total: math.exp(min(total, 0.0))) if tapers else _one


def _vespo(args: PolicyLossArgs, tokens: int, good: bool) -> Weight:
    k, rate = (args.vespo_k_pos, args.vespo_lambda_pos) if good else (args.vespo_k_neg, args.vespo_lambda_neg)
    return lambda total: math.exp(k * total + rate * (1 - math.exp(total)))


def _gspo(args: PolicyLossArgs, tokens: int, good: bool) -> Weight:
    """The gradient is that of s where s has not moved beyond its clip as A asks: e^(S/n), or 0."""

    def weight(total: float) -> float:
        ratio = math.exp(total / tokens)
        clipped = ratio > 1 + args.gspo_clip_high if good else ratio < 1 - args.gspo_clip_low
        return 0.0 if clipped else ratio

    return weight


def _one(total: float) -> float:
    return 1.0


_OF_RESPONSE: dict[str, Callable[[PolicyLossArgs, int, bool], Weight]] = {"topr": _topr, "vespo": _vespo, "gspo": _gspo}


def _of_correction(correction: TrainInferCorrectionConfig, tokens: int) -> Iterator[Weight]:
    chosen = correction.is_weight
    if chosen.enabled and chosen.weight_type in ("sequence", "geometric"):
        parts = 1 if chosen.weight_type == "sequence" else tokens

        def weight(total: float) -> float:
            ratio = math.exp(total / parts)
            if chosen.mode == "mask":
                return ratio if chosen.lower_bound <= ratio <= chosen.upper_bound else 0.0
            return min(ratio, chosen.upper_bound)

        yield weight
    yield from (_kept(rule, tokens) for rule in correction.filters if rule.enabled and rule.ratio_enabled)


def _kept(rule: CorrectionFilterConfig, tokens: int) -> Weight:
    if rule.agg_type not in ("sequence", "geometric"):
        return _one
    parts = 1 if rule.agg_type == "sequence" else tokens
    return lambda total: float(rule.ratio_low <= math.exp(total / parts) <= rule.ratio_high)


def fix_of(variant: str, args: PolicyLossArgs, correction: TrainInferCorrectionConfig) -> str:
    """Returns advice on settings that leave long responses more of their gradient."""
    chosen = correction.is_weight
    if chosen.enabled and chosen.weight_type == "sequence":
        return "train_infer_correction.is_weight.weight_type: geometric or token"
    if any(rule.enabled and rule.ratio_enabled and rule.agg_type == "sequence" for rule in correction.filters):
        return "train_infer_correction.filters with agg_type: geometric or token"
    if variant == "gspo":
        return "old_logprobs: recompute, or a wider actor_train.gspo_clip_low and gspo_clip_high"
    if variant == "topr" and args.topr_ratio_level == "sequence":
        return "actor_train.topr_ratio_level: token"
    return "a pg_variant that weighs tokens, such as ppo" if variant in _OF_RESPONSE else "fresher samples, or wider clips"
