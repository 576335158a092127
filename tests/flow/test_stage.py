import asyncio
import contextlib

import pytest

from roll.core.errors import Closed, IllegalTransition
from roll.core.flow.stage import TRANSITIONS, Channel, LaneEvent, SourceStage, Stage, transition
from roll.core.record.ledger import LaneState


def test_the_transition_table_is_total_and_final_states_are_final():
    assert set(TRANSITIONS) == {(s, e) for s in LaneState for e in LaneEvent}
    for state in (LaneState.DONE, LaneState.ERROR):
        assert all(TRANSITIONS[state, event] is None for event in LaneEvent)
    for state in set(LaneState) - {LaneState.DONE, LaneState.ERROR}:
        assert TRANSITIONS[state, LaneEvent.FAILED] is LaneState.ERROR
    with pytest.raises(IllegalTransition, match="'sent' in state 'idle'"):
        transition(LaneState.IDLE, LaneEvent.SENT)


class Heard:
    def __init__(self, states):
        self._states = states

    def lane_changed(self, stage, lane, old, new):
        self._states.append((old, new))


class Double(Stage[int, int]):
    name = "double"

    async def process(self, item: int) -> int:
        return 2 * item


def test_items_flow_in_order_through_bounded_channels_and_closing_ends_the_stage():
    async def main():
        stage = Double()
        stage.inputs, stage.outputs = Channel(1), Channel(1)
        seen, states = [], []
        stage.listener = Heard(states)

        async def feed():
            for i in range(5):
                await stage.inputs.put(i)
            stage.inputs.close()

        async def drain():
            while True:
                try:
                    seen.append(await stage.outputs.get())
                except Closed:
                    return

        await asyncio.gather(stage.run(), feed(), drain())
        assert seen == [0, 2, 4, 6, 8]
        assert states[0] == (LaneState.IDLE, LaneState.WAITING_INPUT) and states[-1][1] is LaneState.DONE
        assert all(new is transition(old, event) for old, new in states for event in LaneEvent if TRANSITIONS[old, event] is new)

    asyncio.run(asyncio.wait_for(main(), 5))


def test_a_full_output_blocks_the_stage():
    async def main():
        stage = Double()
        stage.inputs, stage.outputs = Channel(10), Channel(1)
        for i in range(3):
            await stage.inputs.put(i)
        task = asyncio.create_task(stage.run())
        while stage.state is not LaneState.WAITING_OUTPUT:
            await asyncio.sleep(0)
        assert len(stage.outputs) == 1
        await stage.outputs.get()
        await stage.outputs.get()
        task.cancel()

    asyncio.run(asyncio.wait_for(main(), 5))


def test_a_failing_lane_puts_the_stage_into_error_and_raises():
    class Broken(Stage[int, int]):
        name = "broken"
        lanes = 3

        async def process(self, item: int) -> int:
            raise ValueError("no")

    async def main():
        stage = Broken()
        stage.inputs = Channel(1)
        await stage.inputs.put(1)
        with pytest.raises(ExceptionGroup):
            await stage.run()
        assert stage.state is LaneState.ERROR

    asyncio.run(asyncio.wait_for(main(), 5))


def test_stages_are_made_of_coroutines_too():
    """A source hands on what its coroutine returns until that says there is no more."""

    async def main():
        left, seen = [1, 2, 3], []

        async def take():
            if not left:
                raise Closed
            return left.pop(0)

        async def double(item):
            return 2 * item if item != 2 else None

        source, stage = SourceStage("take", take), Stage("double", double, lanes=1)
        stage.inputs = source.outputs = Channel(1)
        stage.outputs = Channel(5)
        await asyncio.gather(source.run(), stage.run())
        while len(stage.outputs):
            seen.append(await stage.outputs.get())
        assert seen == [2, 6], "None goes nowhere"
        with pytest.raises(TypeError, match="stage empty has no process"):
            await Stage("empty").process(1)

    asyncio.run(asyncio.wait_for(main(), 5))


def test_a_cancellation_that_the_work_swallows_ends_the_lane_although_nobody_takes_its_result():
    """As `asyncio.wait_for` does in Python 3.11, if its work ends at the moment of the cancellation."""

    async def swallows(item):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return item

    async def main():
        stage = Stage("swallows", swallows)
        stage.inputs, stage.outputs = Channel(1), Channel(1)
        stage.outputs.offer(0)  # full: what is handed on would wait for ever
        stage.offer(1)
        task = asyncio.create_task(stage.run())
        while not stage.items:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()

    asyncio.run(main())
