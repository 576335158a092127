"""The explorer half of an agentic run: a group is a number of episodes in equal environments, played by a coordinator.

Validation plays the same environments with the same sampling seeds at every evaluation.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from roll.configs.agentic import AgenticConfig
from roll.data.sample import Prompt, Sample, SampleGroup
from roll.errors import Replaced
from roll.explorer.coordinators import Coordinators
from roll.explorer.environment_worker import GroupTask
from roll.explorer.explorer import Exploration, Explorer
from roll.record.advice import Places
from roll.record.episode_metrics import episode_metrics
from roll.record.validation import FIRST, SetRollouts, ValidationSet
from roll.strategies.infer.interface import SamplingParams

ATTEMPTS = 3
"""How often a group of a validation is played whose coordinator dies."""


class AgenticExplorer(Explorer):
    def __init__(
        self,
        exploration: Exploration,
        config: AgenticConfig,
        sampling: SamplingParams,
        coordinators: Coordinators,
    ) -> None:
        super().__init__(exploration, routing=coordinators)
        self._coordinators = coordinators
        self._manager = config.train_env_manager
        self._sampling = sampling
        self._retried = frozenset(tag for tag, env in config.custom_envs.items() if env.on_env_failure == "retry")
        """The tags whose groups are played again if their coordinator dies."""
        self._validations = config.validations

    async def play(self, group: SampleGroup) -> SampleGroup | None:
        """The episodes of the group; None if it is dropped, by others or because it cannot be played."""
        for attempt in itertools.count():
            task = self._task(f"g{group.group_id}.{attempt}", group.prompt)
            try:
                result = await self.groups.while_live(group.group_id, self._coordinators.play(task))
            except Replaced as death:
                if attempt == 0 and group.prompt.tag in self._retried:
                    continue
                await self.groups.drop(group.group_id, "environment_worker_died", str(death))
                return None
            if result is None or not self.groups.is_live(group.group_id):
                return None
            if not result.samples:
                await self.groups.drop(group.group_id, "environment_failure", result.last_failure)
                return None
            group.samples = result.samples
            if all(sample.prompt == group.samples[0].prompt for sample in group.samples):
                group.prompt = group.samples[0].prompt
            return group
        raise AssertionError("unreachable")

    async def validation_rollouts(self, version: int, of: ValidationSet) -> SetRollouts:
        places = asyncio.Semaphore(self._validations[of.name].env_manager.num_env_groups)
        groups = await asyncio.gather(*(self._evaluate(version, of, environment, places) for environment in of.prompts))
        samples = [sample for of_group, _ in groups for sample in of_group]
        return SetRollouts(of, samples, sum(failed for _, failed in groups))

    def validation_metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        return episode_metrics(samples)

    def places(self) -> Places:
        """Those of the environments."""
        manager = self._manager
        return Places(manager.num_env_groups * manager.group_size, "train_env_manager.num_env_groups", manager.group_size)

    def counts(self) -> dict[str, float]:
        coordinators = self._coordinators
        failures = {f"env/failures/{kind}": float(count) for kind, count in coordinators.failures.items()}
        deaths = {"env/worker_deaths": float(coordinators.cluster.restarts)}
        return failures | deaths | {"env/redundant_aborted": float(coordinators.aborted)}

    def figures(self) -> dict[str, object]:
        return {
            "environment_failures": dict(self._coordinators.failures),
            "environment_worker_deaths": self._coordinators.cluster.restarts,
            "redundant_episodes_aborted": self._coordinators.aborted,
        }

    def _task(self, key: str, prompt: Prompt) -> GroupTask:
        needed = self._manager.group_size
        return GroupTask(
            key=key,
            uid=prompt.uid,
            tag=prompt.tag,
            env_seed=prompt.row["env_seed"],
            started=needed + self._manager.group_size_redundancy,
            needed=needed,
            sampling=self._sampling,
        )

    async def _evaluate(
        self, version: int, of: ValidationSet, environment: Prompt, places: asyncio.Semaphore
    ) -> tuple[list[Sample], int]:
        """Returns the samples of a group, and how many of its episodes could not be played."""
        async with places:
            for attempt in range(ATTEMPTS):
                task = GroupTask(
                    key=f"v{version}.{attempt}/{environment.uid}",
                    uid=environment.uid,
                    tag=environment.tag,
                    env_seed=environment.row["env_seed"],
                    started=of.n,
                    needed=of.n,
                    sampling=of.sampling,
                    priority=FIRST,
                    validation=True,
                )
                try:
                    result = await self._coordinators.play(task)
                except Replaced:
                    continue
                return result.samples, result.lost
        return [], of.n
