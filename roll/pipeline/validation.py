"""Validation of a policy version on a fixed set, beside the training rollouts.

While it generates, the engines keep that version: the next weight update waits for the last of its requests (which go first in
every queue), so a validation speaks of one version only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roll.data.sample import Prompt, Sample
from roll.pipeline.explorer_stages import Rewards
from roll.pipeline.stage import Stage
from roll.rollout.explorer import Explorer
from roll.strategies.infer.interface import SamplingParams

FIRST = 0
"""Priority of validation requests: before training rollouts."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    version: int
    accuracy: float
    """Share of samples with reward 1."""
    reward: float
    by_tag: dict[str, float]
    errors: int
    """Samples that could not be graded; they count in neither figure."""
    seconds: float


class ValidationStage(Stage[int, None]):
    """Takes policy versions; evaluates those that are due."""

    name = "validation"
    role = "actor_infer"

    def __init__(
        self,
        explorer: Explorer,
        rewards: Rewards,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        n: int,
        due: Callable[[int], bool],
        report: Callable[[ValidationResult], None],
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._explorer = explorer
        self._rewards = rewards
        self._prompts = prompts
        self._sampling = sampling
        self._n = n
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
            rollouts = await asyncio.gather(*(self._rollout(item, prompt) for prompt in self._prompts))
        finally:
            self._engines_free.set()
        await asyncio.gather(*(self._rewards.fill(samples) for samples in rollouts))
        samples = [sample for samples in rollouts for sample in samples]
        self._report(summarise(item, samples, self._clock() - started))

    async def _rollout(self, version: int, prompt: Prompt) -> list[Sample]:
        return await self._explorer.rollout(f"v{version}/{prompt.uid}", prompt, self._n, self._sampling, FIRST)


def summarise(version: int, samples: Sequence[Sample], seconds: float) -> ValidationResult:
    graded = [sample for sample in samples if sample.reward is not None]
    foreign = {span.version for sample in samples for span in sample.versions} - {version}
    if foreign:
        raise RuntimeError(f"validation of version {version} was answered by versions {sorted(foreign)}")
    tags = sorted({sample.prompt.tag for sample in graded})
    return ValidationResult(
        version,
        _accuracy(graded),
        sum(sample.reward or 0.0 for sample in graded) / max(len(graded), 1),
        {tag: _accuracy([sample for sample in graded if sample.prompt.tag == tag]) for tag in tags},
        len(samples) - len(graded),
        seconds,
    )


def _accuracy(samples: Sequence[Sample]) -> float:
    return sum(sample.reward == 1.0 for sample in samples) / max(len(samples), 1)
