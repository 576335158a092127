"""Validation episodes: the same environments with the same sampling seeds at every evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from roll.configs.agentic import EnvManagerConfig
from roll.data.sample import Prompt, Sample
from roll.pipeline.agentic.coordinators import CoordinatorDied, Coordinators
from roll.pipeline.agentic.environment_worker import GroupTask
from roll.pipeline.agentic.metrics import episode_metrics
from roll.pipeline.validation import FIRST
from roll.strategies.infer.interface import SamplingParams

ATTEMPTS = 3
"""How often a group is played whose coordinator dies."""


class EpisodeEvaluation:
    """Implements `Evaluation`."""

    def __init__(
        self, coordinators: Coordinators, manager: EnvManagerConfig, environments: Sequence[Prompt], sampling: SamplingParams
    ) -> None:
        """`environments`: one for each group."""
        self._coordinators = coordinators
        self._manager = manager
        self._environments = environments
        self._sampling = sampling

    async def rollouts(self, version: int) -> tuple[list[Sample], int]:
        places = asyncio.Semaphore(self._manager.num_env_groups)
        groups = await asyncio.gather(*(self._group(version, environment, places) for environment in self._environments))
        samples = [sample for of_group, _ in groups for sample in of_group]
        return samples, sum(failed for _, failed in groups)

    async def grade(self, samples: Sequence[Sample]) -> None:
        """Episodes come with their rewards."""

    def metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        return {f"val/{name}": value for name, value in episode_metrics(samples).items()}

    async def _group(self, version: int, environment: Prompt, places: asyncio.Semaphore) -> tuple[list[Sample], int]:
        """Its samples, and how many of its episodes could not be played."""
        size = self._manager.group_size
        async with places:
            for attempt in range(ATTEMPTS):
                task = GroupTask(
                    key=f"v{version}.{attempt}/{environment.uid}",
                    uid=environment.uid,
                    tag=environment.tag,
                    env_seed=environment.row["env_seed"],
                    started=size,
                    needed=size,
                    sampling=self._sampling,
                    priority=FIRST,
                    validation=True,
                )
                try:
                    result = await self._coordinators.play(task)
                except CoordinatorDied:
                    continue
                return result.samples, result.lost
        return [], size
