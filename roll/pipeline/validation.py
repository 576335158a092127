"""Validation of a policy version on a fixed set, beside the training rollouts.

While it generates, the engines keep that version: the next weight update waits for the last of its requests (which go first in
every queue), so a validation speaks of one version only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from roll.data.sample import Sample
from roll.pipeline.stage import Stage

FIRST = 0
"""Priority of validation requests: before training rollouts."""


class Evaluation(Protocol):
    """How a pipeline rolls its validation set out."""

    async def rollouts(self, version: int) -> tuple[list[Sample], int]:
        """The samples of the whole set, and how many rollouts failed; the engines serve `version` until it returns."""

    async def grade(self, samples: Sequence[Sample]) -> None:
        """Sets rewards that are not known yet; a sample that cannot be graded keeps None."""

    def metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        """More to report, by name."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    version: int
    accuracy: float
    """Share of rollouts that succeeded: reward 1, or what the environment calls success."""
    reward: float
    by_tag: dict[str, float]
    errors: int
    """Rollouts that failed or could not be graded; they count in no other figure."""
    seconds: float
    more: dict[str, float] = field(default_factory=dict)


class ValidationStage(Stage[int, None]):
    """Takes policy versions; evaluates those that are due."""

    name = "validation"
    role = "actor_infer"

    def __init__(
        self,
        evaluation: Evaluation,
        due: Callable[[int], bool],
        report: Callable[[ValidationResult], None],
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._evaluation = evaluation
        self._due = due
        self._report = report
        self._clock = clock
        self._engines_free = asyncio.Event()
        self._engines_free.set()

    def begin(self, version: int) -> None:
        """Puts the version that the run starts from into the queue."""
        assert self.inputs is not None
        self.expect(version)
        self.inputs.offer(version)

    def expect(self, version: int) -> None:
        """Called when `version` is published: if it is due, the engines keep it from this moment on."""
        if self._due(version):
            self._engines_free.clear()

    async def engines_free(self) -> None:
        await self._engines_free.wait()

    async def process(self, item: int) -> None:
        if not self._due(item):
            return
        started = self._clock()
        try:
            samples, failed = await self._evaluation.rollouts(item)
        finally:
            self._engines_free.set()
        await self._evaluation.grade(samples)
        more = self._evaluation.metrics(samples)
        self._report(summarise(item, samples, self._clock() - started, failed, more))


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
        _accuracy(graded),
        sum(sample.reward or 0.0 for sample in graded) / max(len(graded), 1),
        {tag: _accuracy([sample for sample in graded if sample.prompt.tag == tag]) for tag in tags},
        failed + len(rollouts) - len(graded),
        seconds,
        more or {},
    )


def _accuracy(samples: Sequence[Sample]) -> float:
    return sum(sample.succeeded for sample in samples) / max(len(samples), 1)
