"""From an admitted group to its episodes, played by a coordinator."""

from __future__ import annotations

import itertools

from roll.configs.agentic import EnvManagerConfig
from roll.data.sample import Prompt, SampleGroup
from roll.pipeline.agentic.coordinators import CoordinatorDied, Coordinators
from roll.pipeline.agentic.environment_worker import GroupTask
from roll.pipeline.fates import Fates
from roll.pipeline.stage import Stage
from roll.strategies.infer.interface import SamplingParams

FAILURES_IN_A_ROW = 100
"""Groups lost to their environments, none played between them, after which the run ends: it would only go round in circles."""


class NothingPlayable(RuntimeError):
    """Every environment fails."""


class EpisodeStage(Stage[SampleGroup, SampleGroup]):
    name = "episodes"
    role = "actor_infer"

    def __init__(
        self,
        coordinators: Coordinators,
        manager: EnvManagerConfig,
        sampling: SamplingParams,
        retried: frozenset[str],
        fates: Fates,
    ) -> None:
        """`retried`: the tags whose groups are played again if their coordinator dies."""
        super().__init__()
        self.lanes = manager.num_env_groups
        self._coordinators = coordinators
        self._manager = manager
        self._sampling = sampling
        self._retried = retried
        self._fates = fates
        self._keys: dict[int, str] = {}
        self._lost_in_a_row = 0

    async def process(self, item: SampleGroup) -> SampleGroup | None:
        for attempt in itertools.count():
            key = self._keys[item.group_id] = f"g{item.group_id}.{attempt}"
            try:
                result = await self._coordinators.play(self._task(key, item.prompt))
            except CoordinatorDied:
                if not self._fates.is_live(item.group_id):
                    return None
                if attempt == 0 and item.prompt.tag in self._retried:
                    continue
                self._fates.drop(item.group_id, "environment_worker_died")
                return None
            finally:
                del self._keys[item.group_id]
            if not self._fates.is_live(item.group_id):
                return None
            if not result.samples:
                self._lost(result.last_failure)
                self._fates.drop(item.group_id, "environment_failure")
                return None
            self._lost_in_a_row = 0
            item.samples = result.samples
            if all(sample.prompt == item.samples[0].prompt for sample in item.samples):
                item.prompt = item.samples[0].prompt
            return item
        raise AssertionError("unreachable")

    async def cancel(self, group_id: int) -> None:
        """Gives a group up."""
        if group_id in self._keys:
            await self._coordinators.cancel(self._keys[group_id])

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

    def _lost(self, failure: str) -> None:
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= FAILURES_IN_A_ROW:
            raise NothingPlayable(
                f"{FAILURES_IN_A_ROW} groups in a row failed in their environments, the last one with: {failure}"
            )
