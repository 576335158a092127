"""Validation of RLVR: the responses to a fixed set of prompts, graded by the domains' reward workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby

from roll.data.sample import Prompt, Sample
from roll.pipeline.rlvr.rollout_stages import Rewards
from roll.pipeline.validation import FIRST
from roll.rollout.explorer import Explorer
from roll.strategies.infer.interface import SamplingParams


class PromptEvaluation:
    """Implements `Evaluation`."""

    def __init__(self, explorer: Explorer, rewards: Rewards, prompts: Sequence[Prompt], sampling: SamplingParams, n: int) -> None:
        self._explorer = explorer
        self._rewards = rewards
        self._prompts = prompts
        self._sampling = sampling
        self._n = n

    async def rollouts(self, version: int) -> tuple[list[Sample], int]:
        by_prompt = await asyncio.gather(*(self._rollout(version, prompt) for prompt in self._prompts))
        return [sample for samples in by_prompt for sample in samples], 0

    async def grade(self, samples: Sequence[Sample]) -> None:
        by_prompt = [list(of_prompt) for _, of_prompt in groupby(samples, key=lambda sample: sample.prompt.uid)]
        await asyncio.gather(*(self._rewards.fill(of_prompt) for of_prompt in by_prompt))

    def metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        return {}

    async def _rollout(self, version: int, prompt: Prompt) -> list[Sample]:
        return await self._explorer.rollout(f"v{version}/{prompt.uid}", prompt, self._n, self._sampling, FIRST)
