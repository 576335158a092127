"""Callbacks: user code and the run's own reports, which follow the events of a run and may end it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from roll.core.data.sample import Sample, SampleGroup
from roll.core.errors import CallbackError, boundary, contained
from roll.core.record.checkpoint import Spares
from roll.core.record.metric_names import OF_EVERY_RUN, OF_SOME_RUNS
from roll.core.record.run_progress import RunProgress

if TYPE_CHECKING:  # users import this file, and torch takes seconds
    from roll.core.record.run_record import RunRecord
    from roll.core.record.validation import ValidationResult

Event = Literal["on_run_begin", "on_step", "on_validation", "on_group", "on_refresh", "on_summary", "on_run_end"]
StopStatus = Literal["finished", "stopped"]
MetricsRow: TypeAlias = Mapping[str, Any]
"""A row of metrics.jsonl, with the metrics derived from it in memory."""
Summary: TypeAlias = MutableMapping[str, Any]
"""The contents of summary.json."""


class Callback:
    """Base class of callbacks: a subclass overrides the events it needs. A run calls all callbacks one after another on one
    thread: they need no locks and may take time, as rollouts continue. An exception fails the run, naming the callback, with a
    checkpoint; `stop` ends it in order. A number added to `metrics` is a metric of the run."""

    _stops: tuple[str, StopStatus] | None = None

    def stop(self, reason: str, status: StopStatus = "finished") -> None:
        """Ends the run in order, with a checkpoint, after the current event: no other step begins. Has no effect in `on_run_end`.
        `status`: status of the run; "stopped" if something is wrong with it."""
        self._stops = (str(reason), status)

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        """Called when the run begins, before any worker exists, or goes on from a checkpoint after its trainer died. `step`:
        number of steps trained so far; `rows`: their metrics."""

    def on_step(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Called after a step was trained, where the trainer runs; steps count from 1."""

    def on_validation(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Called after the policy of `step` steps was evaluated."""

    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        """Called where the explorer runs, when a group was judged. `reason`: why it is not to be trained; None if it is."""

    def on_refresh(self, progress: RunProgress) -> None:
        """Called with the present state of the run: twice a second, and after each step."""

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        """Called before summary.json is written: every few seconds, and at the end, when it has a `status`. An added entry is
        written with it."""

    def on_run_end(self, summary: Summary) -> None:
        """Called when the run is over, for any reason. `summary`: contents of summary.json."""


class Observers(NamedTuple):
    """Observers of a run, besides the user's callbacks."""

    reports: Sequence[Callback] = ()
    """Called on the run's own thread, so they must be quick; with the metrics that the user's callbacks have added."""
    note: Callable[[str], None] = lambda line: None
    """Prints a line for people, on any thread."""
    spares: Spares = lambda old: ()


class Reports:
    """Records the events of a run and calls all callbacks. An exception in a user's callback becomes a `CallbackError`."""

    def __init__(self, record: RunRecord, callbacks: Sequence[Callback], observers: Observers, stop: Callable[[], None]) -> None:
        """`stop`: called when a callback is to end the run."""
        self.record, self.note = record, observers.note
        self._callbacks, self._reports, self._stop = callbacks, observers.reports, stop
        self._thread = ThreadPoolExecutor(1, "callbacks")
        self._names = OwnMetrics()

    @property
    def stop_request(self) -> tuple[str, StopStatus] | None:
        """Reason, and status, with which a callback ends the run; one that says that something is wrong comes first."""
        asked = [each._stops for each in self._reports if each._stops is not None]
        for each in self._callbacks:
            if each._stops is not None:
                reason, status = each._stops
                asked.append((f"{type(each).__qualname__}: {' '.join(reason.split())}", status))
        return min(asked, key=lambda each: each[1] != "stopped", default=None)

    async def begin(self) -> None:
        """The run has its journals, and no worker yet."""
        await self._tell("on_run_begin", self.record.step, list(self.record.rows()))

    async def group(self, group: SampleGroup, reason: str | None) -> None:
        """A group was rolled out and judged. `reason`: why it is not to be trained; None if it is."""
        if reason is not None:
            self.record.add_dropped(group, reason)
        await self._tell("on_group", group, reason)

    async def step(self, row: Mapping[str, float]) -> None:
        """The record has a step; `row`: its metrics."""
        await self._tell_metrics("on_step", self.record.step, row)
        await self.refresh()

    async def validation(self, result: ValidationResult, samples: Sequence[Sequence[Sample]]) -> None:
        """`samples`: of each validation set."""
        await self._tell_metrics("on_validation", result.version, self.record.add_validation(result, samples))

    async def refresh(self) -> None:
        await self._tell("on_refresh", self.record.progress())

    async def summarise(self, summary: Summary) -> None:
        """Adds the entries of all; one of a user's has to be JSON."""
        self.report("on_summary", summary, progress := self.record.progress())
        for callback in self._callbacks:
            given = dict(summary)
            await self._call(callback, "on_summary", given, progress)
            with boundary(CallbackError, f"{type(callback).__qualname__}.on_summary"):
                own = json.loads(json.dumps({name: value for name, value in given.items() if name not in summary}))
            summary.update(own)

    async def tell(self, event: Event, *told: object) -> None:
        """Tells the user's callbacks."""
        for callback in self._callbacks:
            await self._call(callback, event, *told)

    def report(self, event: Event, *told: object) -> None:
        for each in self._reports:
            getattr(each, event)(*told)

    async def _tell(self, event: Event, *told: object) -> None:
        self.report(event, *told)
        await self.tell(event, *told)
        self._heed()

    async def _tell_metrics(self, event: Event, step: int, row: Mapping[str, float]) -> None:
        own: dict[str, float] = {}
        try:
            for callback in self._callbacks:
                before = {**row, **own}
                given = dict(before)
                try:
                    await self._call(callback, event, step, given)
                finally:
                    own |= self._names.added(f"{type(callback).__qualname__}.{event}", before, given)
        finally:
            self.report(event, step, {**row, **own})
        if own:
            self.record.add_own(step, own)
        self._heed()

    async def _call(self, callback: Callback, event: Event, *told: object) -> None:
        if getattr(type(callback), event) is not getattr(Callback, event):
            with boundary(CallbackError, f"{type(callback).__qualname__}.{event}"):
                call = getattr(callback, event)
                await asyncio.get_running_loop().run_in_executor(self._thread, contained, call, *told)

    def _heed(self) -> None:
        if self.stop_request is not None:
            self._stop()


logger = logging.getLogger(__name__)


@cache
def _taken() -> tuple[str, ...]:
    return ("step", *OF_EVERY_RUN, *(pattern for patterns in OF_SOME_RUNS.values() for pattern in patterns))


class OwnMetrics:
    """The metrics that callbacks add to those of a step or a validation."""

    def __init__(self) -> None:
        self._told: set[tuple[str, object]] = set()

    def added(self, who: str, before: Mapping[str, float], after: Mapping[str, object]) -> dict[str, float]:
        """Returns the new numbers. The run's own names, and values that are no numbers, are left out with one warning."""
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
    elif name in before or any(fnmatchcase(name, pattern) for pattern in _taken()):
        yield "is the run's own, give yours another name"


def _no_number(value: object) -> str:
    if isinstance(value, str | bytes | bytearray):
        return f"is a text, {value!r:.100}, not a number"
    try:
        float(value)  # type: ignore[arg-type]
    except Exception as error:  # boundary: of a user's object
        return f"is no number, but {type(value).__name__} ({error})"
    return ""
