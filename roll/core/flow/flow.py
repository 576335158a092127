"""A flow: two sides of stages, run together, supervised, and accounted for.

The first failure of a stage or a watcher ends the flow with a `FlowError` that names it; nothing goes on half-alive.

`Hangs` says which item a stage works on for too long, judged by the items before it.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from roll.core.distributed.device_locks import DeviceLocks
from roll.core.errors import FlowError, reason
from roll.core.flow.stage import AnyStage, Channel, Parallel, combined
from roll.core.record.ledger import STAGE, LaneState, Ledger

FLOOR_S = 60.0
"""Seconds below which nothing is a hang: a checkpoint, a compilation or a busy machine takes as long."""
MEDIANS = 5
LONGEST = 2
"""Besides the median, because some stages have short items and long ones: most steps are not validated."""
FIRST = 10
"""Number of floors allowed to the first item of a stage, which has nothing to be compared with."""
RECENT = 100
"""Number of recent items that an item is compared with."""


class Suspect(NamedTuple):
    stage: str
    item: object
    seconds: float
    """Seconds that the stage has worked on it."""
    median_s: float | None
    """None for the first item of the stage."""


class Hangs:
    """Finds hanging items. The event loop reports items, and another thread asks: each method takes or leaves an entry whole."""

    def __init__(self, floor_s: float = FLOOR_S) -> None:
        self.floor_s = floor_s
        self._working: dict[tuple[str, int], tuple[float, object]] = {}
        """Stage and lane -> start of its current work, and the item."""
        self._recent: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._told: dict[str, tuple[int, float]] = {}
        """Stage -> lane and start time of its last suspect."""

    def began(self, stage: str, lane: int, item: object, now: float) -> None:
        self._working[stage, lane] = now, item

    def ended(self, stage: str, lane: int, now: float) -> None:
        since, _ = self._working.pop((stage, lane))
        self._recent[stage].append(now - since)

    def suspects(self, now: float) -> list[Suspect]:
        """Returns, for each stage, the item that it works on longest, if that is too long. An item is returned once, and no other
        of its stage as long as the stage works on it: it probably holds up the others, too."""
        working = sorted(list(self._working.items()), key=lambda entry: entry[1][0])
        oldest: dict[str, tuple[int, float, object]] = {}
        for (stage, lane), (since, item) in working:
            oldest.setdefault(stage, (lane, since, item))
            if self._told.get(stage) == (lane, since):
                oldest[stage] = lane, since, item
        found = []
        for stage, (lane, since, item) in oldest.items():
            if self._told.get(stage) != (lane, since) and now - since > self._limit(stage):
                self._told[stage] = lane, since
                before = list(self._recent[stage])
                found.append(Suspect(stage, item, now - since, median(before) if before else None))
        return found

    def _limit(self, stage: str) -> float:
        before = list(self._recent[stage])
        if not before:
            return FIRST * self.floor_s
        return max(self.floor_s, MEDIANS * median(before), LONGEST * max(before))


def item_name(item: object) -> str:
    """Returns the name of an item in messages: items name themselves; a plain number is a policy version."""
    return f"version {item}" if isinstance(item, int) else getattr(item, "label", f"a {type(item).__name__}")


class Flow:
    def __init__(
        self, ledger: Ledger, devices: DeviceLocks, clock: Callable[[], float], waits: Mapping[str, str] | None = None
    ) -> None:
        """`waits`: stage name -> its current reason to wait, in words for people; it is read at every change of state."""
        self.ledger = ledger
        self.hangs = Hangs()
        self.stages: list[AnyStage] = []
        self.devices = devices
        self._clock = clock
        self.waits = waits if waits is not None else {}
        self._role_lanes: dict[str, Counter[LaneState]] = {}
        self._entered: dict[str, tuple[LaneState, str]] = {}
        """State and reason last reported to the ledger, by name."""

    def join(self, side: Sequence[AnyStage]) -> None:
        """Adds the stages, and joins each to the next by a channel of one item."""
        for one, following in itertools.pairwise(side):
            channel: Channel[object] = Channel(1)
            one.outputs, following.inputs = channel, channel
        for stage in side:
            self._add(stage)
            for inner in stage.stages if isinstance(stage, Parallel) else ():
                self._add(inner)

    async def run(
        self,
        until: Sequence[AnyStage],
        watch: Sequence[Coroutine[object, object, None]] = (),
        finish: Callable[[], Coroutine[object, object, None]] | None = None,
        by: Sequence[AnyStage] = (),
    ) -> None:
        """Runs all stages until those of `until` are done, then stops the others. The coroutines of `watch` run beside them and
        only ever end by raising. After a failure the stages go on until `finish` has returned, unless one of those fails that do
        the work (`by`)."""
        tasks = {asyncio.create_task(stage.run(), name=stage.name): stage for stage in self.stages}
        awaited = {task for task, stage in tasks.items() if stage in until}
        watching = {asyncio.create_task(watcher, name="supervision") for watcher in watch}
        pending: set[asyncio.Task[None]] = {*tasks, *watching}
        try:
            while awaited & pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                # All results are read: one cause may end several tasks, and asyncio reports errors that are never read.
                if failed := [(task, _first(error)) for task in done if (error := task.exception()) is not None]:
                    task, error = failed[0]
                    item = tasks[task].failed_on if task in tasks else None
                    who = task.get_name() if item is None else f"{task.get_name()} at {item_name(item)}"
                    if finish is not None:
                        await _finished(finish(), {task for task, stage in tasks.items() if stage in by})
                    raise FlowError(f"{who}: {reason(error)}") from error
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    def idle_share(self, role: str) -> float:
        """Returns the share of the time since the role's first event in which no stage worked for it."""
        if role not in self.ledger.names():
            return 1.0
        return 1.0 - self.ledger.share(role, self._clock()).get(LaneState.PROCESSING.value, 0.0)

    def lane_changed(self, stage: AnyStage, lane: int, old: LaneState, new: LaneState) -> None:
        now, reason = self._clock(), self.waits.get(stage.name, "")
        self._enter(STAGE + stage.name, stage.state, now, reason)
        if not isinstance(stage, Parallel):  # those that it waits for speak for themselves
            if new is LaneState.PROCESSING:
                self.hangs.began(stage.name, lane, stage.items[lane], now)
            elif old is LaneState.PROCESSING:
                self.hangs.ended(stage.name, lane, now)
        if stage.role is None:
            return
        lanes = self._role_lanes.setdefault(stage.role, Counter())
        if old is not LaneState.IDLE:
            lanes[old] -= 1
        lanes[new] += 1
        state = combined(lanes)
        self._enter(stage.role, state, now, reason if state is new else "")

    def _enter(self, name: str, state: LaneState, now: float, reason: str) -> None:
        """Reports a change to the ledger if it is new there: with many lanes most changes do not alter the whole."""
        if self._entered.get(name) != (state, reason):
            self._entered[name] = (state, reason)
            self.ledger.enter(name, state.value, now, reason)

    def _add(self, stage: AnyStage) -> None:
        stage.listener = self
        if stage.role in self.devices.table.devices:
            stage.devices = self.devices
        self.stages.append(stage)


async def _finished(work: Coroutine[object, object, None], by: set[asyncio.Task[None]]) -> None:
    finishing = asyncio.ensure_future(work)
    pending: set[asyncio.Task[None]] = {finishing, *by}
    try:
        while finishing in pending and all(task in pending or task.exception() is None for task in by):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    finally:
        finishing.cancel()


def _first(error: BaseException) -> BaseException:
    """Returns the first concrete error in a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def one_line(error: BaseException) -> str:
    """Returns a line, never empty: an error without text is described by the place where it was raised."""
    text = " ".join(str(error).split())
    if not text and (frames := traceback.extract_tb(error.__traceback__)):
        text = f"in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return text if isinstance(error, OSError | RuntimeError | ValueError) and text else f"{type(error).__name__}: {text}"
