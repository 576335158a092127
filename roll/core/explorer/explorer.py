"""The rollout side of a run: groups are admitted, rolled out, filtered, and kept or dropped, each on its own.

The rollout itself, between `next` and `keep`, depends on the kind of run, RLVR or agentic; so does the rollout of a validation
set. While a validation generates, the engines keep the version under evaluation: the next flip waits for the last of its
requests, which go first in every queue.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from roll.core.data.sample import Sample, SampleGroup
from roll.core.distributed.clock import monotonic
from roll.core.engines.engine_fleet import Routing
from roll.core.engines.weight_updates import EngineUpdates
from roll.core.groups.filters import GroupFilter
from roll.core.groups.groups import Groups
from roll.core.groups.schedule import StepSchedule
from roll.core.record.callbacks import Reports
from roll.core.record.run_progress import Places
from roll.core.record.trace import Trace
from roll.core.record.validation import SetRollouts, ValidationSet, summarise


@dataclass(frozen=True, slots=True)
class Exploration:
    """Common parts of every explorer."""

    groups: Groups
    weights: EngineUpdates
    schedule: StepSchedule
    reports: Reports
    filters: Mapping[str, GroupFilter]
    """By domain."""
    sets: Sequence[ValidationSet]
    trace: Trace


EXAMPLE = 100
"""Number of characters of a response in the example of its group."""


def example(group: SampleGroup) -> str:
    """Names a group, with the beginning of a response."""
    said = " ".join(group.samples[0].response_text.split())
    return f"{group.prompt.uid}, e.g. {said[:EXAMPLE]!r}"


class Explorer(ABC):
    def __init__(self, exploration: Exploration, routing: Routing) -> None:
        """`routing`: sends this explorer's requests to the engines."""
        self.groups = exploration.groups
        self.routing = routing
        self._weights = exploration.weights
        self._schedule = exploration.schedule
        self._reports = exploration.reports
        self._filters = exploration.filters
        self._sets = exploration.sets
        self._trace = exploration.trace

    async def next(self) -> SampleGroup:
        """Returns the next group, with its task, as soon as admission lets it start."""
        return await self.groups.start()

    async def keep(self, group: SampleGroup) -> None:
        """Keeps a group that was rolled out for training, or drops it with the filter's reason if it teaches nothing."""
        self._weights.group_ended(group)
        if not self.groups.is_live(group.group_id):
            return
        group_filter = self._filters.get(group.prompt.domain)
        reason = group_filter(group.outcomes) if group_filter else None
        if reason is not None:
            await self.drop(group, reason, f"mean reward {fmean(group.outcomes):.3g}, {example(group)}")
        else:
            await self._reports.group(group, None)
            await self.groups.complete(group)

    async def drop(self, group: SampleGroup, reason: str, detail: str) -> None:
        """Drops a group that was rolled out."""
        await self._reports.group(group, reason)
        await self.groups.drop(group.group_id, reason, detail)

    async def validate(self, version: int) -> None:
        """Evaluates the version that all engines serve, if that is due."""
        if not self._schedule.validates(version):
            return
        started = monotonic()
        try:
            sets = await asyncio.gather(*(self.validation_rollouts(version, each) for each in self._sets))
        finally:
            self._weights.release()
        await asyncio.gather(*(self.grade(each.samples) for each in sets))
        more: dict[str, float] = {}
        for position, each in enumerate(sets):
            prefix = "val" if position == 0 else f"eval/{each.of.name}"
            more |= {f"{prefix}/{name}": value for name, value in self.validation_metrics(each.samples).items()}
        result = summarise(version, sets, monotonic() - started, more)
        await self._reports.validation(result, [each.samples for each in sets])
        await self.groups.report_validation(version, asdict(result))

    async def validation(self, version: int) -> None:
        """`validate`, given up if the run has to end soon."""
        if self.groups.hurried:
            self._weights.release()
            return
        work = asyncio.ensure_future(self.validate(version))
        hurry = asyncio.ensure_future(self.groups.until(lambda: self.groups.hurried))
        try:
            await asyncio.wait({work, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return
            self._reports.note(f"the validation of version {version} is given up")
        finally:
            for task in (work, hurry):
                task.cancel()
            await asyncio.gather(work, hurry, return_exceptions=True)

    @abstractmethod
    async def validation_rollouts(self, version: int, of: ValidationSet) -> SetRollouts:
        """Returns the rollouts of a validation set; the engines serve `version` until all sets have theirs."""

    async def grade(self, samples: Sequence[Sample]) -> None:  # noqa: B027  (rollouts may come with their rewards)
        """Sets the rewards of validation samples that are not known yet; a sample that cannot be graded keeps None."""

    def validation_metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Metrics of a validation set besides its accuracy and reward, by name."""
        return {}

    @abstractmethod
    def places(self) -> Places:
        """Returns the number of rollouts that can be under way together."""

    def counts(self) -> dict[str, float]:
        """Running totals of the rollout side, for the metrics of each step."""
        return {}

    def figures(self) -> dict[str, object]:
        """Figures of the run so far, for summary.json."""
        return {}
