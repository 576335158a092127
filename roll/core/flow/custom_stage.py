"""Stages of a user's own, between those of a run or in the place of one.

A stage between two others hands on its item, changed in place, or drops a group with a reason. Anything else would leave a group,
or a step, on its way for ever, and is an error that names the stage. `on_error` sets the response to an error. A stage in the
place of another returns the same type as that one, and may call it.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from roll.core.configs.flow import OnError
from roll.core.data.numbers import read_number
from roll.core.data.sample import SampleGroup
from roll.core.errors import Closed, escapes, reason
from roll.core.flow.stage import AnyStage, Parallel
from roll.core.groups.groups import Groups

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drop:
    """Returned by a stage of groups: this one is not to be trained."""

    reason: str
    """One word or a few, equal for all groups dropped for this reason: it is counted."""
    detail: str = ""
    """More of it, for people."""


class Dropping(Protocol):
    """The owner of the groups of a stage: an explorer."""

    groups: Groups

    async def drop(self, group: SampleGroup, reason: str, detail: str) -> None: ...


class CustomStage(AnyStage):
    def __init__(self, work: AnyStage, after: str | None) -> None:
        """`work`: whose `process` is the work; `after`: the name of the stage that this one follows, None: it does the work of
        the one of its own name."""
        super().__init__(work.name, role=work.role, lanes=work.lanes)
        self.work = work
        self.after = after
        self.explorer: Dropping | None = None
        """The owner of the items, if they are groups."""
        self.on_error: OnError = "fail"
        self.errors = Counter[str]()
        """Errors that have not ended the run, by type; one counter for all places of the stage."""

    def placed(self, explorer: Dropping | None) -> CustomStage:
        """Returns a copy of the stage that is placed in a side."""
        placed = CustomStage(self.work, self.after)
        placed.explorer, placed.on_error, placed.errors = explorer, self.on_error, self.errors
        return placed

    async def process(self, item: Any) -> object:
        explorer = self.explorer if isinstance(item, SampleGroup) else None
        if explorer is not None and not explorer.groups.is_live(item.group_id):
            return None  # it has ended meanwhile
        result = await self._despite_errors(item)
        if explorer is not None and isinstance(result, Drop):
            await explorer.drop(item, result.reason, result.detail)
            return None
        return result

    async def _despite_errors(self, item: object) -> object:
        """Returns the item, or a `Drop`, as `on_error` says if the stage fails."""
        before = await asyncio.to_thread(_contents, item) if self.on_error == "skip" else {}
        try:
            return _checked(item, await self._worked(item))
        except Exception as error:  # boundary: a user's stage may raise anything
            if self.on_error == "fail" or isinstance(error, Closed):
                raise
            self._count(item, error)
            for name, value in before.items():
                setattr(item, name, value)
            return item if self.on_error == "skip" else Drop(f"{self.name}_failed", reason(error))

    def _count(self, item: object, error: Exception) -> None:
        if not self.errors:
            does = "is left out there" if self.on_error == "skip" else "drops it"
            label = getattr(item, "label", type(item).__name__)
            logger.warning(
                "stage %s fails at %s and %s (on_error: %s; said once, summary.json counts): %s",
                *(self.name, label, does, self.on_error, " ".join(reason(error).split())),
            )
        self.errors[type(error).__name__] += 1

    async def _worked(self, item: object) -> object:
        with escapes():
            result: object = await self.work.process(item)
        return result

    async def in_place(self, of: AnyStage, item: object) -> object:
        """The work of the stage `of`."""
        result: object = await self._worked(item)
        if isinstance(item, SampleGroup) and self.explorer is not None:
            if isinstance(result, Drop):
                await self.explorer.drop(item, result.reason, result.detail)
                return None
            if result is None and of.outputs is not None and self.explorer.groups.is_live(item.group_id):
                raise TypeError("it must return the group that it was given, or a Drop, not None")
        return result


def _contents(item: object) -> dict[str, Any]:
    """Copies the parts of a group, or of a step, that a stage may change."""
    return {
        name: copy.deepcopy(getattr(item, name)) for name in ("samples", "baseline", "batch", "metrics") if hasattr(item, name)
    }


def _checked(item: object, result: object) -> object:
    """Returns `result`. Raises `TypeError` or `ValueError` if a stage between two others may not return it."""
    if not isinstance(item, SampleGroup):
        if result is not item:
            raise TypeError(f"it must return the {type(item).__name__} that it was given")
        return result
    if result is not item and not isinstance(result, Drop):
        raise TypeError(f"it must return the group that it was given, or a Drop, not {result!r}"[:200])
    for sample in item.samples:
        try:
            sample.reward = None if sample.reward is None else read_number(sample.reward)
        except ValueError as error:
            raise ValueError(f"it gave a sample of group {item.group_id} a reward that {error}") from None
    return result


def insert(side: list[AnyStage], own: Iterable[CustomStage], explorer: Dropping | None = None) -> list[AnyStage]:
    """The side with those of the stages that follow one of it, each made again, or stand for one. Several that follow the same
    keep their order."""
    stages = list(side)
    for stage in own:
        if stage.after is None:
            for replaced in (each for place in side for each in singles(place) if each.name == stage.name):
                replaced.taken_over_by(stage.work, partial(stage.placed(explorer).in_place, replaced))
            continue
        places = [place for place, other in enumerate(stages) if stage.after in names(other)]
        places += [place for place, other in enumerate(stages) if isinstance(other, CustomStage) and other.after == stage.after]
        if places:
            stages.insert(max(places) + 1, stage.placed(explorer))
    return stages


def singles(stage: AnyStage) -> list[AnyStage]:
    """Returns the stages at a place of a side: stages side by side share one."""
    return [stage, *stage.stages] if isinstance(stage, Parallel) else [stage]


def names(stage: AnyStage) -> list[str]:
    return [each.name for each in singles(stage)]
