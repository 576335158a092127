"""The rollout side of an agentic run: a group is a number of episodes in equal environments, played by a coordinator.

Validation plays the same environments with the same sampling seeds at every evaluation.

`EpisodeSource` is the sequence of environments: infinite, deterministic, resumable. Environment number k of a tag has a seed that
is a function of (run seed, purpose, tag, k) alone; tags take turns so that at every moment each has had its share. The whole
state is one count for each tag, plus the environments given back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from roll.core.configs.agentic import AgenticConfig, PassRateMixtureConfig
from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.sample import Prompt, Sample, SampleGroup
from roll.core.data.seeding import derive_seed
from roll.core.errors import Replaced
from roll.core.explorer.coordinators import Coordinators
from roll.core.explorer.explorer import Exploration, Explorer
from roll.core.explorer.first_answers import FirstAnswers
from roll.core.explorer.group_play import GroupTask
from roll.core.explorer.tag_mixture import MeasuredMixture, TagMixture
from roll.core.groups.tasks import TaskSource
from roll.core.record.episode_metrics import episode_facts, episode_metrics
from roll.core.record.run_progress import Places
from roll.core.record.validation import FIRST, SetRollouts, ValidationSet
from roll.core.workers.infer_interface import SamplingParams

SEEDS = 2**31
"""Seeds are below this: many environments take 32 bits only."""


def environment(seed: int, purpose: str, tag: str, number: int) -> Prompt:
    """The task to play environment `number` of a tag. `purpose`, such as "train", keeps sets apart."""
    env_seed = derive_seed(seed, purpose, tag, number) % SEEDS
    return Prompt(f"{purpose}/{tag}/{number}", [], "", tag, tag, "", {"env_seed": env_seed})


class EpisodeSource(TaskSource):
    def __init__(
        self,
        weights: Mapping[str, float],
        configured: Mapping[str, str],
        seed: int,
        purpose: str = "train",
        by_pass_rate: PassRateMixtureConfig | None = None,
    ) -> None:
        """`weights`: the relative frequency of each tag, before pass rates change it. `configured`: tag -> a digest of everything
        its environments depend on; a checkpoint with other digests is refused. Raises `ValueError` without a tag."""
        if not weights:
            raise ValueError("there is no tag to play")
        ordered = {tag: weights[tag] for tag in sorted(weights)}
        self._configured = {tag: configured[tag] for tag in ordered}
        self._seed = seed
        self._purpose = purpose
        self._served = dict.fromkeys(ordered, 0)
        self._returned: deque[Prompt] = deque()
        self._measured = by_pass_rate is not None
        self._mixture = TagMixture(ordered) if by_pass_rate is None else MeasuredMixture(ordered, by_pass_rate)

    def next(self) -> Prompt:
        if self._returned:
            return self._returned.popleft()
        tag = self._mixture.next()
        self._served[tag] += 1
        return environment(self._seed, self._purpose, tag, self._served[tag] - 1)

    def ended(self, group: SampleGroup) -> None:
        self._mixture.visited(group.prompt.tag, group.samples)

    def settle(self) -> None:
        self._mixture.settle()

    def metrics(self) -> dict[str, float]:
        """Pass rates and current shares of the tags, if pass rates decide the mixture."""
        return self._mixture.metrics()

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> JsonObject:
        returned = [prompt.uid for prompt in (*outstanding, *self._returned)]
        mixture = {"mixture": self._mixture.state()} if self._measured else {}
        position = {"seed": self._seed, "environments": self._configured, "served": dict(self._served), "returned": returned}
        return position | mixture

    def restore(self, cursor: JsonMapping) -> None:
        if cursor["seed"] != self._seed:
            raise ValueError(f"the checkpoint was made with seed {cursor['seed']}, not {self._seed}: its environments differ")
        theirs = cursor["environments"]
        changed = sorted(tag for tag in {*theirs, *self._configured} if theirs.get(tag) != self._configured.get(tag))
        if changed:
            what = "env_type, env_config, tool_wrapper, or a program's commands, environment or reward"
            raise ValueError(f"the environments of the tags {changed} are not those of the checkpoint ({what})")
        if ("mixture" in cursor) != self._measured:
            raise ValueError(f"the checkpoint was made {'without' if self._measured else 'with'} pass_rate_mixture")
        self._served = dict(cursor["served"])
        self._mixture.restore(self._served, cursor.get("mixture", {}))
        parts = [uid.split("/") for uid in cursor["returned"]]
        self._returned = deque(environment(self._seed, purpose, tag, int(number)) for purpose, tag, number in parts)


class Recorded(Protocol):
    """Turns of groups that are being played, outside of this process."""

    def size(self, uid: str) -> int:
        """Returns the bytes on record, which grow with every turn."""

    def remove(self, uid: str) -> None: ...

    def begun(self, uid: str) -> Sequence[int]:
        """Returns the versions of its episodes' first turns, where the run goes on from a checkpoint."""


ATTEMPTS = 3
"""Attempts at a validation group whose coordinator dies."""


class AgenticExplorer(Explorer):
    def __init__(
        self,
        exploration: Exploration,
        config: AgenticConfig,
        sampling: SamplingParams,
        coordinators: Coordinators,
        source: TaskSource,
        recorded: Recorded,
    ) -> None:
        super().__init__(exploration, routing=coordinators)
        self._coordinators, self._source, self._recorded = coordinators, source, recorded
        self._first = FirstAnswers()
        self._manager = config.train_env_manager
        self._sampling = sampling
        self._retried = frozenset(tag for tag, env in config.custom_envs.items() if env.on_env_failure == "retry")
        """Tags whose groups are played again if their coordinator dies."""
        self._validations = config.validations

    async def next(self) -> SampleGroup:
        return await self.groups.start(self._recorded.begun)

    async def play(self, group: SampleGroup) -> SampleGroup | None:
        """Plays the episodes of the group; None if it is dropped, by others or because it cannot be played."""
        uid = group.prompt.uid
        played = await self._played(group, uid)
        if played is None:
            self._recorded.remove(uid)
        return played

    async def _played(self, group: SampleGroup, uid: str) -> SampleGroup | None:
        """Plays the group again if its coordinator dies, at most twice without a turn on record between."""
        idle, size = 0, self._recorded.size(uid)
        for attempt in itertools.count():
            task = self._task(f"g{group.group_id}.{attempt}", group.prompt, group.start_version)
            try:
                result = await self.groups.while_live(group.group_id, self._coordinators.play(task))
            except Replaced as death:
                before, size = size, self._recorded.size(uid)
                idle = 0 if size > before else idle + 1
                if idle <= 1 and group.prompt.tag in self._retried:
                    continue
                await self.groups.drop(group.group_id, "environment_worker_died", str(death))
                return None
            if result is None or not self.groups.is_live(group.group_id):
                return None
            self._first.ended(group.prompt.tag, bool(result.samples), result.outcome)
            if not result.samples:
                await self.groups.drop(group.group_id, "environment_failure", "; ".join(result.outcome.reasons.values()))
                return None
            group.samples = result.samples
            self._trace.note(group.group_id, **episode_facts(group.samples))
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
        """Returns the places of the environments."""
        manager = self._manager
        return Places(manager.num_env_groups * manager.group_size, "train_env_manager.num_env_groups", manager.group_size)

    def counts(self) -> dict[str, float]:
        coordinators = self._coordinators
        failures = {f"env/failures/{kind}": float(count) for kind, count in coordinators.failures.items()}
        mixture = self._source.metrics() if isinstance(self._source, EpisodeSource) else {}
        deaths = {"env/worker_deaths": float(coordinators.cluster.restarts)}
        return failures | deaths | mixture | {"env/redundant_aborted": float(coordinators.aborted)}

    def figures(self) -> dict[str, object]:
        return {
            "environment_failures": dict(self._coordinators.failures),
            "environment_worker_deaths": self._coordinators.cluster.restarts,
            "redundant_episodes_aborted": self._coordinators.aborted,
        }

    def _task(self, key: str, prompt: Prompt, version: int) -> GroupTask:
        needed = self._manager.group_size
        return GroupTask(
            key=key,
            uid=prompt.uid,
            tag=prompt.tag,
            env_seed=prompt.row["env_seed"],
            started=needed + self._manager.group_size_redundancy,
            needed=needed,
            sampling=self._sampling,
            version=version,
        )

    async def _evaluate(
        self, version: int, of: ValidationSet, environment: Prompt, places: asyncio.Semaphore
    ) -> tuple[list[Sample], int]:
        """Returns the samples of a group, and how many of its episodes could not be played."""
        async with places:
            for attempt in range(ATTEMPTS):
                task = self._task(f"v{version}.{attempt}/{environment.uid}", environment, 0)
                task = replace(task, started=of.n, needed=of.n, sampling=of.sampling, priority=FIRST, validation=True)
                with suppress(Replaced):
                    result = await self._coordinators.play(task)
                    return result.samples, result.outcome.lost
        return [], of.n
