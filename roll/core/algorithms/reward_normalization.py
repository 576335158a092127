"""Rewards of sequences normalised over the batch, their group, or all rewards so far; mean and deviation each on its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from roll.core.configs.estimators import Scope

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


def batch_moments(values: Tensor) -> Moments:
    """`group_moments` with all values in one group."""
    return group_moments(values, torch.zeros_like(values, dtype=torch.int64))


@dataclass(slots=True)
class RunningMoments:
    """Moments of all rewards so far, carried from step to step (Welford's method, whole batches at a time; Chan et al. 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""

    @property
    def std(self) -> float:
        """Unbiased; 0 with fewer than two values."""
        return float((self.squares / max(self.count - 1, 1)) ** 0.5)

    def update(self, values: Tensor) -> None:
        """Takes in `values` [S]."""
        if values.numel() == 0:
            return
        new = int(values.numel())
        mean, std, _ = (float(moment[0]) for moment in batch_moments(values))
        shift, total = mean - self.mean, self.count + new
        self.squares += std**2 * (new - 1) + shift**2 * self.count * new / total
        self.mean = mean if self.count == 0 else self.mean + shift * new / total
        self.count = total

    def state(self) -> dict[str, float]:
        """Plain values for a checkpoint; `RunningMoments(**state)` is the inverse."""
        return asdict(self)


def normalize_rewards(
    rewards: Tensor,
    group_ids: Tensor,
    mean: Scope | None,
    std: Scope | None,
    running: RunningMoments | None = None,
) -> Tensor:
    """(R − mean) / (std + 1e-6): [S], finite for finite rewards, in the dtype of `rewards`.

    Args:
        rewards: [S], one per sequence.
        group_ids: [S] int64, the group (prompt) of each.
        mean, std: scope of each; None omits the part. Standard deviations are unbiased. Where there is no spread to divide by
            (equal rewards, a group of one) the result is 0: such rewards say nothing, whatever is subtracted.
        running: needed by the scope "running"; `update` it with these rewards first.
    """
    moments = {"group": group_moments(rewards, group_ids), "batch": batch_moments(rewards)}
    if running is not None:
        full = torch.full_like(rewards, 0.0, dtype=torch.float64)
        moments["running"] = Moments(full + running.mean, full + running.std, full + running.count)
    elif "running" in (mean, std):
        raise ValueError("the scope 'running' needs the running moments")
    result = rewards.double()
    if mean is not None:
        result = result - moments[mean].mean
    if std is not None:
        spread = moments[std].std
        result = torch.where(spread > 0, result / (spread + EPSILON), torch.zeros_like(result))
    return result.to(rewards.dtype)
