"""Who may enter an engine, and when."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.strategies.infer.gate import Aborted, Gate


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_at_most_so_many_and_validation_first():
    async def main():
        gate, order, release = Gate(1), [], asyncio.Event()

        async def request(name, priority):
            async with gate.enter(name, priority):
                order.append(name)
                await release.wait()

        tasks = [asyncio.ensure_future(request(n, p)) for n, p in (("first", 1), ("train a", 1), ("train b", 1), ("val", 0))]
        await asyncio.sleep(0)
        assert order == ["first"] and gate.inside == {"first"} and gate.queued == 3
        release.set()
        await asyncio.gather(*tasks)
        assert order == ["first", "val", "train a", "train b"]

    run(main())


def test_while_it_is_closed_nothing_enters_and_what_is_inside_goes_on():
    async def main():
        gate, entered = Gate(8), []
        async with gate.enter("old", 1):
            gate.close()

            async def newcomer():
                async with gate.enter("new", 0):
                    entered.append("new")

            task = asyncio.ensure_future(newcomer())
            await asyncio.sleep(0)
            drained = asyncio.ensure_future(gate.empty())
            await asyncio.sleep(0)
            assert not entered and not drained.done()
        await drained
        assert not entered
        gate.open()
        await task
        assert entered == ["new"]

    run(main())


def test_a_waiting_request_can_be_aborted_or_cancelled_without_taking_a_place():
    async def main():
        gate = Gate(1)

        async def request(name):
            async with gate.enter(name, 1):
                return name

        async with gate.enter("inside", 1):
            aborted, cancelled, left = (asyncio.ensure_future(request(name)) for name in ("aborted", "cancelled", "left"))
            await asyncio.sleep(0)
            gate.abort(["aborted", "inside"])
            cancelled.cancel()
            with pytest.raises(Aborted):
                await aborted
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert gate.inside == {"inside"}
        assert await left == "left"
        assert not gate.inside and gate.queued == 0

    run(main())


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=20))
def test_never_more_than_the_limit_and_everyone_gets_in(limit, requests):
    async def main():
        gate, seen = Gate(limit), []

        async def request(name, priority, steps):
            async with gate.enter(name, priority):
                seen.append(len(gate.inside))
                for _ in range(steps):
                    await asyncio.sleep(0)

        await asyncio.gather(*(request(str(i), priority, steps) for i, (priority, steps) in enumerate(requests)))
        assert len(seen) == len(requests) and max(seen, default=0) <= limit

    run(main())
