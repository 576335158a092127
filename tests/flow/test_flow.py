"""Stages wired into a flow: supervision, accounts of time, device turns. The clock is the test's."""

import asyncio

import pytest

from roll.core.distributed.device_locks import DeviceLocks
from roll.core.errors import Closed, FlowError
from roll.core.flow.flow import Flow
from roll.core.flow.stage import Stage
from roll.core.record.ledger import Ledger


class Clock:
    """Moves only when a stage works."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Source(Stage[int, int]):
    name = "source"

    def __init__(self, count):
        super().__init__()
        self._left = list(range(count))

    async def receive(self):
        if not self._left:
            raise Closed
        return self._left.pop(0)

    async def process(self, item):
        return item


class Work(Stage[int, int]):
    """Takes `seconds` of the test's clock an item; fails at item `fails_at`."""

    def __init__(self, name, clock, seconds=1.0, role=None, lanes=1, fails_at=None):
        super().__init__()
        self.name, self.role, self.lanes = name, role, lanes
        self._clock, self._seconds, self._fails_at = clock, seconds, fails_at
        self.seen = []

    async def process(self, item):
        await asyncio.sleep(0)
        if item == self._fails_at:
            raise ValueError(f"item {item} is bad")
        self._clock.now += self._seconds
        self.seen.append(item)
        return item


class Endless(Stage[int, int]):
    """Waits for an input that never comes."""

    name = "endless"
    cancelled = False

    async def receive(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def never():
    await asyncio.Event().wait()


def make(devices=None):
    clock = Clock()
    return clock, Flow(Ledger(clock.now), DeviceLocks(devices or {}), clock)


def run(main):
    asyncio.run(asyncio.wait_for(main(), 5))


def test_items_pass_all_stages_in_order_and_the_flow_ends_with_its_last_stage():
    async def main():
        clock, flow = make()
        one, two = Work("one", clock), Work("two", clock, 3.0)
        flow.join([Source(7), one, two])
        await flow.run([two])
        assert one.seen == two.seen == list(range(7))
        assert clock.now == 100 + 7 * 4

    run(main)


def test_every_second_is_accounted_for_and_idle_share_is_what_was_not_busy():
    async def main():
        clock, flow = make({"gpu": frozenset({0}), "cpu": frozenset({1})})
        fast, slow = Work("fast", clock, 1.0, role="gpu"), Work("slow", clock, 3.0, role="cpu")
        flow.join([Source(5), fast, slow])
        await flow.run([slow])
        clock.now += 10
        assert {"gpu", "cpu", "stage.source", "stage.fast", "stage.slow"} == set(flow.ledger.names())
        for name in flow.ledger.names():
            assert sum(flow.ledger.durations(name, clock.now).values()) == pytest.approx(30)
            assert flow.ledger.current(name).state == "done"
        # The clock moves while either of them works, and they overlap: busy is at least the own time, at most all of it.
        busy = {role: flow.ledger.durations(role, clock.now)["busy"] for role in ("gpu", "cpu")}
        assert 5 <= busy["gpu"] <= 20 and 15 <= busy["cpu"] <= 20
        for role, seconds in busy.items():
            assert flow.idle_share(role) == pytest.approx(1 - seconds / 30)
        assert flow.idle_share("nobody") == 1.0

    run(main)


def test_a_role_is_busy_while_any_stage_or_lane_works_for_it():
    async def main():
        clock, flow = make({"gpu": frozenset({0})})
        one, two = Work("one", clock, 1.0, role="gpu", lanes=3), Work("two", clock, 1.0, role="gpu")
        flow.join([Source(6), one, two])
        await flow.run([two])
        durations = flow.ledger.durations("gpu", clock.now)
        assert sum(durations.values()) == pytest.approx(12) == durations["busy"], "one of the two was always at work"

    run(main)


def test_a_failing_stage_ends_the_flow_and_is_named():
    async def main():
        clock, flow = make()
        bad, endless = Work("reward", clock, lanes=2, fails_at=3), Endless()
        flow.join([Source(6), bad])
        flow.join([endless])
        with pytest.raises(FlowError, match=r"^reward at version 3: ValueError: item 3") as raised:
            await flow.run([endless])
        assert isinstance(raised.value.__cause__, BaseException)
        assert endless.cancelled, "nothing goes on half-alive"
        assert flow.ledger.current("stage.reward").state == "error"

    run(main)


def test_a_watcher_that_raises_ends_the_flow():
    async def main():
        _, flow = make()
        endless = Endless()
        flow.join([endless])

        async def watcher():
            await asyncio.sleep(0)
            raise RuntimeError("worker actor_infer-0 died")

        with pytest.raises(FlowError, match="supervision: RuntimeError: worker actor_infer-0 died"):
            await flow.run([endless], [never(), watcher()])
        assert endless.cancelled

    run(main)


def test_the_flow_ends_with_the_awaited_stages_and_stops_the_others_and_the_watchers():
    async def main():
        clock, flow = make()
        work, endless = Work("work", clock), Endless()
        stopped = []

        async def watcher():
            try:
                await never()
            finally:
                stopped.append(True)

        flow.join([Source(3), work])
        flow.join([endless])
        await flow.run([work], [watcher()])
        assert work.seen == [0, 1, 2]
        assert endless.cancelled and stopped == [True]

    run(main)


def test_a_slow_stage_holds_back_those_before_it():
    """Channels hold one item: with the last stage stuck at its first item, each stage before it has done two more at most."""

    async def main():
        clock, flow = make()
        gate = asyncio.Event()

        class Stuck(Stage[int, int]):
            name = "stuck"

            async def process(self, item):
                await gate.wait()

        first, second, stuck = Work("first", clock), Work("second", clock), Stuck()
        flow.join([Source(50), first, second, stuck])
        running = asyncio.create_task(flow.run([stuck]))
        for _ in range(500):
            await asyncio.sleep(0)
        assert len(second.seen) == 3 and len(first.seen) == 5
        assert flow.ledger.current("stage.second").state == "waiting for output"
        gate.set()
        await running
        assert len(first.seen) == 50

    run(main)


def test_roles_on_one_device_never_work_at_the_same_time():
    async def main():
        clock, flow = make({"train": frozenset({0}), "infer": frozenset({0})})
        at_work = set()

        class Alone(Work):
            async def process(self, item):
                at_work.add(self.role)
                assert len(at_work) == 1
                await asyncio.sleep(0)
                at_work.discard(self.role)
                return await super().process(item)

        infer, train = Alone("generate", clock, role="infer"), Alone("train", clock, role="train")
        flow.join([Source(8), infer, train])
        await flow.run([train])
        assert train.seen == list(range(8))
        assert flow.ledger.durations("train", clock.now).get("waiting for a device", 0) > 0

    run(main)
