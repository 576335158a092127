"""Who may enter an engine, and when."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.strategies.infer.entry_queue import Aborted, EntryQueue


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_at_most_so_many_and_validation_first():
    async def main():
        queue, order, release = EntryQueue(1), [], asyncio.Event()

        async def request(name, priority):
            async with queue.enter(name, priority):
                order.append(name)
                await release.wait()

        tasks = [asyncio.ensure_future(request(n, p)) for n, p in (("first", 1), ("train a", 1), ("train b", 1), ("val", 0))]
        await asyncio.sleep(0)
        assert order == ["first"] and queue.inside == {"first"} and queue.queued == 3
        release.set()
        await asyncio.gather(*tasks)
        assert order == ["first", "val", "train a", "train b"]

    run(main())


def test_while_it_is_closed_nothing_enters_and_what_is_inside_goes_on():
    async def main():
        queue, entered = EntryQueue(8), []
        async with queue.enter("old", 1):
            queue.close()

            async def newcomer():
                async with queue.enter("new", 0):
                    entered.append("new")

            task = asyncio.ensure_future(newcomer())
            await asyncio.sleep(0)
            drained = asyncio.ensure_future(queue.empty())
            await asyncio.sleep(0)
            assert not entered and not drained.done()
        await drained
        assert not entered
        queue.open()
        await task
        assert entered == ["new"]

    run(main())


def test_a_waiting_request_can_be_aborted_or_cancelled_without_taking_a_place():
    async def main():
        queue = EntryQueue(1)

        async def request(name):
            async with queue.enter(name, 1):
                return name

        async with queue.enter("inside", 1):
            aborted, cancelled, left = (asyncio.ensure_future(request(name)) for name in ("aborted", "cancelled", "left"))
            await asyncio.sleep(0)
            queue.abort(["aborted", "inside"])
            cancelled.cancel()
            with pytest.raises(Aborted):
                await aborted
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert queue.inside == {"inside"}
        assert await left == "left"
        assert not queue.inside and queue.queued == 0

    run(main())


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=20))
def test_never_more_than_the_limit_and_everyone_gets_in(limit, requests):
    async def main():
        queue, seen = EntryQueue(limit), []

        async def request(name, priority, steps):
            async with queue.enter(name, priority):
                seen.append(len(queue.inside))
                for _ in range(steps):
                    await asyncio.sleep(0)

        await asyncio.gather(*(request(str(i), priority, steps) for i, (priority, steps) in enumerate(requests)))
        assert len(seen) == len(requests) and max(seen, default=0) <= limit

    run(main())
