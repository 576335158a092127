"""Advantages of whole sequences from their rewards, and what is done to advantages afterwards (whitening, clipping).

An estimator is a pure function `(rewards [S], group_ids [S]) -> [S]`; a group is the samples of one prompt, of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from roll.algorithms.registry import Registry
from roll.algorithms.reward_normalization import EPSILON, group_moments, normalize_rewards

AdvantageEstimator: TypeAlias = Callable[[Tensor, Tensor], Tensor]

advantage_estimator: Registry[AdvantageEstimator] = Registry("adv_estimator")
"""`@advantage_estimator("name")` registers an estimator."""


@advantage_estimator("reinforce")
def reinforce(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """The reward itself, as it was normalised before."""
    return rewards.clone()


@advantage_estimator("grpo")
def grpo(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """(R − group mean) / (group std + 1e-6) (arXiv 2402.03300); 0 in a group of one or of equal rewards."""
    return normalize_rewards(rewards, group_ids, mean="group", std="group")


@advantage_estimator("dr_grpo")
def dr_grpo(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """R − group mean (Dr. GRPO, arXiv 2503.20783): no division, so easy and hard prompts weigh as they are."""
    return normalize_rewards(rewards, group_ids, mean="group", std=None)


@advantage_estimator("rloo")
def rloo(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """R − mean of the *other* samples of the group (arXiv 2402.14740); 0 in a group of one, which has no others."""
    mean, _, size = group_moments(rewards, group_ids)
    return ((rewards - mean) * size / (size - 1).clamp(min=1)).to(rewards.dtype)


def sequence_advantages(rewards: Tensor, group_ids: Tensor, estimator: str = "grpo") -> Tensor:
    """[S] advantages of `rewards` [S] in groups `group_ids` [S] int64, by a registered estimator or a dotted path.

    `ValueError` for an unknown estimator, with the nearest known name."""
    return advantage_estimator.get(estimator)(rewards, group_ids)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(x − mean) / (std + 1e-6) over the entries where `mask` is True, 0 elsewhere; both of one shape, such as [N] tokens.

    The deviation is unbiased; where there is none (a single entry, equal values) the result is 0."""
    chosen = values[mask]
    moments = group_moments(chosen, torch.zeros_like(chosen, dtype=torch.int64))
    whitened = torch.zeros_like(values)
    whitened[mask] = ((chosen - moments.mean) / (moments.std + EPSILON)).to(values.dtype)
    return whitened


def clip(values: Tensor, bound: float | None) -> Tensor:
    """`values` limited to ±`bound`; None is no limit."""
    return values if bound is None else values.clamp(-bound, bound)
