"""Advantages of whole sequences from their rewards, and transforms of advantages (whitening, clipping).

An estimator is a pure function `(rewards [S], group_ids [S], lengths [S]) -> [S]`; a group is the samples of one prompt, of any
size. Tools for multi-turn episodes (discounts, values, states) are in `returns` and `step_advantages`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from roll.core.algorithms.registry import Registry
from roll.core.algorithms.reward_normalization import EPSILON, batch_moments, group_moments, normalize_rewards

AdvantageEstimator: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of `rewards` [S], `group_ids` [S] int64 and `lengths` [S], the number of trained tokens of each sample."""

advantage_estimator: Registry[AdvantageEstimator] = Registry("adv_estimator")
"""`@advantage_estimator("name")` registers an estimator."""


@advantage_estimator("reinforce")
def reinforce(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """The normalised reward itself."""
    return rewards.clone()


@advantage_estimator("raft")
def raft(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """1: rejection sampling (RAFT, arXiv 2304.06767) trains the responses that it keeps as they stand, and no others."""
    return torch.ones_like(rewards)


@advantage_estimator("grpo")
def grpo(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """(R − group mean) / (group std + 1e-6) (arXiv 2402.03300); 0 in a group of one or of equal rewards."""
    return normalize_rewards(rewards, group_ids, mean="group", std="group")


@advantage_estimator("dr_grpo")
def dr_grpo(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """R − group mean (Dr. GRPO, arXiv 2503.20783): no division, so easy and hard prompts weigh as they are."""
    return normalize_rewards(rewards, group_ids, mean="group", std=None)


@advantage_estimator("rloo")
def rloo(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """R − mean of the *other* samples of the group (arXiv 2402.14740); 0 in a group of one, which has no others."""
    mean, _, size = group_moments(rewards, group_ids)
    return ((rewards - mean) * size / (size - 1).clamp(min=1)).to(rewards.dtype)


@advantage_estimator("reinforce_plus_plus")
def reinforce_plus_plus(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """R, then whitened over the tokens of the batch (REINFORCE++, arXiv 2501.03262): one baseline and scale for all prompts."""
    return rewards.clone()


@advantage_estimator("reinforce_plus_plus_baseline")
def reinforce_plus_plus_baseline(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """R − group mean, then whitened over the tokens of the batch (the -Baseline of arXiv 2501.03262); 0 in a group of one."""
    return normalize_rewards(rewards, group_ids, mean="group", std=None)


@advantage_estimator("opo")
def opo(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """R − Σ(length · R) / Σ length over the group (arXiv 2505.23585): the baseline of least variance if a sample's squared
    gradient norm grows with its length. 0 in a group of one; R − group mean in a group without trained tokens."""
    _, index = torch.unique(group_ids, return_inverse=True)
    weights = lengths.double()
    weights = torch.where(_group_sums(weights, index) > 0, weights, 1.0)
    centred = rewards - group_moments(rewards, group_ids).mean  # exactly 0 where all rewards of a group are equal
    baseline = _group_sums(weights * centred, index) / _group_sums(weights, index)
    return (centred - baseline).to(rewards.dtype)


@advantage_estimator("gpg")
def gpg(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """α · (R − group mean), α = samples / samples of groups whose rewards differ (GPG, arXiv 2504.02546): groups that teach
    nothing do not dilute the gradient of the others. 0 where no group's rewards differ."""
    mean, std, _ = group_moments(rewards, group_ids)
    teaching = int((std > 0).sum())
    return ((rewards - mean) * (len(rewards) / max(teaching, 1))).to(rewards.dtype)


@advantage_estimator("on_policy_distillation")
def on_policy_distillation(rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """0: teachers alone say what each token is worth (`distillation.with_teachers`)."""
    return torch.zeros_like(rewards)


def remax(rewards: Tensor, greedy_rewards: Tensor) -> Tensor:
    """R − reward of the greedy response to the same prompt (ReMax, arXiv 2310.10505); [S] each."""
    return rewards - greedy_rewards


def sequence_advantages(rewards: Tensor, group_ids: Tensor, estimator: str = "grpo", lengths: Tensor | None = None) -> Tensor:
    """[S] advantages of `rewards` [S] in groups `group_ids` [S] int64, by a registered estimator or a dotted path.

    `lengths` [S] are trained tokens; None: all alike. `ValueError` for an unknown estimator, with the nearest known name."""
    lengths = torch.ones_like(group_ids) if lengths is None else lengths
    return advantage_estimator.get(estimator)(rewards, group_ids, lengths)


def whiten(values: Tensor, mask: Tensor, shift: bool = True, among: Tensor | None = None) -> Tensor:
    """(x − mean) / (std + 1e-6) over the entries where `mask` is True, 0 elsewhere; both of one shape, such as [N] tokens.

    The deviation is unbiased; where there is none (a single entry, equal values) the result is 0. Without `shift` the mean is not
    subtracted, and values without deviation stay as they are. `among`, int64 of that shape: only entries of one number are
    compared with each other; None: all are."""
    moments = batch_moments(values[mask]) if among is None else group_moments(values[mask], among[mask])
    whitened = torch.zeros_like(values)
    if shift:
        whitened[mask] = ((values[mask] - moments.mean) / (moments.std + EPSILON)).to(values.dtype)
    else:
        scale = torch.where(moments.std > 0, moments.std + EPSILON, 1.0)
        whitened[mask] = (values[mask] / scale).to(values.dtype)
    return whitened


def clip(values: Tensor, bound: float | None) -> Tensor:
    """`values` limited to ±`bound`; None is no limit."""
    return values if bound is None else values.clamp(-bound, bound)


def _group_sums(values: Tensor, index: Tensor) -> Tensor:
    """[S], for each sample the sum over its group; `index` [S] numbers the groups from 0."""
    sums = values.new_zeros(int(index.max()) + 1 if index.numel() else 0)
    return sums.index_add(0, index, values)[index]
