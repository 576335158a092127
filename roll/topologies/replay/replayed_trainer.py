"""`mode: replay`: the training side of a run, on groups that another run recorded. Nothing is generated; every step takes its
groups of then, in the same order, and the weights that it leads to are compared with the recorded ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from roll.core.configs.derived import Derived
from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.data.sample import Sample, SampleGroup
from roll.core.engines.policy_copy import PolicyCopy
from roll.core.engines.weight_updates import UpdateStats
from roll.core.errors import Closed
from roll.core.flow.custom_stage import CustomStage, insert
from roll.core.flow.stage import AnyStage, Stage
from roll.core.groups.filters import GroupFilter
from roll.core.groups.groups import Groups
from roll.core.groups.lease import Lease
from roll.core.groups.memory_groups import MemoryGroups
from roll.core.groups.parts import GroupParts
from roll.core.pipeline.roles import loss_spec
from roll.core.pipeline.stages import NO_PARTS, Parts, training
from roll.core.pipeline.topology import Rollouts, WithTrainer
from roll.core.record.journal import write_atomically
from roll.core.trainer.trainer import Trainer
from roll.core.weights.store import MemoryWeightStore, WeightStore
from roll.core.weights.transport import NewWeights
from roll.core.workers.infer_interface import sampling_params
from roll.topologies.replay.explained import Explaining
from roll.topologies.replay.recording import Recording
from roll.topologies.replay.regenerated import Generating, Regeneration
from roll.topologies.replay.written_batches import weights_digest
from roll.topologies.rows.warm_start import WarmTrainer

COMPARED = "replay.json"


def recorded_groups(config: PPOConfig, first: int, filters: Mapping[str, GroupFilter]) -> Callable[[GroupParts], Groups]:
    """`first`: steps that are done already. `filters`: by domain; they drop groups. Raises `ValueError` if steps that are to be
    trained are not recorded."""
    if config.replay.run is None:
        raise ValueError("mode: replay needs the folder of a run")
    recording = Recording(Path(config.replay.run))
    last = config.replay.until or recording.steps[-1]
    recording.check(first + 1, last)
    return partial(RecordedGroups, recording=recording, last=last, without=frozenset(config.replay.without), filters=filters)


class RecordedGroups(MemoryGroups):
    """Groups that were trained before: a step leases those that it had."""

    def __init__(
        self, parts: GroupParts, recording: Recording, last: int, without: frozenset[str], filters: Mapping[str, GroupFilter]
    ) -> None:
        """`last`: number of the last step, counted from 1. `without`: groups and samples that are left out. `filters`: by domain;
        groups that they drop are left out, too."""
        super().__init__(parts)
        self.recording = recording
        self.last, self._without, self._filters = last, without, filters
        self._known: set[int] = set()
        """Ids of the groups that this replay has trained."""
        self._parts: list[list[SampleGroup]] = []
        """The parts of the step that is being leased, which it does not have yet."""

    async def lease(self, step: int, on_arrival: bool = False) -> Lease:
        if self.stopped or step >= self.last:
            raise Closed
        asked = self._clock()
        if not self._parts:
            self._parts = await asyncio.to_thread(self._read, step + 1, on_arrival)
        groups, now = self._parts.pop(0), self._clock()
        return Lease(step, tuple(groups), asked, now, now, last=not self._parts)

    def _read(self, step: int, on_arrival: bool) -> list[list[SampleGroup]]:
        """Raises `ValueError` for a step of which nothing is left."""
        parts = self.recording.parts(step)
        parts = parts if on_arrival else [[group for part in parts for group in part]]
        for group in (group for part in parts for group in part):
            left_out = str(group.group_id) in self._without or self._is_dropped(group)
            group.samples = [each for each in group.samples if not left_out and _name(group, each) not in self._without]
        if not (left := [kept for part in parts if (kept := [group for group in part if group.samples])]):
            raise ValueError(f"step {step}: what is left out, or filtered, leaves no group of it")
        return left

    def _is_dropped(self, group: SampleGroup) -> bool:
        """True if a filter drops the group, as it does where a run explores."""
        chosen = self._filters.get(group.prompt.domain)
        return chosen is not None and chosen(group.outcomes) is not None

    async def trained(self, lease: Lease) -> None:
        """Counts the groups as admitted, too: here their first step is the first that is known of them."""
        for group in lease.groups:
            again = group.group_id in self._known
            self.admission.admitted += not again
            self.admission.trained += not again
            self.admission.reuse.done += again
            self._known.add(group.group_id)
            lag = lease.step - min(sample.oldest_version for sample in group.samples)
            self._ended(group, "reused" if again else "trained", "", lease.step + 1, lag)
        self._changed()

    def restore(self, state: JsonMapping, buffered: Sequence[JsonObject]) -> None:
        """Leaves out buffered groups: each is leased by the step that had it."""
        super().restore(state, ())


def _name(group: SampleGroup, sample: Sample) -> str:
    return f"{group.group_id}/{sample.index}"


@dataclass(slots=True)
class Comparison:
    """The weights of this replay against the recorded ones."""

    equal: list[int] = field(default_factory=list)
    """Versions."""
    different: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    """No digest was recorded: the version was not published, or the run was resumed right there."""

    def add(self, version: int, digest: str, recorded: str | None) -> None:
        known = self.unknown if recorded is None else self.equal if recorded == digest else self.different
        known.append(version)

    def write(self, run_dir: Path) -> None:
        found = {"equal": self.equal, "different": self.different, "unknown": self.unknown}
        write_atomically(run_dir / COMPARED, json.dumps(found).encode())


class ComparedWeights:
    """Takes new weights as a publisher: compares them, and has them for a copy of the policy."""

    def __init__(
        self,
        recording: Recording,
        store: WeightStore,
        copy: PolicyCopy | None,
        run_dir: Path,
        regeneration: Regeneration | None = None,
    ) -> None:
        self._recording, self._store, self._copy, self._run_dir = recording, store, copy, run_dir
        self._regeneration = regeneration
        self._comparison = Comparison()
        self.stats = UpdateStats()

    def counts(self) -> dict[str, float]:
        return {}

    async def publish(self, weights: NewWeights) -> int | None:
        version = weights.manifest.version
        self._comparison.add(version, weights_digest(weights.manifest), self._recording.weights.get(version))
        await asyncio.to_thread(self._comparison.write, self._run_dir)
        await self._store.publish(weights.manifest, weights.buckets)
        if self._copy is not None:
            self._copy.publish(version)
        if self._regeneration is not None:
            await self._regeneration.take(self._store, version)
        await self._store.retain({version, *(self._copy.needed if self._copy is not None else ())})
        return None


class ReplayedTrainer(WithTrainer):
    @staticmethod
    def stages(rollouts: Rollouts, config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        return [training(parts.trainer, parts.publisher, derived, config.roles())]

    async def open(self) -> bool:
        groups = self._state.groups
        assert isinstance(groups, RecordedGroups), "the preparation of mode: replay makes them"
        self._store = MemoryWeightStore()
        self._open_copy(self._store)
        if self._copy is not None:
            self._copy.begins = groups.recording.begun
        self._open_trainer(self._store, lambda coming: None)
        again = self._regeneration(groups) if self._config.replay.generate else None
        compared = ComparedWeights(groups.recording, self._store, self._copy, self._prepared.run_dir, again)
        self.counter, self.updates = compared, compared.stats
        self.parts = replace(NO_PARTS, trainer=self.trainer, publisher=compared)
        if again is not None:
            await again.compare(self._state.first_step)
        return True

    def _kind(self) -> Callable[..., Trainer]:
        return WarmTrainer if self._config.warm_steps else super()._kind()

    def _regeneration(self, groups: RecordedGroups) -> Regeneration:
        config, prepared = self._config, self._prepared
        derived, first = prepared.derived, self._state.first_step
        asked = (derived.keeps_sampling_mask, derived.replays_routing)
        sampling = sampling_params(config.actor_infer.generating_args, derived.max_new_tokens, prepared.ends, *asked)
        keeps_cache = config.weight_update_mode == "in_flight"
        given = Generating(sampling, config.seed, derived.staleness_bound, first + 1, groups.last, keeps_cache)
        return Regeneration(self._clusters["actor_infer"], self._devices, groups.recording, given, prepared.run_dir)

    def sides(self, rollouts: Rollouts) -> list[list[AnyStage]]:
        """Returns the training side, with a stage that explains a step if that is asked for."""
        sides, config = super().sides(rollouts), self._config
        if config.replay.explain is None:
            return sides
        loss = loss_spec(config, self._prepared.derived)
        explaining = Explaining(config.replay.explain, self._clusters["actor_train"], loss, self._prepared.run_dir)
        stage: AnyStage = Stage("explain", explaining.process, role="actor_train")
        return [insert(side, [CustomStage(stage, after="advantage")]) for side in sides]

    def release(self) -> None:
        self._store.close()
