"""The built-in policy losses by family, and their look-up by name. The formula of each stands with its declaration in
`roll.core.configs.losses`, in the same symbols; here are sources, reasons and code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roll.core.algorithms.policy_loss import LossInputs, PolicyLoss, built_in, policy_losses
from roll.core.algorithms.ratio import LOG_RATIO_BOUND, bounded_exp, log_ratio, sequence_mean, sequence_sum
from roll.core.configs.losses import DEFAULT_LOSS, PolicyLossArgs

if TYPE_CHECKING:
    from roll.core.data.token_batch import TokenBatch

SMALLEST_PROBABILITY = 1e-8


def get_policy_loss(name: str | None = None) -> PolicyLoss:
    """The loss called `name`, or the user's function at the dotted path `name`; None is the default loss.

    Unknown names raise `ValueError` with the nearest known one.
    """
    return policy_losses.get(name or DEFAULT_LOSS)


# -- without an importance weight: −A·ℓ, shifted, scaled or regularised


@built_in("gpg")
@built_in("reinforce")
@built_in("vanilla")
def vanilla(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE. No off-policy correction. Group Policy Gradient (arXiv 2504.02546) differs by its advantage,
    `adv_estimator: gpg`."""
    return -inputs.advantages * inputs.logprobs, {}


@built_in("opmd")
def opmd(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Online policy mirror descent, the simple form (Trinity-RFT, arXiv 2505.17826), for A = R − mean."""
    return -inputs.advantages * inputs.logprobs / (1 + args.opmd_tau), {}


@built_in("asymre")
def asymre(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Asymmetric REINFORCE (arXiv 2506.20520). A baseline below the mean leans on the good samples."""
    return -(inputs.advantages - args.asymre_baseline_shift) * inputs.logprobs, {}


@built_in("kimi15")
def kimi15(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Kimi k1.5's mirror descent, per token (arXiv 2501.12599)."""
    penalty = inputs.log_ratio.square() * (args.kimi15_tau / 2)
    return -inputs.advantages * inputs.logprobs + penalty, {"kimi15_penalty": penalty.detach().sum()}


# -- of the ratio itself, r·A, bounded by a hard or a soft clip: the gradient of a clipped token is 0


def _clipped(inputs: LossInputs, ratio: Tensor, low: float, high: float, dual: float | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns PPO's clipped surrogate. With `dual` (arXiv 1912.09729) one bad token cannot dominate."""
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
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7)."""
    return _clipped(inputs, inputs.ratio, args.pg_clip_low, args.pg_clip_high, args.dual_clip_c)


@built_in("decoupled_ppo")
def decoupled_ppo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Decoupled PPO (arXiv 2110.00641; AReaL, arXiv 2505.24298): ppo with the ratio to the *proximal* policy, so that
    the trust region moves with the step and not with the sampler. Its weight exp(ℓ_p − ℓ_b) is the train/infer correction."""
    return ppo(inputs, args)


@built_in("gspo")
def gspo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """GSPO (arXiv 2507.18071): ppo with the length-normalised ratio of the sequence.

    As GSPO-token (eq. 13): the same value and gradient where A is one number per sequence, and right where it is not."""
    ratio = _of_sequence(inputs.log_ratio, inputs.mask)
    return _clipped(inputs, ratio, args.gspo_clip_low, args.gspo_clip_high, args.dual_clip_c)


@built_in("gmpo")
def gmpo(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """GMPO (arXiv 2507.20673): the geometric mean of clipped ratios."""
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
    """SAPO (arXiv 2511.20347): a smooth gate instead of a clip.

    The gradient's weight, 4·σ·(1 − σ)·r, is 1 on policy and fades on both sides."""
    advantages = inputs.advantages
    tau = torch.where(advantages > 0, advantages.new_tensor(args.sapo_tau_pos), advantages.new_tensor(args.sapo_tau_neg))
    gate = torch.sigmoid(tau * (inputs.ratio - 1))
    return -4 / tau * gate * advantages, {"sapo_gate": inputs.mask.mul(4 * gate * (1 - gate)).detach().sum()}


# -- with a bounded weight that carries no gradient, −sg(w)·A·ℓ: no token loses its gradient to a clip


@built_in("tis")
def tis(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Truncated importance sampling."""
    ratio = inputs.ratio.detach()
    weight = ratio.clamp(args.tis_lower_bound, args.tis_upper_bound)
    low, high = inputs.count(ratio < args.tis_lower_bound), inputs.count(ratio > args.tis_upper_bound)
    metrics = {"clipfrac": low + high, "clipfrac_low": low, "clipfrac_high": high}
    return -weight * inputs.advantages * inputs.logprobs, metrics


@built_in("topr")
def topr(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Tapered off-policy REINFORCE (arXiv 2503.14286).

    The ratio is that of the whole *sequence*, as in the paper (a bad response that the policy has left behind stops pushing), or
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
    """CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4). No token loses its gradient to the clip,
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
    """VESPO (arXiv 2602.10693). Its weight φ is 1 on policy, and fades both for responses left behind (W → 0) and for run-away
    ones (W → ∞)."""
    log_w = sequence_sum(inputs.log_ratio.detach(), inputs.mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    rise = bounded_exp(args.vespo_k_pos * log_w + args.vespo_lambda_pos * (1 - log_w.exp()))
    fall = bounded_exp(args.vespo_k_neg * log_w + args.vespo_lambda_neg * (1 - log_w.exp()))
    weight = torch.where(inputs.advantages >= 0, rise, fall)
    return -weight * inputs.advantages * inputs.logprobs, {"vespo_weight_mean": (weight * inputs.mask).sum()}


# -- without the tokens whose probability has moved too far, by a measure of distance other than the ratio's


def _masked(inputs: LossInputs, out: Tensor, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss without the tokens in `out`."""
    weight = inputs.ratio.detach().clamp(max=args.dppo_ratio_cap).masked_fill(out, 0.0)
    return -weight * inputs.advantages * inputs.logprobs, {"clipfrac": inputs.count(out)}


@built_in("dppo_tv")
def dppo_tv(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """DPPO, binary total variation (arXiv 2602.04879): leaves out tokens already pushed too far. A rare token may so rise by a
    large ratio, a likely one may not."""
    moved = inputs.logprobs.detach().exp() - inputs.anchor_logprobs.exp()
    out = torch.where(inputs.advantages > 0, moved > args.dppo_tv_delta_high, -moved > args.dppo_tv_delta_low)
    return _masked(inputs, out, args)


@built_in("dppo_kl")
def dppo_kl(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """DPPO, binary KL (arXiv 2602.04879): as dppo_tv, with the distance KL(Bernoulli(p_a) ‖ Bernoulli(p)), and only tokens that
    moved the way of A left out."""
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
    """M2PO (arXiv 2510.01161, eq. 5): the ratio is to the behaviour policy, averaged over all tokens, masked ones included.

    M bounds the second moment of log r over the *whole optimiser batch*, so it is made before the batch is cut, with the
    log-probs of the step's first weights, and stands in the advantages as zeros."""
    return -inputs.ratio * inputs.advantages, {}
