"""Validation sets, and the figures of a validation: one policy version on all of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from roll.core.configs.plain import JsonMapping
from roll.core.data.sample import Prompt, Sample
from roll.core.record.estimates import Estimate, figures
from roll.core.workers.infer_interface import SamplingParams

FIRST = 0
"""Priority of validation requests: before training rollouts."""
ALL = "all"
MOST_UNJUDGED = 0.1
"""Share of the rollouts of a set, or of a part of it, that may fail or go unjudged: with more, the rest is no sample of it, and
has no accuracy."""

Parts = dict[str, dict[str, Estimate]]
"""The figures of a set, as `estimates.figures` names them: of all of it, and of each domain and tag where there are several."""


@dataclass(frozen=True, slots=True)
class ValidationSet:
    name: str
    prompts: tuple[Prompt, ...]
    n: int
    """Number of rollouts of each prompt."""
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class SetRollouts:
    of: ValidationSet
    samples: list[Sample]
    failed: int
    """Number of rollouts that came to nothing."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    version: int
    accuracy: float | None
    """Share of the first set's judged rollouts that succeeded, as defined by their domain or by the environment. None: more than
    `MOST_UNJUDGED` could not be judged, or the environment defines no success."""
    reward: float | None
    """Mean of the first set's judged rollouts, however many these are."""
    by_tag: dict[str, float]
    errors: int
    """Rollouts of all sets that failed or could not be graded; they count in no other figure."""
    seconds: float
    sets: dict[str, Parts]
    rollouts: int = 0
    """Number of rollouts in all sets."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """Mean reward of the judged rollouts of each set; None: nothing was judged."""
    more: dict[str, float] = field(default_factory=dict)

    def estimates(self) -> Iterator[tuple[str, float]]:
        """`eval/<set>/<part>/<figure>`, and the ends of its confidence interval, as metrics."""
        for name, parts in self.sets.items():
            for part, estimates in parts.items():
                for figure, estimate in estimates.items():
                    key = f"eval/{name}/{part}/{figure}"
                    yield from ((key, estimate.value), (f"{key}/low", estimate.low), (f"{key}/high", estimate.high))

    @classmethod
    def from_json(cls, row: JsonMapping) -> ValidationResult:
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
    scores = {each.of.name: _whole(each).score for each in sets}
    return ValidationResult(
        version,
        _whole(sets[0]).accuracy,
        scores[sets[0].of.name],
        {tag: part.accuracy for tag, part in _parts_by(sets[0], "tag").items() if part.accuracy is not None},
        sum(each.failed + sum(sample.begins_rollout and sample.reward is None for sample in each.samples) for each in sets),
        seconds,
        {each.of.name: _parts(each) for each in sets},
        sum(each.failed + sum(sample.begins_rollout for sample in each.samples) for each in sets),
        scores,
        more or {},
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rollouts, one sample of each, and how many more came to nothing."""

    rollouts: Sequence[Sample]
    failed: int = 0

    @property
    def graded(self) -> list[Sample]:
        return [sample for sample in self.rollouts if sample.reward is not None]

    @property
    def score(self) -> float | None:
        rewards = [sample.reward or 0.0 for sample in self.graded]
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def known(self) -> bool:
        """True if enough was judged and success is defined: an environment may not define it."""
        graded, count = self.graded, len(self.rollouts) + self.failed
        told = any(sample.trajectory is None or sample.trajectory.success is not None for sample in graded)
        return told and count - len(graded) <= MOST_UNJUDGED * count

    @property
    def accuracy(self) -> float | None:
        return sum(sample.succeeded for sample in self.graded) / len(self.graded) if self.known else None


def _parts(each: SetRollouts) -> Parts:
    parts = {ALL: _whole(each)}
    domains, tags = _parts_by(each, "domain"), _parts_by(each, "tag")
    if len(domains) > 1:
        parts |= {f"domain/{domain}": part for domain, part in domains.items()}
    if len(tags) > 1 and tags.keys() != domains.keys():
        parts |= {f"tag/{tag}": part for tag, part in tags.items()}
    return {name: figures(_outcomes(part.graded), each.of.n) if part.known else {} for name, part in parts.items()}


def _whole(each: SetRollouts) -> _Part:
    return _Part([sample for sample in each.samples if sample.begins_rollout], each.failed)


def _parts_by(each: SetRollouts, column: str) -> dict[str, _Part]:
    asked = Counter(getattr(prompt, column) for prompt in each.of.prompts)
    found: dict[str, list[Sample]] = {}
    for sample in _whole(each).rollouts:
        found.setdefault(getattr(sample.prompt, column), []).append(sample)
    return {name: _Part(found[name], max(0, asked[name] * each.of.n - len(found[name]))) for name in sorted(found)}


def _outcomes(samples: Sequence[Sample]) -> list[list[bool]]:
    """Returns, for each prompt, the success of each of its rollouts."""
    by_prompt: dict[str, list[bool]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt.uid, []).append(sample.succeeded)
    return list(by_prompt.values())
