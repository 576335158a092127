"""Stages of a user's own, between those of a run or in the place of one.

What a stage between two others is given it hands on, changed in place; of a group it may say instead why it is to be dropped.
Anything else would leave a group, or a step, on its way for ever, and is an error that names the stage. One that stands in the
place of another returns what that returns, and may call it.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from roll.configs.base import CustomStageConfig, FlowConfig
from roll.configs.dotted_path import import_object
from roll.configs.problems import OWN_CODE, Collector
from roll.data.numbers import read_number
from roll.data.sample import SampleGroup
from roll.errors import boundary
from roll.flow.stage import AnyStage, Parallel, Stage
from roll.rollout.groups import Groups

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Drop:
    """Returned by a stage of groups: this one is not to be trained."""

    reason: str
    """One word or a few, the same for all groups that are dropped for it: it is counted."""
    detail: str = ""
    """More of it, for people."""


class Dropping(Protocol):
    """Whose groups a stage is given: an explorer."""

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
        """Whose groups they are, if the items are groups."""

    async def process(self, item: Any) -> Any:
        if isinstance(item, SampleGroup) and self.explorer is not None:
            return await self._process_group(item, self.explorer)
        if await self.work.process(item) is not item:
            raise TypeError(f"it must return the {type(item).__name__} that it was given")
        return item

    async def in_place(self, of: AnyStage, item: Any) -> Any:
        """The work of the stage `of`."""
        result: object = await self.work.process(item)
        if isinstance(item, SampleGroup) and self.explorer is not None:
            if isinstance(result, Drop):
                await self.explorer.drop(item, result.reason, result.detail)
                return None
            if result is None and of.outputs is not None and self.explorer.groups.is_live(item.group_id):
                raise TypeError("it must return the group that it was given, or a Drop, not None")
        return result

    async def _process_group(self, group: SampleGroup, explorer: Dropping) -> SampleGroup | None:
        if not explorer.groups.is_live(group.group_id):
            return None  # it has met its fate meanwhile
        result: object = await self.work.process(group)
        if isinstance(result, Drop):
            await explorer.drop(group, result.reason, result.detail)
            return None
        if result is not group:
            raise TypeError(f"it must return the group that it was given, or a Drop, not {result!r}"[:200])
        for sample in group.samples:
            try:
                sample.reward = None if sample.reward is None else read_number(sample.reward)
            except ValueError as error:
                raise ValueError(f"it gave a sample of group {group.group_id} a reward that {error}") from None
        return group


class BuiltIn(AnyStage):
    """Does what the stage does that it stands for: to be subclassed."""

    async def process(self, item: Any) -> Any:
        assert self.built_in is not None, "it stands for no stage of a run"
        return await self.built_in(item)


def make_stage(
    name: str,
    worker: Callable[..., Any] = BuiltIn,
    *,
    after: str | None = None,
    lanes: int | None = None,
    args: Mapping[str, Any] | None = None,
) -> CustomStage:
    """See `create_role_state_machine`. Raises `ValueError`."""
    if after is None and lanes is not None:
        raise ValueError(f"the lanes of {name} are those of the stage that it stands for: leave them out")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a stage: small letters, digits and _")
    if isinstance(worker, type):
        stage = _made(worker, args or {})
        stage.name, stage.lanes = name, lanes or stage.lanes
    elif callable(worker):
        _check_takes_one(partial(worker, **(args or {})), args)
        work = worker if inspect.iscoroutinefunction(worker) else partial(asyncio.to_thread, worker)
        stage = Stage(name, partial(work, **(args or {})), lanes=lanes)
    else:
        raise ValueError(f"{worker!r} is neither a function nor a subclass of Stage")
    return CustomStage(stage, after)


def custom_stages(flow: FlowConfig, collect: Collector) -> tuple[CustomStage, ...]:
    """The user's own; their places are not looked at here."""
    made = [collect(f"flow.stages.{block.name}", block.worker, partial(_own_stage, block), OWN_CODE) for block in flow.stages]
    return tuple(stage for stage in made if stage is not None)


def _own_stage(block: CustomStageConfig) -> CustomStage:
    worker = import_object(block.worker)
    return make_stage(block.name, worker, after=block.after, lanes=block.lanes, args=block.args)


def insert(half: list[AnyStage], own: Iterable[CustomStage], explorer: Dropping | None = None) -> list[AnyStage]:
    """The half with those of the stages that follow one of it, each made again, or stand for one. Several that follow the same
    keep their order."""
    stages = list(half)
    for stage in own:
        if stage.after is None:
            for replaced in (each for place in half for each in singles(place) if each.name == stage.name):
                placed = CustomStage(stage.work, None)
                placed.explorer = explorer
                replaced.taken_over_by(stage.work, partial(placed.in_place, replaced))
            continue
        places = [place for place, other in enumerate(stages) if stage.after in names(other)]
        places += [place for place, other in enumerate(stages) if isinstance(other, CustomStage) and other.after == stage.after]
        if places:
            placed = CustomStage(stage.work, stage.after)
            placed.explorer = explorer
            stages.insert(max(places) + 1, placed)
    return stages


def singles(stage: AnyStage) -> list[AnyStage]:
    """What stands at a place of a half: stages side by side are at the same."""
    return [stage, *stage.stages] if isinstance(stage, Parallel) else [stage]


def names(stage: AnyStage) -> list[str]:
    return [each.name for each in singles(stage)]


def _made(cls: type[Any], args: Mapping[str, Any]) -> AnyStage:
    if not issubclass(cls, Stage) or cls.process is Stage.process or not inspect.iscoroutinefunction(cls.process):
        raise ValueError(f"{cls.__qualname__} is no subclass of Stage with a coroutine `async def process(self, item)`")
    with boundary(ValueError, f"{cls.__qualname__} cannot be made"):
        stage = cls(**args)
    _check_takes_one(stage.process, args)
    return stage


def _check_takes_one(work: Callable[..., Awaitable[Any]], args: Mapping[str, Any] | None) -> None:
    try:
        inspect.signature(work).bind(None)
    except TypeError as error:
        given = f" and {', '.join(args)}" if args else ""
        raise ValueError(f"it cannot be called with an item{given}: {error}") from error
