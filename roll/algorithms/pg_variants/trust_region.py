"""Losses that leave out tokens whose probability has moved too far, by a measure of distance other than the ratio's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roll.algorithms.policy_loss import LossInputs, built_in
from roll.algorithms.ratio import log_ratio
from roll.configs.losses import PolicyLossArgs

if TYPE_CHECKING:
    from roll.data.token_batch import TokenBatch

SMALLEST_PROBABILITY = 1e-8


def _masked(inputs: LossInputs, out: Tensor, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """−M·sg(min(r, cap))·A·ℓ, M = 0 where `out`."""
    weight = inputs.ratio.detach().clamp(max=args.dppo_ratio_cap).masked_fill(out, 0.0)
    return -weight * inputs.advantages * inputs.logprobs, {"clipfrac": inputs.count(out)}


@built_in("dppo_tv")
def dppo_tv(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """DPPO, binary total variation (arXiv 2602.04879): −M·sg(min(r, cap))·A·ℓ; M leaves out tokens already pushed too far:
    p − p_a > high where A > 0, p_a − p > low elsewhere. A rare token may so rise by a large ratio, a likely one may not."""
    moved = inputs.logprobs.detach().exp() - inputs.anchor_logprobs.exp()
    out = torch.where(inputs.advantages > 0, moved > args.dppo_tv_delta_high, -moved > args.dppo_tv_delta_low)
    return _masked(inputs, out, args)


@built_in("dppo_kl")
def dppo_kl(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """DPPO, binary KL (arXiv 2602.04879): as dppo_tv, with the distance KL(Bernoulli(p_a) ‖ Bernoulli(p)) =
    p_a·log(p_a/p) + (1 − p_a)·log((1 − p_a)/(1 − p)), and only tokens that moved the way of A left out."""
    logprobs, anchor = inputs.logprobs.detach(), inputs.anchor_logprobs
    p, p_a = logprobs.exp(), anchor.exp()
    rest, rest_a = (1 - p).clamp(min=SMALLEST_PROBABILITY), (1 - p_a).clamp(min=SMALLEST_PROBABILITY)
    distance = p_a * (anchor - logprobs) + (1 - p_a) * (rest_a.log() - rest.log())
    risen = (p > p_a) & (distance > args.dppo_kl_delta_high)
    fallen = (p < p_a) & (distance > args.dppo_kl_delta_low)
    return _masked(inputs, torch.where(inputs.advantages > 0, risen, fallen), args)


def second_moment_mask(log_ratios: Tensor, advantages: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """M2PO's mask M (algorithm 1): True on the tokens to keep, of the shape of `mask`. Of the tokens in `mask` on which PPO's
    clip could act (A > 0 and r > 1, or A < 0 and r < 1) the largest (log r)² are left out until the mean of the rest is at most
    `threshold`; equal ones go together."""
    constrained = mask & (log_ratios * advantages.sign() > 0)
    moments = log_ratios[constrained].double().square().sort().values
    means = moments.cumsum(0) / torch.arange(1, moments.numel() + 1, device=moments.device)
    fits = means <= threshold
    if bool(fits.all()):
        return torch.ones_like(mask)
    # The means of ascending values ascend, so the first that does not fit is the first value to go.
    smallest_out = moments[fits.sum()]
    return ~(constrained & (log_ratios.double().square() >= smallest_out))


def _mask_outliers(batch: TokenBatch, args: PolicyLossArgs) -> TokenBatch:
    if batch.proximal_logprobs is None:
        raise ValueError("m2po needs proximal_logprobs")
    ratios = log_ratio(batch.proximal_logprobs, batch.behaviour_logprobs, batch.loss_mask)
    keep = second_moment_mask(ratios, batch.advantages, batch.loss_mask, args.m2po_threshold)
    return batch.with_(advantages=torch.where(keep, batch.advantages, 0.0))


@built_in("m2po", prepare=_mask_outliers)
def m2po(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """M2PO (arXiv 2510.01161, eq. 5): −M·r·A, r to the behaviour policy, averaged over all tokens, masked ones included.

    M bounds the second moment of log r over the *whole optimiser batch*, so it is made before the batch is cut, with the
    log-probs of the step's first weights, and stands in the advantages as zeros."""
    return -inputs.ratio * inputs.advantages, {}
