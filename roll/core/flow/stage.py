"""Stages: the state machines that every run is made of.

A stage takes an item from its input channel, takes its devices, processes the item and hands the result on. It has one or more
lanes, each of them one such state machine, so that many groups can be in process together. Every change of state is reported;
from these reports the ledger knows where each second of the run went.

`Parallel` groups several stages that work on the same item at the same time, each on its own devices; stages that share devices
take turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Generic, Literal, Protocol, TypeVar

from roll.core.distributed.device_locks import DeviceLocks
from roll.core.errors import Closed, IllegalTransition
from roll.core.record.ledger import LaneState

In = TypeVar("In")
Out = TypeVar("Out")


class LaneEvent(StrEnum):
    START = "start"
    RECEIVED = "received"
    ACQUIRED = "acquired"
    PROCESSED = "processed"
    SENT = "sent"
    CLOSED = "closed"
    FAILED = "failed"


_LEGAL: dict[tuple[LaneState, LaneEvent], LaneState] = {
    (LaneState.IDLE, LaneEvent.START): LaneState.WAITING_INPUT,
    (LaneState.IDLE, LaneEvent.CLOSED): LaneState.DONE,
    (LaneState.WAITING_INPUT, LaneEvent.RECEIVED): LaneState.WAITING_DEVICE,
    (LaneState.WAITING_INPUT, LaneEvent.CLOSED): LaneState.DONE,
    (LaneState.WAITING_DEVICE, LaneEvent.ACQUIRED): LaneState.PROCESSING,
    (LaneState.PROCESSING, LaneEvent.PROCESSED): LaneState.WAITING_OUTPUT,
    (LaneState.WAITING_OUTPUT, LaneEvent.SENT): LaneState.WAITING_INPUT,
    (LaneState.WAITING_OUTPUT, LaneEvent.CLOSED): LaneState.DONE,
} | {(state, LaneEvent.FAILED): LaneState.ERROR for state in LaneState if state not in (LaneState.DONE, LaneState.ERROR)}

TRANSITIONS: dict[tuple[LaneState, LaneEvent], LaneState | None] = {
    (s, e): _LEGAL.get((s, e)) for s in LaneState for e in LaneEvent
}
"""Total: every state and event has an entry, None where the event is illegal. DONE and ERROR are final."""


def transition(state: LaneState, event: LaneEvent) -> LaneState:
    following = TRANSITIONS[state, event]
    if following is None:
        raise IllegalTransition(f"event '{event.value}' in state '{state.value}'")
    return following


MOST_ACTIVE_FIRST = (
    LaneState.ERROR,
    LaneState.PROCESSING,
    LaneState.WAITING_DEVICE,
    LaneState.WAITING_OUTPUT,
    LaneState.WAITING_INPUT,
    LaneState.IDLE,
    LaneState.DONE,
)


def combined(lanes: Counter[LaneState]) -> LaneState:
    """Returns the state of a stage (or of a role with several stages): that of its most active lane."""
    for state in MOST_ACTIVE_FIRST:
        if lanes.get(state):
            return state
    return LaneState.IDLE


class Channel(Generic[In]):
    """A bounded queue that can be closed: a full one blocks its sender (back-pressure), a closed one ends its receivers."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._items: asyncio.Queue[In] = asyncio.Queue(capacity)
        self._closed = asyncio.Event()

    def __len__(self) -> int:
        return self._items.qsize()

    async def put(self, item: In) -> None:
        if self._closed.is_set():
            raise Closed
        await self._items.put(item)

    def offer(self, item: In) -> None:
        """Puts an item without waiting; `asyncio.QueueFull` if there is no room."""
        self._items.put_nowait(item)

    async def get(self) -> In:
        if not self._items.empty():
            return self._items.get_nowait()
        if self._closed.is_set():
            raise Closed
        get = asyncio.ensure_future(self._items.get())
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({get, closed}, return_when=asyncio.FIRST_COMPLETED)
            if get.done():
                return get.result()
            raise Closed
        finally:
            closed.cancel()
            get.cancel()

    def close(self) -> None:
        self._closed.set()


class Listener(Protocol):
    def lane_changed(self, stage: AnyStage, lane: int, old: LaneState, new: LaneState) -> None:
        """Called when a lane of the stage went from one state to another. Its item is in the stage's `items`."""


class Stage(Generic[In, Out]):
    """Made of a coroutine function, `Stage("reward", reward, lanes=8)`, or a subclass that gives `process`; `Flow` puts it
    between two channels. The result of `process` goes to the output channel; None goes nowhere (the item ends here)."""

    name = "stage"
    role: str | None = None
    """The role whose cluster works for this stage: its devices are held while an item is processed."""
    lanes = 1
    """Number of items processed at the same time."""

    def __init__(
        self,
        name: str | None = None,
        work: Callable[[In], Awaitable[Out | None]] | None = None,
        *,
        role: str | None = None,
        lanes: int | None = None,
    ) -> None:
        self.name = name or self.name
        self.role = role or self.role
        self.lanes = lanes or self.lanes
        self._work = work
        self.inputs: Channel[In] | None = None
        self.outputs: Channel[Out] | None = None
        self.devices: DeviceLocks | None = None
        self.listener: Listener | None = None
        self.items: dict[int, In] = {}
        """Lane -> the item that it received last."""
        self.built_in: Callable[[In], Awaitable[Out | None]] | None = None
        """The replaced work, if this stage does the work of a stage of the run in its place."""
        self.failed_on: In | None = None
        """The item that made the stage fail."""
        self._states: Counter[LaneState] = Counter()

    async def process(self, item: In) -> Out | None:
        if self._work is None:
            raise TypeError(f"stage {self.name} has no process()")
        return await self._work(item)

    @property
    def has_work(self) -> bool:
        """True if the work is a given function; a stage that begins a side, or has others beside it, has its own."""
        return type(self).process is Stage.process

    def taken_over_by(self, other: Stage[In, Out], work: Callable[[In], Awaitable[Out | None]]) -> None:
        """Replaces the work of this stage by `work`; all else stays the same. `other` may call the replaced work."""
        other.built_in, self._work = self._work, work

    async def receive(self) -> In:
        """Returns the next item; raises `Closed` when there is no more."""
        assert self.inputs is not None, f"stage {self.name} has no input channel"
        return await self.inputs.get()

    def offer(self, item: In) -> None:
        """Puts an item into the input channel from outside the flow; `asyncio.QueueFull` if there is no room."""
        assert self.inputs is not None, f"stage {self.name} has no input channel"
        self.inputs.offer(item)

    @property
    def state(self) -> LaneState:
        return combined(self._states)

    async def run(self) -> None:
        """Runs all lanes to their end. The output channel is closed when the last lane is done."""
        try:
            async with asyncio.TaskGroup() as group:
                for lane in range(self.lanes):
                    group.create_task(self._lane(lane))
        finally:
            if self.outputs is not None:
                self.outputs.close()

    async def _lane(self, lane: int) -> None:
        state = LaneState.IDLE
        self._states[state] += 1

        def enter(event: LaneEvent) -> None:
            nonlocal state
            old, state = state, transition(state, event)
            self._states[old] -= 1
            self._states[state] += 1
            if self.listener is not None:
                self.listener.lane_changed(self, lane, old, state)

        enter(LaneEvent.START)
        try:
            while True:
                try:
                    item = self.items[lane] = await self.receive()
                except Closed:
                    enter(LaneEvent.CLOSED)
                    return
                enter(LaneEvent.RECEIVED)
                result = await self._on_devices(item, lambda: enter(LaneEvent.ACQUIRED))
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise asyncio.CancelledError  # Python 3.11's wait_for swallows it if its work ends at the same moment
                enter(LaneEvent.PROCESSED)
                if result is not None and self.outputs is not None:
                    await self.outputs.put(result)
                enter(LaneEvent.SENT)
        except Exception:  # boundary: a stage may raise anything; the lane reports it and raises it again
            if state is not LaneState.WAITING_INPUT and self.failed_on is None:
                self.failed_on = self.items[lane]
            enter(LaneEvent.FAILED)
            raise

    async def _on_devices(self, item: In, acquired: Callable[[], None]) -> Out | None:
        if self.devices is None or self.role is None:
            acquired()
            return await self.process(item)
        async with self.devices.hold(self.role):
            acquired()
            return await self.process(item)


AnyStage = Stage[Any, Any]
"""A stage of any item types: code that joins, runs and watches stages does not look at their items."""


class GatedStage(Stage[In, Out]):
    """A stage whose items wait at a gate, without any devices. A gate that raises `Closed` ends the stage."""

    def __init__(
        self,
        name: str,
        work: Callable[[In], Awaitable[Out | None]],
        gate: Callable[[In], Awaitable[None]],
        *,
        role: str | None = None,
    ) -> None:
        super().__init__(name, work, role=role)
        self._gate = gate

    async def receive(self) -> In:
        item = await super().receive()
        await self._gate(item)
        return item


class SourceStage(Stage[Out, Out]):
    """The first stage of a side: its work is to wait for the next item, and it raises `Closed` when there is no more."""

    def __init__(self, name: str, work: Callable[[], Awaitable[Out]]) -> None:
        super().__init__(name)
        self._next = work

    async def receive(self) -> Out:
        return await self._next()

    async def process(self, item: Out) -> Out:
        return item


class Parallel(Stage[In, In]):
    """Hands each item to all of its stages and goes on when all have returned it. They change the item in place, each something
    of its own, and devices are asked for in their order."""

    def __init__(self, name: str, *stages: Stage[In, In]) -> None:
        super().__init__(name)
        self.stages = stages
        for stage in stages:
            stage.inputs, stage.outputs = Channel(1), Channel(1)

    async def process(self, item: In) -> In | None:
        for stage in self.stages:
            assert stage.inputs is not None
            await stage.inputs.put(item)
        try:
            for stage in self.stages:
                assert stage.outputs is not None
                await stage.outputs.get()
        except Closed:  # a stage has failed, and its error ends the flow
            return None
        return item

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            for stage in self.stages:
                assert stage.inputs is not None
                stage.inputs.close()


def parallel(name: str, stages: Sequence[Stage[In, In] | Literal[False]]) -> list[Stage[In, In]]:
    """Returns the stages as one step of a side: empty without stages, the stage itself if it is alone. False stands for a stage
    that is not needed."""
    needed = [stage for stage in stages if stage]
    return needed if len(needed) <= 1 else [Parallel(name, *needed)]
