"""Calls of one moment travel together, and each has its own answer: without processes, over a line that counts."""

import asyncio
import threading

import pytest

from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.devices import Inventory, place
from roll.core.errors import WorkerDied
from roll.platform.exchange import MOST_WAITING, Callers, Calls, WorkerTraceback
from roll.platform.local_backend import WorkerHost


class Picky(Exception):
    """Cannot be made from what it says."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Worker:
    def __init__(self):
        self.doors = {}
        self.begun = []

    async def wait(self, name):
        self.begun.append(name)
        await self.doors.setdefault(name, asyncio.Event()).wait()
        return name

    async def open(self, name):
        self.doors.setdefault(name, asyncio.Event()).set()

    async def order(self, number):
        self.begun.append(number)
        return list(self.begun)

    def fail(self, kind):
        raise {"plain": ValueError("no such thing"), "picky": Picky("this", "that"), "exit": SystemExit("gone")}[kind]

    async def lock(self):
        return threading.Lock()


class Line:
    """Carries messages as they are; `dies()` ends it."""

    def __init__(self):
        (placement,) = place((0,), Inventory("cpu", nodes=1, per_node=1, cpus_per_node=1))
        self.host = WorkerHost(WorkerSpec("worker", f"{__name__}.Worker", placement))
        self.host._worker = Worker()
        self.callers, self.messages, self.dead = Callers(self.host), 0, asyncio.Event()

    async def exchange(self, message):
        self.messages += 1
        answer, dead = asyncio.ensure_future(self.callers.exchange(message)), asyncio.ensure_future(self.dead.wait())
        await asyncio.wait({answer, dead}, return_when=asyncio.FIRST_COMPLETED)
        if self.dead.is_set():
            raise WorkerDied("worker died")
        dead.cancel()
        return answer.result()


def over_a_line(scenario):
    async def main():
        line = Line()
        return await scenario(Calls(line), line)

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_calls_of_one_moment_are_one_message_and_begin_in_their_order():
    async def scenario(calls, line):
        answers = await asyncio.gather(*(calls.call("order", number) for number in range(50)))
        assert answers[-1] == list(range(50))
        assert line.messages == 1

    over_a_line(scenario)


def test_no_answer_waits_for_another():
    async def scenario(calls, line):
        slow = [asyncio.ensure_future(calls.call("wait", name)) for name in ("a", "b", "c")]
        await calls.call("order", 1)
        await calls.call("open", "b")
        assert await slow[1] == "b" and not slow[0].done() and not slow[2].done()
        await asyncio.gather(calls.call("open", "a"), calls.call("open", "c"))
        assert await asyncio.gather(*slow) == ["a", "b", "c"]

    over_a_line(scenario)


class Bundles(Line):
    """Hands over at one moment what came back since the last hand-over, as a busy event loop does."""

    def __init__(self):
        super().__init__()
        self.held = []

    async def exchange(self, message):
        answer = await super().exchange(message)
        self.held.append(asyncio.get_running_loop().create_future())
        await self.held[-1]
        return answer

    def hand_over(self):
        held, self.held = self.held, []
        for turn in held:
            turn.set_result(None)


async def until(true):
    while not true():
        await asyncio.sleep(0)


def test_exchanges_that_come_back_at_one_moment_leave_nobody_waiting():
    async def scenario():
        line = Bundles()
        calls = Calls(line)
        long, first = (asyncio.ensure_future(calls.call("wait", name)) for name in ("long", "first"))
        await until(lambda: line.messages == 1)
        second = asyncio.ensure_future(calls.call("wait", "second"))
        await until(lambda: line.messages == 2)
        for name in ("first", "second"):
            held = len(line.held)
            await line.host._worker.open(name)
            await until(lambda held=held: len(line.held) > held)
        line.hand_over()  # both exchanges are back, and the long call is open
        assert (await first, await second) == ("first", "second")
        await until(lambda: line.messages == 3)
        await line.host._worker.open("long")
        await until(lambda: line.held)
        line.hand_over()
        assert await long == "long"

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_many_messages_without_an_answer_do_not_pile_up_at_the_worker():
    async def scenario(calls, line):
        slow = []
        for number in range(5 * MOST_WAITING):
            slow.append(asyncio.ensure_future(calls.call("wait", number)))
            calls_before = line.messages
            while line.messages == calls_before:
                await asyncio.sleep(0.001)
        (answers,) = line.callers._answers.values()
        assert len(answers._waiting) <= MOST_WAITING
        await asyncio.gather(*(calls.call("open", number) for number in range(5 * MOST_WAITING)))
        assert await asyncio.gather(*slow) == list(range(5 * MOST_WAITING))

    over_a_line(scenario)


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("plain", ValueError, "no such thing"),
        ("picky", RuntimeError, "this and that"),
        ("exit", RuntimeError, "SystemExit: gone"),
    ],
)
def test_an_error_is_its_callers_alone_and_says_where_it_was_raised(kind, error, says):
    async def scenario(calls, line):
        good, bad = await asyncio.gather(calls.call("order", 1), calls.call("fail", kind), return_exceptions=True)
        assert good == [1]
        assert isinstance(bad, error) and says in str(bad)
        assert isinstance(bad.__cause__, WorkerTraceback) and "in fail" in str(bad.__cause__)

    over_a_line(scenario)


def test_what_cannot_travel_fails_alone_be_it_an_argument_or_a_value():
    async def scenario(calls, line):
        wanted = [calls.call("order", 1), calls.call("order", threading.Lock()), calls.call("lock"), calls.call("order", 2)]
        one, argument, value, two = await asyncio.gather(*wanted, return_exceptions=True)
        assert (one, two) == ([1], [1, 2])
        for error in (argument, value):
            assert isinstance(error, TypeError) and "cannot pickle" in str(error)

    over_a_line(scenario)


def test_who_gives_up_leaves_the_others_and_the_worker_at_work():
    async def scenario(calls, line):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(calls.call("wait", "a"), 0.05)
        other = asyncio.ensure_future(calls.call("wait", "b"))
        await calls.call("open", "a")
        await calls.call("open", "b")
        assert await other == "b"
        assert await calls.call("order", 1) == ["a", "b", 1]

    over_a_line(scenario)


def test_a_death_fails_every_open_call_and_those_that_come_later():
    async def scenario(calls, line):
        slow = [asyncio.ensure_future(calls.call("wait", name)) for name in ("a", "b")]
        await calls.call("order", 1)
        line.dead.set()
        for answer in await asyncio.gather(*slow, calls.call("order", 2), return_exceptions=True):
            assert isinstance(answer, WorkerDied)

    over_a_line(scenario)


def test_two_callers_have_answers_of_their_own_and_leave_nothing_behind():
    async def scenario(calls, line):
        other = Calls(line)
        assert await asyncio.gather(calls.call("order", 1), other.call("order", 2)) == [[1], [1, 2]]
        assert line.callers._answers == {}

    over_a_line(scenario)
