"""Filters, by which groups are worth training: functions of a group's rewards, built in (pure) or the user's own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from roll.core.data.numbers import are_equal
from roll.core.data.sample import reaches

GroupFilter = Callable[[Sequence[float]], str | None]
"""Rewards of a group -> the reason to drop it, or None to keep it."""


def mean_filter(threshold_down: float | None, threshold_up: float | None) -> GroupFilter:
    """Drops groups whose mean reward is at or outside the thresholds (all wrong, all right: no advantage to learn from)."""

    def apply(rewards: Sequence[float]) -> str | None:
        mean = statistics.fmean(rewards)
        if threshold_down is not None and reaches(-mean, -threshold_down):
            return "filter_mean_low"
        if threshold_up is not None and reaches(mean, threshold_up):
            return "filter_mean_high"
        return None

    return apply


def std_filter(threshold: float) -> GroupFilter:
    """Drops groups whose rewards deviate (population standard deviation) by no more than the threshold."""

    def apply(rewards: Sequence[float]) -> str | None:
        return "filter_std" if (0.0 if are_equal(rewards) else statistics.pstdev(rewards)) <= threshold else None

    return apply


def equal_rewards(rewards: Sequence[float]) -> str | None:
    """A `GroupFilter` without thresholds: drops groups whose rewards are all the same."""
    return "equal_rewards" if are_equal(rewards) else None
