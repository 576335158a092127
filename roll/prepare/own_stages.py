"""Stages made of a user's own functions and classes."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, get_args

from roll.core.configs.dotted_path import import_object
from roll.core.configs.flow import CustomStageConfig, FlowConfig, OnError
from roll.core.configs.problems import OWN_CODE, Collector
from roll.core.errors import boundary, contained
from roll.core.flow.custom_stage import CustomStage
from roll.core.flow.stage import AnyStage, Stage

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class BuiltIn(AnyStage):
    """Does the work of the stage that it replaces: to be subclassed."""

    async def process(self, item: object) -> object:
        assert self.built_in is not None, "it stands for no stage of a run"
        return await self.built_in(item)


def make_stage(
    name: str,
    worker: Callable[..., Any] = BuiltIn,
    *,
    after: str | None = None,
    lanes: int | None = None,
    args: Mapping[str, Any] | None = None,
    on_error: OnError = "fail",
) -> CustomStage:
    """See `create_role_state_machine`. Raises `ValueError`."""
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error is {on_error!r}, not one of {', '.join(get_args(OnError))}")
    if after is None and on_error != "fail":
        raise ValueError(f"{name} stands in the place of a stage, which cannot be left out: give after, or leave on_error out")
    if after is None and lanes is not None:
        raise ValueError(f"the lanes of {name} are those of the stage that it stands for: leave them out")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a stage: small letters, digits and _")
    if isinstance(worker, type):
        stage = _made(worker, args or {})
        stage.name, stage.lanes = name, lanes or stage.lanes
    elif callable(worker):
        _check_takes_one(partial(worker, **(args or {})), args)
        work = worker if inspect.iscoroutinefunction(worker) else partial(asyncio.to_thread, contained, worker)
        stage = Stage(name, partial(work, **(args or {})), lanes=lanes)
    else:
        raise ValueError(f"{worker!r} is neither a function nor a subclass of Stage")
    made = CustomStage(stage, after)
    made.on_error = on_error
    return made


def custom_stages(flow: FlowConfig, collect: Collector) -> tuple[CustomStage, ...]:
    """Returns the user's own stages; their places are not checked here."""
    made = [collect(f"flow.stages.{block.name}", block.worker, partial(_own_stage, block), OWN_CODE) for block in flow.stages]
    return tuple(stage for stage in made if stage is not None)


def _own_stage(block: CustomStageConfig) -> CustomStage:
    worker = import_object(block.worker)
    return make_stage(block.name, worker, after=block.after, lanes=block.lanes, args=block.args, on_error=block.on_error)


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
