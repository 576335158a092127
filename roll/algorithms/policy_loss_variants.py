"""The built-in policy-gradient losses. In the formulas: ℓ log-prob, r ratio to the anchor policy, A advantage, sg stop-gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.policy_loss import LossInputs, PolicyLossArgs, policy_loss
from roll.algorithms.ratio import bounded_exp


@policy_loss("vanilla")
def vanilla(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE: −A·ℓ. No off-policy correction."""
    return -inputs.advantages * inputs.logprobs, {}


@policy_loss("ppo")
def ppo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped surrogate (arXiv 1707.06347): −min(r·A, clip(r, 1−low, 1+high)·A).

    With `dual_clip_c` (arXiv 1912.09729), where A < 0: −max(min(...), c·A), so one bad token cannot dominate."""
    ratio, advantages = inputs.ratio, inputs.advantages
    low, high = 1 - args.pg_clip_low, 1 + args.pg_clip_high
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped_low = inputs.count((ratio < low) & (advantages < 0))
    clipped_high = inputs.count((ratio > high) & (advantages > 0))
    metrics = {"clipfrac": clipped_low + clipped_high, "clipfrac_low": clipped_low, "clipfrac_high": clipped_high}
    if args.dual_clip_c is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -args.dual_clip_c * advantages), loss)
        metrics["clipfrac_dual"] = inputs.count((ratio > args.dual_clip_c) & (advantages < 0))
        metrics["clipfrac"] = metrics["clipfrac"] + metrics["clipfrac_dual"]
    return loss, metrics


@policy_loss("tis")
def tis(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Truncated importance sampling: −sg(clip(r, lower, upper))·A·ℓ."""
    ratio = inputs.ratio.detach()
    weight = ratio.clamp(args.tis_lower_bound, args.tis_upper_bound)
    low, high = inputs.count(ratio < args.tis_lower_bound), inputs.count(ratio > args.tis_upper_bound)
    metrics = {"clipfrac": low + high, "clipfrac_low": low, "clipfrac_high": high}
    return -weight * inputs.advantages * inputs.logprobs, metrics


@policy_loss("topr")
def topr(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Tapered off-policy REINFORCE (arXiv 2503.14286): −w₊·A·ℓ where the score is positive, else −w₋·sg(clip(R, 0, 1))·A·ℓ.

    R is the ratio of the whole *sequence*, as in the paper: a bad response that the policy has left behind stops pushing.
    The split is by the raw score: a centred advantage may have the other sign (a positive score below the group's mean)."""
    sequence_ratio = bounded_exp(inputs.log_ratio.detach().sum(dim=1, keepdim=True))
    positive = (inputs.scores > 0)[:, None]
    taper = sequence_ratio.clamp(max=1)
    weight = torch.where(positive, torch.full_like(taper, args.topr_positive_weight), args.topr_negative_weight * taper)
    metrics = {
        "clipfrac": inputs.count(~positive & (sequence_ratio > 1)),
        "topr_positive_share": inputs.count(positive),
        "topr_weight_mean": (weight * inputs.mask).sum(),
    }
    return -weight * inputs.advantages * inputs.logprobs, metrics


@policy_loss("cispo")
def cispo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """CISPO (MiniMax-M1, arXiv 2506.13585): −sg(clip(r, 1−low, 1+high))·A·ℓ. No token loses its gradient to the clip,
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


@policy_loss("kimi15")
def kimi15(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Kimi k1.5's mirror descent, per token (arXiv 2501.12599): −A·ℓ + τ/2·(ℓ − ℓ_anchor)²."""
    penalty = inputs.log_ratio.square() * (args.kimi15_tau / 2)
    return -inputs.advantages * inputs.logprobs + penalty, {"kimi15_penalty": penalty.detach().sum()}
