"""A run whose first steps are supervised fine-tuning: their groups are rows of files, and all later ones are rolled out.

Before the version with which the warm start ends nothing starts ahead (`Admission`), so a group is a row if its start version is
earlier, and a step trains rows alone, or none. Accounts, versions, checkpoints and evaluations are those of every run: a warm
start that is resumed in its midst goes on there, and the first rollout is sampled with the last weights of the warm start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from roll.core.algorithms.loss import LossSpec, prepare_batch
from roll.core.configs.derived import Derived
from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.data.sample import Prompt, Sample, SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.explorer.explorer import Explorer
from roll.core.flow.stage import AnyStage, SourceStage
from roll.core.groups.tasks import TaskSource
from roll.core.pipeline.stages import Parts
from roll.core.pipeline.topology import Rollouts, SingleDriver
from roll.core.trainer.advantages import AdvantageEstimate, Advantages
from roll.core.trainer.milestones import Milestone
from roll.core.trainer.optimise import optimise
from roll.core.trainer.trainer import Step, Trainer
from roll.plan.rules.warm_start_rules import ROWS
from roll.topologies.rows.from_rows import complete
from roll.topologies.rows.row_losses import VARIANT, RowWeights


class RowsFirst(TaskSource):
    """The tasks of a run, after a number of rows."""

    def __init__(self, rows: TaskSource, tasks: TaskSource, count: int) -> None:
        self._rows, self._tasks = rows, tasks
        self._count = self._left = count
        """Rows that are still to be served, or to be served again."""

    def next(self) -> Prompt:
        if not self._left:
            return self._tasks.next()
        self._left -= 1
        return self._rows.next()

    def ended(self, group: SampleGroup) -> None:
        if group.prompt.domain != ROWS:
            self._tasks.ended(group)

    def settle(self) -> None:
        self._tasks.settle()

    def metrics(self) -> dict[str, float]:
        return self._tasks.metrics()

    @property
    def unserved(self) -> dict[str, dict[str, int]]:
        return self._tasks.unserved

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> JsonObject:
        """Returns the tasks' own, with the rows as one domain more."""
        rows = self._rows.cursor([each for each in outstanding if each.domain == ROWS])
        tasks = self._tasks.cursor([each for each in outstanding if each.domain != ROWS])
        together: JsonObject = {name: rows[name] | tasks.get(name, {}) for name in ("data", "served")}
        return tasks | together | {"returned": rows["returned"] + tasks["returned"]}

    def restore(self, cursor: JsonMapping) -> None:
        returned = [uid for uid in cursor["returned"] if uid.startswith(f"{ROWS}/")]
        rows = {name: {key: value for key, value in cursor[name].items() if key == ROWS} for name in ("data", "served")}
        if ROWS not in rows["served"]:
            raise ValueError("the checkpoint was made without warm_start")
        served = rows["served"][ROWS] - len(returned)
        if served > self._count:
            raise ValueError(f"the checkpoint has seen {served:,} rows of the warm start, which has {self._count:,}")
        tasks = {
            name: {key: value for key, value in cursor[name].items() if key != ROWS} if name in rows else cursor[name]
            for name in cursor
        }
        self._rows.restore({"seed": cursor["seed"], **rows, "returned": returned})
        self._tasks.restore(tasks | {"returned": [uid for uid in cursor["returned"] if uid not in set(returned)]})
        self._left = self._count - served


class WarmAdvantages(Advantages):
    """Rows weigh as in SFT; `then`: the advantages of rollouts."""

    def __init__(self, config: PPOConfig, then: Advantages) -> None:
        super().__init__(config)
        self.discounted = then.discounted
        self._rows, self._then = RowWeights(config), then

    def _of(self, groups: Sequence[SampleGroup]) -> Advantages:
        return self._rows if groups[0].prompt.domain == ROWS else self._then

    def estimate(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> AdvantageEstimate:
        return self._of(groups).estimate(batch, groups)

    def trains(self, group: SampleGroup, sample: Sample) -> bool:
        return self._of([group]).trains(group, sample)

    def describe(self, samples: Sequence[Sample]) -> dict[str, float]:
        return {} if samples[0].prompt.domain == ROWS else self._then.describe(samples)

    def rollouts(self, groups: Sequence[SampleGroup]) -> dict[str, float]:
        return self._of(groups).rollouts(groups)

    def __call__(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> tuple[TokenBatch, dict[str, float]]:
        return self._of(groups)(batch, groups)

    def state(self) -> JsonObject:
        return self._then.state()

    def restore(self, state: JsonMapping) -> None:
        self._then.restore(state)


def with_warm_start(config: PPOConfig, advantages: Advantages) -> Advantages:
    return WarmAdvantages(config, advantages) if config.warm_steps else advantages


@dataclass(frozen=True, kw_only=True)
class RowLoss(LossSpec):
    """Cross-entropy of the trained tokens."""

    pg_variant: str = VARIANT
    rate: float = 1.0
    """Factor on the learning rate."""

    def rate_scale(self, metrics: Mapping[str, float]) -> float:
        return self.rate

    @classmethod
    def of(cls, config: PPOConfig) -> RowLoss:
        rate = config.warm_start and config.warm_start.learning_rate
        usual = config.actor_train.training_args.learning_rate
        return cls(rate=rate / usual if rate and usual else 1.0)


class WarmTrainer(Trainer):
    """Trains rows in the first steps: no role scores them, and they are one optimiser step."""

    async def log_probs(self, step: Step) -> Step:
        return step if self._warms(step) else await super().log_probs(step)

    async def reference(self, step: Step) -> Step:
        return step if self._warms(step) else await super().reference(step)

    async def teach(self, step: Step, role: str) -> Step:
        return step if self._warms(step) else await super().teach(step, role)

    async def update(self, step: Step) -> Step:
        if not self._warms(step):
            return await super().update(step)
        loss = RowLoss.of(self._config)
        # Rows are no samples: their likelihood is that at temperature 1.
        batch = prepare_batch(replace(step.batch, temperatures=torch.ones(len(step.batch))), loss)
        self.milestones.passed(Milestone.BEGUN, step.number + 1)
        step.metrics |= await optimise(self._policy, [batch], loss)
        return step

    async def _finish(self, step: Step) -> None:
        await super()._finish(step)
        if self._warms(step):
            self._step_s = 0.0  # it says nothing about rollouts, whose depth follows from such times

    def _warms(self, step: Step) -> bool:
        return step.number < self._config.warm_steps


class _AdmitsRows:
    """Keeps rows at once, and passes on groups that are to be rolled out."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer

    async def next(self) -> SampleGroup:
        while (group := await self._explorer.next()).prompt.domain == ROWS:
            await self._explorer.keep(complete(group))
        return group


class WarmStarted(SingleDriver):
    @staticmethod
    def stages(rollouts: Rollouts, config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        (_, *rolled), *others = SingleDriver.stages(rollouts, config, derived, parts)
        explorer: Any = parts.explorer
        admit: AnyStage = SourceStage("admit", _AdmitsRows(explorer).next)
        return [[admit, *rolled], *others]

    def _kind(self) -> Callable[..., Trainer]:
        return WarmTrainer
