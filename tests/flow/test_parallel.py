"""Stages side by side: at the same time on devices of their own, in turn on shared ones, and failing with their own error."""

import asyncio

import pytest

from roll.core.distributed.device_locks import DeviceLocks
from roll.core.errors import Closed, FlowError
from roll.core.flow.flow import Flow
from roll.core.flow.stage import Parallel, Stage, parallel
from roll.core.record.ledger import Ledger


class Source(Stage[list, list]):
    name = "source"

    def __init__(self, items):
        super().__init__()
        self._left = items

    async def receive(self):
        if not self._left:
            raise Closed
        return self._left.pop(0)

    async def process(self, item):
        return item


class Meet(Stage[list, list]):
    """Writes its name into the item when it has met all others at the barrier."""

    def __init__(self, name, role, barrier=None, fails=False):
        super().__init__()
        self.name, self.role = name, role
        self._barrier, self._fails = barrier, fails

    async def process(self, item):
        item.append(f"{self.name} begins")
        if self._barrier is not None:
            await self._barrier.wait()
        await asyncio.sleep(0)
        if self._fails:
            raise ValueError("bad item")
        item.append(f"{self.name} ends")
        return item


def run(stages, devices, items):
    flow = Flow(Ledger(0.0), DeviceLocks(devices), lambda: 0.0)
    done = []

    class Sink(Stage[list, list]):
        name = "sink"

        async def process(self, item):
            done.append(item)

    sink = Sink()
    flow.join([Source(items), Parallel("both", *stages), sink])
    asyncio.run(asyncio.wait_for(flow.run([sink]), 20))
    return done


def test_on_devices_of_their_own_they_work_at_the_same_time():
    """Each waits for the other inside its work: one after the other would never end."""
    barrier = asyncio.Barrier(2)
    items = run([Meet("a", "x", barrier), Meet("b", "y", barrier)], {"x": frozenset({0}), "y": frozenset({1})}, [[], [], []])
    assert len(items) == 3
    assert all(sorted(item) == ["a begins", "a ends", "b begins", "b ends"] for item in items)


def test_on_shared_devices_they_take_turns_in_their_order():
    items = run([Meet("a", "x"), Meet("b", "y")], {"x": frozenset({0, 1}), "y": frozenset({1})}, [[], []])
    assert items == [["a begins", "a ends", "b begins", "b ends"]] * 2


@pytest.mark.parametrize("failing", [0, 1])
def test_the_error_that_ends_the_flow_is_that_of_the_stage_that_failed(failing):
    stages = [Meet(name, None, fails=number == failing) for number, name in enumerate("ab")]
    with pytest.raises(FlowError, match=f"^{'ab'[failing]} at a list: ValueError: bad item"):
        run(stages, {}, [[]])


def test_nothing_stands_beside_a_stage_that_is_alone():
    stage = Meet("a", "x")
    assert parallel("none", [False, False]) == []
    assert parallel("one", [False, stage]) == [stage]
