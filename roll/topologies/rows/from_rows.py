"""A run that trains rows of files as they stand (SFT, DPO): the training side of every run, and no engines.

A row is a group that is complete when it is admitted. It takes the way of all groups, so accounts, journals, checkpoints and
resumption are those of every run; admission at a ratio of 0 lets the rows of a step come when the step before is trained, and its
weights are evaluated if that is due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from roll.core.configs.derived import Derived
from roll.core.configs.ppo import PPOConfig
from roll.core.data.sample import Sample, SampleGroup, VersionSpan
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.clock import monotonic
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.engines.weight_updates import UpdateStats
from roll.core.flow.stage import AnyStage
from roll.core.groups.groups import Groups
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.recovery import TrainerRecovery
from roll.core.pipeline.stages import NO_PARTS, Parts, exploring, training
from roll.core.pipeline.state import RunState
from roll.core.pipeline.topology import Rollouts, WithTrainer
from roll.core.record.callbacks import Reports
from roll.core.record.validation import ValidationResult, ValidationSet
from roll.core.trainer.batch import token_batch
from roll.core.trainer.milestones import Milestone
from roll.core.trainer.trainer import Step, Trainer
from roll.core.weights.transport import NewWeights, weight_store
from roll.prompts.stored_rows import ANSWERS
from roll.topologies.rows.row_losses import RowWeights


def complete(group: SampleGroup) -> SampleGroup:
    """Gives a group the answers of its row, the best one first. They count as written under the version that trains them."""
    prompt = group.prompt
    answers = prompt.row[ANSWERS]
    group.prompt = replace(prompt, row={})
    for place, (ids, mask, text) in enumerate(answers):
        spans = [VersionSpan(0, len(ids), group.start_version)]
        sample = Sample(group.prompt, place, ids, [0.0] * len(ids), spans, "stop", text, 1.0 - place, None if all(mask) else mask)
        group.samples.append(sample)
    return group


class RowReader:
    """In the place of an explorer."""

    def __init__(self, groups: Groups, reports: Reports) -> None:
        self._groups, self._reports = groups, reports

    async def next(self) -> SampleGroup:
        return await self._groups.start()

    async def keep(self, group: SampleGroup) -> None:
        await self._reports.group(complete(group), None)
        await self._groups.complete(group)

    async def validation(self, version: int) -> None:
        raise NotImplementedError("the trainer evaluates")

    def counts(self) -> dict[str, float]:
        return {}


@dataclass(slots=True)
class RowSet:
    """A set for evaluation."""

    name: str
    batch: TokenBatch
    rows: int

    @classmethod
    def of(cls, given: ValidationSet) -> RowSet:
        groups = [complete(SampleGroup(i, 0, replace(prompt))) for i, prompt in enumerate(given.prompts)]
        return cls(given.name, token_batch(groups, 1.0), len(groups))


class RowTrainer(Trainer):
    """Evaluates trained weights before the rows of the next step may come. Engines that answer questions take the evaluated
    versions; no others are published."""

    def __init__(self, sets: Sequence[RowSet], state: RunState, *given: Any) -> None:
        super().__init__(*given)
        self._sets, self._state = sets, state
        self.report: Callable[[ValidationResult], Awaitable[None]] = lambda result: state.reports.validation(result, ())

    async def open(self, devices: DeviceLocks) -> None:
        """Computes the reference's log-probs once, as it never changes. Evaluates the weights that the run begins with."""
        reference = self._clusters.get("reference")
        if reference is not None and self._sets:
            async with devices.hold("reference"):
                for each in self._sets:
                    asked = await self.scores(reference, "log_probs", each.batch)
                    each.batch = each.batch.with_(reference_logprobs=asked)
        if self._schedule.validates(self._state.first_step):
            async with devices.hold("actor_train"):
                await self._evaluate(self._state.first_step)

    async def gather(self, step: Step) -> NewWeights | None:
        version, weights = step.number + 1, None
        await self._finish(step)
        if self._schedule.validates(version) and not self._groups.hurried:
            await self._evaluate(version)
            weights = await self.gather_weights(version) if "actor_infer" in self._clusters else None
        self.milestones.passed(Milestone.GATHERED, version)
        if weights is None:
            await self._groups.set_served(version)
        return weights

    async def _evaluate(self, version: int) -> None:
        started, weights, more = monotonic(), self._advantages, dict[str, float]()
        assert isinstance(weights, RowWeights)
        found = [weights.figures(each.batch, await self.scores(self._policy, "log_probs", each.batch)) for each in self._sets]
        for place, (each, figures) in enumerate(zip(self._sets, found, strict=True)):
            more |= {f"{f'eval/{each.name}' if place else 'val'}/{name}": value for name, value in figures.items()}
        rows, seconds = sum(each.rows for each in self._sets), monotonic() - started
        accuracy, score = found[0].get("accuracy"), -found[0]["loss"]
        by_tag = {} if accuracy is None else {"all": accuracy}
        result = ValidationResult(version, accuracy, score, by_tag, 0, seconds, {}, rows, more=more)
        await self.report(result)


def row_trainer(prepared: Prepared, state: RunState) -> Callable[..., Trainer]:
    return partial(RowTrainer, [RowSet.of(each) for each in prepared.validation], state)


class FromRows(WithTrainer):
    recovery = TrainerRecovery

    @staticmethod
    def stages(rollouts: Rollouts, config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        rows = exploring(parts.explorer, rollouts(config, parts.explorer))
        return [rows, training(parts.trainer, parts.publisher, derived, config.roles())]

    async def open(self) -> bool:
        store = weight_store(self._config)
        self._open_copy(store)
        self._open_trainer(store, lambda coming: None)
        self.updates = UpdateStats()
        self.counter = reader = RowReader(self._state.groups, self._state.reports)
        self.parts = replace(NO_PARTS, explorer=reader, trainer=self.trainer)
        assert isinstance(self.trainer, RowTrainer)
        await self.trainer.open(self._devices)
        return True

    def _kind(self) -> Callable[..., Trainer]:
        return row_trainer(self._prepared, self._state)
