"""Time that nobody waits for, in the order of asyncio."""

import asyncio
import subprocess
import sys

import pytest

from roll.core.distributed.clock import monotonic
from roll.simulate.virtual_loop import Stuck, run_virtually


def test_an_hour_passes_at_once_and_every_clock_of_the_run_says_so():
    async def main():
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time(), monotonic()

    assert run_virtually(main()) == (3600, 3600)


def test_timers_end_in_the_order_of_their_times_and_equal_ones_in_the_order_in_which_they_were_set():
    ended = []

    async def one(seconds, name):
        await asyncio.sleep(seconds)
        ended.append((name, asyncio.get_running_loop().time()))

    async def main():
        await asyncio.gather(one(2, "a"), one(1, "b"), one(1, "c"))

    run_virtually(main())
    assert ended == [("b", 1), ("c", 1), ("a", 2)]


def test_what_would_run_in_a_thread_runs_between_two_events_and_hands_on_what_it_raises():
    async def main():
        assert await asyncio.to_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 0


def test_time_limits_and_cancellations_are_those_of_asyncio():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 5


def test_a_wait_that_nothing_can_end_is_told_with_those_who_wait():
    async def patient():
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="patient"):
        run_virtually(patient())


def test_who_goes_round_in_circles_without_time_passing_is_told():
    async def restless():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="time stands still"):
        run_virtually(restless())


@pytest.mark.parametrize("stuck", ["waits", "in circles"])
def test_who_is_left_when_nothing_can_happen_any_more_comes_to_an_end_on_the_loop(stuck):
    """Also one that waits again on its way there: for what never comes, or for some time."""
    ended = []

    async def wait():
        while stuck == "in circles":
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    async def stubborn():
        try:
            await wait()
        finally:
            try:
                await wait()
            finally:
                await asyncio.sleep(5)
                ended.append(asyncio.get_running_loop().time())

    async def main():
        others = [asyncio.ensure_future(stubborn()) for _ in range(3)]
        try:
            await asyncio.gather(*others)
        finally:
            await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run_virtually(main())
    assert ended == [5, 5, 5]


def test_tasks_that_are_cancelled_together_are_in_the_same_order_in_every_process():
    """asyncio keeps them in a set: their order would be that of addresses in memory."""
    program = """
import asyncio
from roll.simulate.virtual_loop import run_virtually

async def one(name, ended):
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)

async def main():
    ended, keep = [], [bytearray(97 * i) for i in range(50)]
    tasks = {asyncio.ensure_future(one(i, ended)) for i in range(40)}
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    print(ended)

run_virtually(main())
"""
    said = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(3)}
    assert len(said) == 1 and said.pop().count(",") == 39
