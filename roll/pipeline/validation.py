"""The figures of a validation: one policy version on a fixed set. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from roll.data.sample import Sample

FIRST = 0
"""Priority of validation requests: before training rollouts."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    version: int
    accuracy: float | None
    """Share of rollouts that succeeded: reward 1, or what the environment calls success. None: not one could be judged."""
    reward: float | None
    by_tag: dict[str, float]
    errors: int
    """Rollouts that failed or could not be graded; they count in no other figure."""
    seconds: float
    more: dict[str, float] = field(default_factory=dict)


def summarise(
    version: int, samples: Sequence[Sample], seconds: float, failed: int = 0, more: dict[str, float] | None = None
) -> ValidationResult:
    foreign = {span.version for sample in samples for span in sample.versions} - {version}
    if foreign:
        raise RuntimeError(f"validation of version {version} was answered by versions {sorted(foreign)}")
    rollouts = [sample for sample in samples if sample.begins_rollout]
    graded = [sample for sample in rollouts if sample.reward is not None]
    tags = sorted({sample.prompt.tag for sample in graded})
    return ValidationResult(
        version,
        _accuracy(graded) if graded else None,
        sum(sample.reward or 0.0 for sample in graded) / len(graded) if graded else None,
        {tag: _accuracy([sample for sample in graded if sample.prompt.tag == tag]) for tag in tags},
        failed + len(rollouts) - len(graded),
        seconds,
        more or {},
    )


def _accuracy(samples: Sequence[Sample]) -> float:
    return sum(sample.succeeded for sample in samples) / len(samples)
