"""Callbacks: a user's code that is told what happens in a run. `Reports` tells it, the run's record, and its alarms, which may
end the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Literal

from roll.configs.dotted_path import import_object
from roll.configs.flow import FlowConfig
from roll.configs.problems import OWN_CODE, Collector
from roll.configs.validation import OF_EVERY_RUN, OF_SOME_RUNS
from roll.data.sample import Sample, SampleGroup
from roll.errors import CallbackError, boundary, contained

if TYPE_CHECKING:  # users import this file, and torch takes seconds
    from roll.record.run_record import RunRecord
    from roll.record.validation import ValidationResult

Event = Literal["on_step", "on_validation", "on_group", "on_run_end"]


class Callback:
    """A subclass overrides what it wants to know of. All callbacks of a run are called one after another on one thread, so they
    need no locks, and may take time: rollouts go on meanwhile. What a callback raises ends the run as failed, with its name and a
    checkpoint; `stop` ends it in order. A number that is put into `metrics` is a metric of the run."""

    _stops: str | None = None

    def stop(self, reason: str) -> None:
        """Ends the run in order, as "finished" and with a checkpoint, when what is being told of is over: no other step begins.
        In `on_run_end` it changes nothing."""
        self._stops = str(reason)

    def on_step(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """A step was trained; steps count from 1. Where the trainer runs."""

    def on_validation(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """The policy after `step` steps was evaluated."""

    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        """A group was rolled out and judged. `reason`: why it is not to be trained; None if it is. Where the explorer runs."""

    def on_run_end(self, summary: Mapping[str, object]) -> None:
        """The run is over, whatever ended it: `summary` is that of summary.json."""


class Callbacks:
    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self._thread = ThreadPoolExecutor(1, "callbacks")
        self._names = OwnMetrics()

    @property
    def stopped(self) -> str:
        """Callback that ends the run in order, and its reason; empty if none does."""
        who = ((type(each).__qualname__, each._stops) for each in self._callbacks)
        return next((f"{name}: {' '.join(why.split())}" for name, why in who if why is not None), "")

    async def call(self, event: Event, *told: object) -> None:
        """Returns when all have been told. Raises `CallbackError`."""
        for callback in self._callbacks:
            await self._call(callback, event, *told)

    async def call_with_metrics(self, event: Event, step: int, row: Mapping[str, float]) -> dict[str, float]:
        """As `call`; returns the metrics that were added to those of the row."""
        own: dict[str, float] = {}
        for callback in self._callbacks:
            before = {**row, **own}
            given = dict(before)
            try:
                await self._call(callback, event, step, given)
            finally:
                own |= self._names.added(f"{type(callback).__qualname__}.{event}", before, given)
        return own

    async def _call(self, callback: Callback, event: Event, *told: object) -> None:
        if getattr(type(callback), event) is not getattr(Callback, event):
            with boundary(CallbackError, f"{type(callback).__qualname__}.{event}"):
                call = getattr(callback, event)
                await asyncio.get_running_loop().run_in_executor(self._thread, contained, call, *told)


def own_callbacks(flow: FlowConfig, collect: Collector) -> tuple[Callback, ...]:
    """Those that the configuration names."""
    made = [collect("flow.callbacks", path, partial(_own_callback, path), OWN_CODE) for path in flow.callbacks]
    return tuple(callback for callback in made if callback is not None)


def _own_callback(path: str) -> Callback:
    cls = import_object(path)
    if not (isinstance(cls, type) and issubclass(cls, Callback)):
        raise ValueError(f"{cls!r} is no subclass of Callback")
    with boundary(ValueError, f"{cls.__qualname__} cannot be made"):
        callback = cls()
    return checked(callback)


def checked(callback: Callback) -> Callback:
    """Raises `ValueError` for methods that are never called, or never awaited."""
    events = [name for name in vars(Callback) if name.startswith("on_")]
    for name in (name for name in dir(callback) if name.startswith("on_")):
        method = getattr(callback, name)
        if name not in events:
            raise ValueError(f"{type(callback).__qualname__}.{name} is no event: {', '.join(events)}")
        if inspect.iscoroutinefunction(method):
            raise ValueError(f"{type(callback).__qualname__}.{name} is a coroutine: write def, it runs in a thread")
        told = [None] * len(inspect.signature(getattr(Callback, name)).parameters)
        try:
            inspect.signature(method).bind(*told[1:])
        except TypeError as error:
            wanted = inspect.signature(getattr(Callback, name))
            raise ValueError(f"{type(callback).__qualname__}.{name} must take {wanted}: {error}") from error
    return callback


class Reports:
    def __init__(self, record: RunRecord, callbacks: Callbacks, stop: Callable[[], None]) -> None:
        """`stop`: called when an alarm is to end the run."""
        self.record = record
        self._callbacks = callbacks
        self._stop = stop

    async def group(self, group: SampleGroup, reason: str | None) -> None:
        """A group was rolled out and judged. `reason`: why it is not to be trained; None if it is."""
        if reason is not None:
            self.record.add_dropped(group, reason)
        await self._callbacks.call("on_group", group, reason)
        self._heed()

    async def step(self, row: Mapping[str, float]) -> None:
        """The record has a step; `row`: its metrics."""
        self._apply_alarms()
        await self._tell("on_step", self.record.step, row)

    async def validation(self, result: ValidationResult, samples: Sequence[Sequence[Sample]]) -> None:
        """`samples`: of each validation set."""
        metrics = self.record.add_validation(result, samples)
        self._apply_alarms()
        await self._tell("on_validation", result.version, metrics)

    def note(self, text: str) -> None:
        """A line for people."""
        self.record.display.note(text)

    async def _tell(self, event: Event, step: int, row: Mapping[str, float]) -> None:
        own = await self._callbacks.call_with_metrics(event, step, row)
        if own:
            self.record.add_own(step, own)
        self._heed()

    def _heed(self) -> None:
        """A callback's request."""
        if self._callbacks.stopped:
            self._stop()

    def _apply_alarms(self) -> None:
        if self.record.alarms.stop is not None:
            self._stop()


logger = logging.getLogger(__name__)

TAKEN = ("step", *OF_EVERY_RUN, *(pattern for patterns in OF_SOME_RUNS.values() for pattern in patterns))


class OwnMetrics:
    """The metrics that callbacks add to those of a step or a validation."""

    def __init__(self) -> None:
        self._told: set[tuple[str, object]] = set()

    def added(self, who: str, before: Mapping[str, float], after: Mapping[str, object]) -> dict[str, float]:
        """The numbers that are new. A name of the run's, and what is no number, is left out, with a warning the first time."""
        found: dict[str, float] = {}
        for name, value in after.items():
            if isinstance(name, str) and name in before and value is before[name]:
                continue
            if why := "".join(_flaws(name, before)) or _no_number(value):
                self._tell(who, name, why)
            elif isinstance(name, str):
                found[name] = float(value)  # type: ignore[arg-type]
        for name in before.keys() - after.keys():
            self._tell(who, name, "is the run's, and is not taken out")
        return found

    def _tell(self, who: str, name: object, why: str) -> None:
        if (who, name) not in self._told:
            self._told.add((who, name))
            logger.warning("%s: the metric %.100r %s: it is left out (said once)", who, name, why)


def _flaws(name: object, before: Mapping[str, float]) -> Iterator[str]:
    if not isinstance(name, str) or not name or "\0" in name or name != name.strip():
        yield "has no name that can be written"
    elif name in before or any(fnmatchcase(name, pattern) for pattern in TAKEN):
        yield "is the run's own, give yours another name"


def _no_number(value: object) -> str:
    if isinstance(value, str | bytes | bytearray):
        return f"is a text, {value!r:.100}, not a number"
    try:
        float(value)  # type: ignore[arg-type]
    except Exception as error:  # boundary: of a user's object
        return f"is no number, but {type(value).__name__} ({error})"
    return ""
