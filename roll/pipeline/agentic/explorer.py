"""The explorer half of an agentic run: a group is a number of episodes in equal environments, played by a coordinator.

Validation plays the same environments with the same sampling seeds at every evaluation.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from roll.configs.agentic import AgenticConfig
from roll.data.sample import Prompt, Sample, SampleGroup
from roll.pipeline.agentic.coordinators import CoordinatorDied, Coordinators
from roll.pipeline.agentic.environment_worker import GroupTask
from roll.pipeline.agentic.metrics import episode_metrics
from roll.pipeline.agentic.preparation import AgenticPrepared
from roll.pipeline.explorer import Explorer
from roll.pipeline.preparation import sampling_params
from roll.pipeline.state import RunState
from roll.pipeline.validation import FIRST
from roll.pipeline.weight_updates import EngineUpdates

ATTEMPTS = 3
"""How often a group of a validation is played whose coordinator dies."""


class AgenticExplorer(Explorer):
    def __init__(
        self,
        config: AgenticConfig,
        prepared: AgenticPrepared,
        state: RunState,
        weights: EngineUpdates,
        coordinators: Coordinators,
    ) -> None:
        super().__init__(state, weights, prepared.filters, routing=coordinators)
        derived, tokenizer, generating = prepared.derived, prepared.tokenizer, config.actor_infer.generating_args
        self._coordinators = coordinators
        self._manager = config.train_env_manager
        self._sampling = sampling_params(generating, derived.max_new_tokens, tokenizer)
        self._retried = frozenset(tag for tag, env in config.custom_envs.items() if env.on_env_failure == "retry")
        """The tags whose groups are played again if their coordinator dies."""
        self._validation = prepared.validation
        self._validation_manager = config.val_env_manager or config.train_env_manager
        self._validation_sampling = sampling_params(
            config.val_generating_args or generating, derived.val_max_new_tokens, tokenizer
        )

    async def play(self, group: SampleGroup) -> SampleGroup | None:
        """The episodes of the group; None if it is dropped, by others or because it cannot be played."""
        for attempt in itertools.count():
            task = self._task(f"g{group.group_id}.{attempt}", group.prompt)
            try:
                result = await self.groups.while_live(group.group_id, self._coordinators.play(task))
            except CoordinatorDied as death:
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

    async def validation_rollouts(self, version: int) -> tuple[list[Sample], int]:
        places = asyncio.Semaphore(self._validation_manager.num_env_groups)
        groups = await asyncio.gather(*(self._evaluate(version, environment, places) for environment in self._validation))
        samples = [sample for of_group, _ in groups for sample in of_group]
        return samples, sum(failed for _, failed in groups)

    def validation_metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        return {f"val/{name}": value for name, value in episode_metrics(samples).items()}

    def counts(self) -> dict[str, float]:
        coordinators = self._coordinators
        failures = {f"env/failures/{kind}": float(count) for kind, count in coordinators.failures.items()}
        return failures | {"env/worker_deaths": float(coordinators.deaths), "env/redundant_aborted": float(coordinators.aborted)}

    def figures(self) -> dict[str, Any]:
        return {
            "environment_failures": dict(self._coordinators.failures),
            "environment_worker_deaths": self._coordinators.deaths,
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

    async def _evaluate(self, version: int, environment: Prompt, places: asyncio.Semaphore) -> tuple[list[Sample], int]:
        """Returns the samples of a group, and how many of its episodes could not be played."""
        size = self._validation_manager.group_size
        async with places:
            for attempt in range(ATTEMPTS):
                task = GroupTask(
                    key=f"v{version}.{attempt}/{environment.uid}",
                    uid=environment.uid,
                    tag=environment.tag,
                    env_seed=environment.row["env_seed"],
                    started=size,
                    needed=size,
                    sampling=self._validation_sampling,
                    priority=FIRST,
                    validation=True,
                )
                try:
                    result = await self._coordinators.play(task)
                except CoordinatorDied:
                    continue
                return result.samples, result.lost
        return [], size
