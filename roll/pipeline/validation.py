"""Validation sets, and the figures of a validation: one policy version on all of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll.data.sample import Prompt, Sample
from roll.metrics.estimates import Estimate, figures
from roll.strategies.infer.interface import SamplingParams

FIRST = 0
"""Priority of validation requests: before training rollouts."""
ALL = "all"

Parts = dict[str, dict[str, Estimate]]
"""The figures of a set, as `estimates.figures` names them: of all of it, and of each domain and tag where there are several."""


@dataclass(frozen=True, slots=True)
class ValidationSet:
    name: str
    prompts: tuple[Prompt, ...]
    n: int
    """Rollouts of each prompt."""
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class SetRollouts:
    of: ValidationSet
    samples: list[Sample]
    failed: int
    """Rollouts that came to nothing."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    version: int
    accuracy: float | None
    """Share of the first set's rollouts that succeeded: reward 1, or what the environment calls success. None: not one could be
    judged."""
    reward: float | None
    by_tag: dict[str, float]
    errors: int
    """Rollouts of all sets that failed or could not be graded; they count in no other figure."""
    seconds: float
    sets: dict[str, Parts]
    more: dict[str, float] = field(default_factory=dict)

    def estimates(self) -> Iterator[tuple[str, float]]:
        """`eval/<set>/<part>/<figure>`, and the ends of its confidence interval, as metrics."""
        for name, parts in self.sets.items():
            for part, estimates in parts.items():
                for figure, estimate in estimates.items():
                    key = f"eval/{name}/{part}/{figure}"
                    yield from ((key, estimate.value), (f"{key}/low", estimate.low), (f"{key}/high", estimate.high))

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ValidationResult:
        sets = {
            name: {part: {figure: Estimate(*values) for figure, values in found.items()} for part, found in parts.items()}
            for name, parts in row["sets"].items()
        }
        return cls(**{**row, "sets": sets})


def summarise(
    version: int, sets: Sequence[SetRollouts], seconds: float, more: dict[str, float] | None = None
) -> ValidationResult:
    """`sets`: at least one."""
    foreign = {span.version for each in sets for sample in each.samples for span in sample.versions} - {version}
    if foreign:
        raise RuntimeError(f"validation of version {version} was answered by versions {sorted(foreign)}")
    first = _graded(sets[0])
    return ValidationResult(
        version,
        _accuracy(first) if first else None,
        sum(sample.reward or 0.0 for sample in first) / len(first) if first else None,
        {tag: _accuracy(samples) for tag, samples in _by(first, "tag").items()},
        sum(_errors(each) for each in sets),
        seconds,
        {each.of.name: _parts(_graded(each), each.of.n) for each in sets},
        more or {},
    )


def _graded(rollouts: SetRollouts) -> list[Sample]:
    """One sample of each rollout that could be judged."""
    return [sample for sample in rollouts.samples if sample.begins_rollout and sample.reward is not None]


def _errors(rollouts: SetRollouts) -> int:
    return rollouts.failed + sum(sample.begins_rollout and sample.reward is None for sample in rollouts.samples)


def _parts(graded: Sequence[Sample], n: int) -> Parts:
    parts = {ALL: graded}
    domains, tags = _by(graded, "domain"), _by(graded, "tag")
    if len(domains) > 1:
        parts |= {f"domain/{domain}": samples for domain, samples in domains.items()}
    if len(tags) > 1 and tags.keys() != domains.keys():
        parts |= {f"tag/{tag}": samples for tag, samples in tags.items()}
    return {name: figures(_outcomes(samples), n) for name, samples in parts.items()}


def _by(samples: Sequence[Sample], column: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(getattr(sample.prompt, column), []).append(sample)
    return dict(sorted(found.items()))


def _outcomes(samples: Sequence[Sample]) -> list[list[bool]]:
    """Of each prompt, whether each of its rollouts succeeded."""
    by_prompt: dict[str, list[bool]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt.uid, []).append(sample.succeeded)
    return list(by_prompt.values())


def _accuracy(samples: Sequence[Sample]) -> float:
    return sum(sample.succeeded for sample in samples) / len(samples)
