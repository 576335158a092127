"""REINFORCE with a bounded importance weight that carries no gradient: −sg(w)·A·ℓ. No token loses its gradient to a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.policy_loss import LossInputs, built_in
from roll.algorithms.ratio import LOG_RATIO_BOUND, bounded_exp, sequence_sum
from roll.configs.losses import PolicyLossArgs


@built_in("tis")
def tis(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Truncated importance sampling: −sg(clip(r, lower, upper))·A·ℓ."""
    ratio = inputs.ratio.detach()
    weight = ratio.clamp(args.tis_lower_bound, args.tis_upper_bound)
    low, high = inputs.count(ratio < args.tis_lower_bound), inputs.count(ratio > args.tis_upper_bound)
    metrics = {"clipfrac": low + high, "clipfrac_low": low, "clipfrac_high": high}
    return -weight * inputs.advantages * inputs.logprobs, metrics


@built_in("topr")
def topr(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Tapered off-policy REINFORCE (arXiv 2503.14286): −w₊·A·ℓ where the score is positive, else −w₋·sg(clip(R, 0, 1))·A·ℓ.

    R is the ratio of the whole *sequence*, as in the paper (a bad response that the policy has left behind stops pushing), or
    of the token, as in ROLL. The split is by the raw score: a centred advantage may have the other sign."""
    log_ratio = inputs.log_ratio.detach()
    per_sequence = args.topr_ratio_level == "sequence"
    ratio = bounded_exp(sequence_sum(log_ratio, inputs.mask) if per_sequence else log_ratio)
    positive = (inputs.scores > 0)[:, None]
    taper = ratio.clamp(max=1)
    weight = torch.where(positive, torch.full_like(taper, args.topr_positive_weight), args.topr_negative_weight * taper)
    metrics = {
        "clipfrac": inputs.count(~positive & (ratio > 1)),
        "topr_positive_share": inputs.count(positive),
        "topr_weight_mean": (weight * inputs.mask).sum(),
    }
    return -weight * inputs.advantages * inputs.logprobs, metrics


@built_in("cispo")
def cispo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): −sg(clip(r, 1−low, 1+high))·A·ℓ. No token loses its gradient to the clip,
    unless `cispo_use_unified_mask`: then those that PPO would clip (A > 0 above, A < 0 below) do."""
    ratio, advantages = inputs.ratio.detach(), inputs.advantages
    low, high = 1 - args.cispo_epsilon_low, 1 + args.cispo_epsilon_high
    weight = ratio.clamp(low, high)
    below, above = ratio < low, ratio > high
    metrics = {
        "clipfrac": inputs.count(below | above),
        "clipfrac_low": inputs.count(below),
        "clipfrac_high": inputs.count(above),
    }
    if args.cispo_use_unified_mask:
        masked = (above & (advantages > 0)) | (below & (advantages < 0))
        weight = weight.masked_fill(masked, 0.0)
        metrics["cispo_masked_share"] = inputs.count(masked)
    return -weight * advantages * inputs.logprobs, metrics


@built_in("vespo")
def vespo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """VESPO (arXiv 2602.10693): −sg(φ(W))·A·ℓ, φ(W) = W^k·e^(λ·(1 − W)), W = Π_y r the ratio of the sequence; k, λ by the
    sign of A. φ(1) = 1, and φ fades both for responses left behind (W → 0) and for run-away ones (W → ∞)."""
    log_w = sequence_sum(inputs.log_ratio.detach(), inputs.mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    rise = bounded_exp(args.vespo_k_pos * log_w + args.vespo_lambda_pos * (1 - log_w.exp()))
    fall = bounded_exp(args.vespo_k_neg * log_w + args.vespo_lambda_neg * (1 - log_w.exp()))
    weight = torch.where(inputs.advantages >= 0, rise, fall)
    return -weight * inputs.advantages * inputs.logprobs, {"vespo_weight_mean": (weight * inputs.mask).sum()}
