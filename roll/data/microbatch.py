"""Which samples go together into a padded micro-batch. Pure planning on lengths.

Invariant: every index occurs exactly once, and equal input gives equal plans on every rank and in every run.
"""

from __future__ import annotations

from collections.abc import Sequence


def plan_microbatches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of each micro-batch, such that rows * longest row <= `max_tokens`.

    Neighbours in length go together, so little of a micro-batch is padding; the longest come first, so that a budget beyond
    the memory fails at once. A sample longer than the budget gets a micro-batch of its own.

    Args:
        lengths: tokens of each sample.
        max_tokens: tokens of a micro-batch, padding included.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be >= 1, got {max_tokens}")
    plan: list[list[int]] = []
    for index in _longest_first(lengths):
        if plan and (len(plan[-1]) + 1) * lengths[plan[-1][0]] <= max_tokens:
            plan[-1].append(index)
        else:
            plan.append([index])
    return plan


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
