"""The learnability of a task, by the pass rate that the run has measured. Pure.

A group whose rollouts all pass, or all fail, has nothing to compare: its advantages are 0. The learnability of a task with pass
rate p is p (1 - p), the variance of a rollout that passes with probability p (Foster et al. 2025, arXiv:2502.12272).
"""

from __future__ import annotations

Visits = tuple[tuple[int, int], ...]
"""(passed, rollouts) of a task's last visits, the latest last."""


def rate(visits: Visits) -> float:
    return sum(passed for passed, _ in visits) / sum(responses for _, responses in visits)


def share(pass_rate: float, least: float) -> float:
    """Returns least + (1 - least) 4 p (1 - p): how often a task is drawn, as a share of how often one with p = 1/2 is."""
    return least + (1 - least) * 4 * pass_rate * (1 - pass_rate)
