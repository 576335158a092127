"""Rewards of sequences normalised over the batch or over their group, in any combination of mean and standard deviation."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Scope = Literal["batch", "group"]

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""


class Moments(NamedTuple):
    """[S] each: those of the group that each value belongs to."""

    mean: Tensor
    std: Tensor
    """Unbiased; 0 in a group of one."""
    size: Tensor


def group_moments(values: Tensor, group_ids: Tensor) -> Moments:
    """Moments of `values` [S] over the groups named by `group_ids` [S] int64, of any sizes and in any order, in float64.

    A group of equal values has exactly their value as mean and 0 as deviation, free of rounding."""
    if values.shape != group_ids.shape or values.dim() != 1:
        raise ValueError(f"values and group_ids must both be [S], got {tuple(values.shape)} and {tuple(group_ids.shape)}")
    values = values.double()
    groups, index = torch.unique(group_ids, return_inverse=True)
    zeros = values.new_zeros(groups.numel())
    counts = zeros.index_add(0, index, torch.ones_like(values))
    means = zeros.index_add(0, index, values) / counts
    lowest = zeros.scatter_reduce(0, index, values, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, index, values, "amax", include_self=False)
    means = torch.where(lowest == highest, lowest, means)
    squares = zeros.index_add(0, index, (values - means[index]).square())
    stds = (squares / (counts - 1).clamp(min=1)).sqrt()
    return Moments(means[index], stds[index], counts[index])


def normalize_rewards(
    rewards: Tensor, group_ids: Tensor, mean: Scope | None, std: Scope | None, clip: float | None = None
) -> Tensor:
    """(R − mean) / (std + 1e-6), then clipped to ±`clip`: [S], finite for finite rewards, in the dtype of `rewards`.

    Args:
        rewards: [S], one per sequence.
        group_ids: [S] int64, the group (prompt) of each.
        mean, std: over what; None leaves that part out. Standard deviations are unbiased. Where there is no spread to divide by
            (equal rewards, a group of one) the result is 0: such rewards say nothing, whatever is subtracted.
    """
    batch_ids = torch.zeros_like(group_ids)
    moments = {"group": group_moments(rewards, group_ids), "batch": group_moments(rewards, batch_ids)}
    result = rewards.double()
    if mean is not None:
        result = result - moments[mean].mean
    if std is not None:
        spread = moments[std].std
        result = torch.where(spread > 0, result / (spread + EPSILON), torch.zeros_like(result))
    if clip is not None:
        result = result.clamp(-clip, clip)
    return result.to(rewards.dtype)
