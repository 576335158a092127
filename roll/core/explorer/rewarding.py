"""Hands the reward of an answer to all samples of its rollout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from roll.core.data.sample import Sample


def by_rollout(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Returns the samples of a group by rollout."""
    return [list(of_one) for _, of_one in groupby(samples, key=lambda sample: (sample.prompt.uid, sample.index))]


def assign_reward(rollout: Sequence[Sample]) -> None:
    """Gives the whole rollout the reward of its last sample."""
    last = rollout[-1]
    for sample in rollout:
        sample.reward, sample.reward_parts, sample.success_at = last.reward, last.reward_parts, last.success_at
        if sample.trajectory is not None and last.reward is not None:
            sample.trajectory.score = last.reward
            if sample.trajectory.success is None:
                sample.trajectory.success = last.judged_success
