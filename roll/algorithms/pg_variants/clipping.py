"""Surrogates of the ratio itself, r·A, bounded by a hard or a soft clip: the gradient of a clipped token is 0."""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.policy_loss import LossInputs, built_in
from roll.algorithms.ratio import bounded_exp, sequence_mean
from roll.configs.losses import PolicyLossArgs


def _clipped(inputs: LossInputs, ratio: Tensor, low: float, high: float, dual: float | None) -> tuple[Tensor, dict[str, Tensor]]:
    """−min(r·A, clip(r, 1−low, 1+high)·A). With `dual` (arXiv 1912.09729), where A < 0: −max(min(...), dual·A), so one bad token
    cannot dominate."""
    advantages = inputs.advantages
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    clipped_low = inputs.count((ratio < 1 - low) & (advantages < 0))
    clipped_high = inputs.count((ratio > 1 + high) & (advantages > 0))
    metrics = {"clipfrac": clipped_low + clipped_high, "clipfrac_low": clipped_low, "clipfrac_high": clipped_high}
    if dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual * advantages), loss)
        metrics["clipfrac_dual"] = inputs.count((ratio > dual) & (advantages < 0))
        metrics["clipfrac"] = metrics["clipfrac"] + metrics["clipfrac_dual"]
    return loss, metrics


def _of_sequence(log_ratios: Tensor, mask: Tensor) -> Tensor:
    """[B, T] the geometric mean s of a sequence's ratios on each of its tokens, as sg(s)·exp(x − sg(x)): its value is s, and
    the gradient of each token is s times that of its own log-ratio x (GSPO-token, eq. 14)."""
    shared = bounded_exp(sequence_mean(log_ratios.detach(), mask))
    return shared * (log_ratios - log_ratios.detach()).exp()


@built_in("ppo")
def ppo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7): −min(r·A, clip(r, 1−low, 1+high)·A)."""
    return _clipped(inputs, inputs.ratio, args.pg_clip_low, args.pg_clip_high, args.dual_clip_c)


@built_in("decoupled_ppo")
def decoupled_ppo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Decoupled PPO (arXiv 2110.00641; AReaL, arXiv 2505.24298): ppo with the ratio to the *proximal* policy, so that
    the trust region moves with the step and not with the sampler. Its weight exp(ℓ_p − ℓ_b) is the train/infer correction."""
    return ppo(inputs, args)


@built_in("gspo")
def gspo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """GSPO (arXiv 2507.18071): −min(s·A, clip(s)·A), s = exp(1/|y|·Σ_y log r) the length-normalised ratio of the sequence.

    As GSPO-token (eq. 13): the same value and gradient where A is one number per sequence, and right where it is not."""
    ratio = _of_sequence(inputs.log_ratio, inputs.mask)
    return _clipped(inputs, ratio, args.gspo_clip_low, args.gspo_clip_high, args.dual_clip_c)


@built_in("gmpo")
def gmpo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """GMPO (arXiv 2507.20673): −A·exp(1/|y|·Σ_y c), c = log r clipped at +high where A > 0, at −low where A < 0."""
    log_ratio, advantages = inputs.log_ratio, inputs.advantages
    above, below = torch.full_like(log_ratio, args.gmpo_clip_high), torch.full_like(log_ratio, -args.gmpo_clip_low)
    clipped = torch.where(advantages > 0, torch.minimum(log_ratio, above), log_ratio)
    clipped = torch.where(advantages < 0, torch.maximum(clipped, below), clipped)
    low = inputs.count((log_ratio < below) & (advantages < 0))
    high = inputs.count((log_ratio > above) & (advantages > 0))
    metrics = {"clipfrac": low + high, "clipfrac_low": low, "clipfrac_high": high}
    return -_of_sequence(clipped, inputs.mask) * advantages, metrics


@built_in("sapo")
def sapo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """SAPO (arXiv 2511.20347): −(4/τ)·σ(τ·(r − 1))·A, τ by the sign of A: a smooth gate instead of a clip.

    The gradient's weight, 4·σ·(1 − σ)·r, is 1 on policy and fades on both sides."""
    advantages = inputs.advantages
    tau = torch.where(advantages > 0, advantages.new_tensor(args.sapo_tau_pos), advantages.new_tensor(args.sapo_tau_neg))
    gate = torch.sigmoid(tau * (inputs.ratio - 1))
    return -4 / tau * gate * advantages, {"sapo_gate": inputs.mask.mul(4 * gate * (1 - gate)).detach().sum()}
