"""The learning rate: a pure function of the number of optimiser steps taken, which a skipped step does not move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from roll.core.configs.arguments import LRSchedulerType


def warmup_length(total: int | None, warmup_steps: int, warmup_ratio: float) -> int:
    """Returns the optimiser steps of warm-up: `warmup_steps` if positive, else `warmup_ratio` of `total`, rounded up."""
    if warmup_steps > 0 or warmup_ratio == 0:
        return warmup_steps
    if total is None:
        raise ValueError("warmup_ratio needs the total number of optimiser steps")
    return math.ceil(warmup_ratio * total)


def lr_scale(step: int, total: int | None, kind: LRSchedulerType = "constant", warmup: int = 0) -> float:
    """Returns the factor in [0, 1] on the peak learning rate at optimiser step `step` (the first is 0).

    Warm-up rises linearly to 1 at its last step; then `constant` stays, `linear` falls in a straight line and `cosine` along half
    a cosine, both towards 0 at step `total`: no step within the run has a rate of 0. Beyond `total` the rate is 0.

    Raises:
        ValueError: unknown kind, or a falling schedule without a total.
    """
    if kind not in get_args(LRSchedulerType):
        raise ValueError(f"unknown lr_scheduler_type '{kind}'; known: {', '.join(get_args(LRSchedulerType))}")
    if kind != "constant" and total is None:
        raise ValueError(f"lr_scheduler_type '{kind}' needs the total number of optimiser steps")
    if step < warmup:
        return (step + 1) / warmup
    if kind == "constant" or total is None:
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 1.0 - progress if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True)
class LRSchedule:
    """`lr_scale` with everything but the step fixed. Raises the errors of `lr_scale`."""

    peak: float
    kind: LRSchedulerType
    total: int | None
    warmup: int

    def __post_init__(self) -> None:
        self.at(0)

    def at(self, step: int) -> float:
        """Returns the learning rate of optimiser step `step`, the first being 0."""
        return self.peak * lr_scale(step, self.total, self.kind, self.warmup)
