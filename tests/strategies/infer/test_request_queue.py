"""Who may enter an engine, and when."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.errors import Aborted
from roll.core.workers.infer_interface import EngineStats, GenerateRequest, SamplingParams
from roll.strategies.infer.request_queue import BusyTime, RequestBounds, RequestQueue

BOUNDS = RequestBounds(vocab_size=100, max_length=10)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def request(name="r", priority=1, prompt=(1, 2), partial=(), **sampling):
    return GenerateRequest(name, tuple(prompt), SamplingParams(**sampling), tuple(partial), priority)


def counts(queue):
    stats = queue.stats(EngineStats(version=7))
    assert stats.version == 7
    return stats.running, stats.queued, stats.free_slots


def test_at_most_so_many_and_validation_first():
    async def main():
        queue, order, release = RequestQueue(BOUNDS, 1), [], asyncio.Event()

        async def call(name, priority):
            async with queue.enter(request(name, priority)):
                order.append(name)
                await release.wait()

        tasks = [asyncio.ensure_future(call(n, p)) for n, p in (("first", 1), ("train a", 1), ("train b", 1), ("val", 0))]
        await asyncio.sleep(0)
        assert order == ["first"] and counts(queue) == (1, 3, 0)
        release.set()
        await asyncio.gather(*tasks)
        assert order == ["first", "val", "train a", "train b"]

    run(main())


def test_while_it_is_held_nothing_enters_and_what_is_inside_goes_on():
    async def main():
        queue, entered = RequestQueue(BOUNDS, 8), []
        async with queue.enter(request("old")):
            queue.hold()

            async def newcomer():
                async with queue.enter(request("new", 0)):
                    entered.append("new")

            task = asyncio.ensure_future(newcomer())
            await asyncio.sleep(0)
            drained = asyncio.ensure_future(queue.empty())
            await asyncio.sleep(0)
            assert not entered and not drained.done()
        await drained
        queue.hold()
        queue.release()
        await asyncio.sleep(0)
        assert not entered, "it was held twice"
        queue.release()
        await task
        assert entered == ["new"]

    run(main())


def test_a_waiting_request_can_be_aborted_or_cancelled_without_taking_a_place():
    async def main():
        queue = RequestQueue(BOUNDS, 1)

        async def call(name):
            async with queue.enter(request(name)):
                return name

        async with queue.enter(request("inside")):
            aborted, cancelled, left = (asyncio.ensure_future(call(name)) for name in ("aborted", "cancelled", "left"))
            await asyncio.sleep(0)
            assert queue.abort(["aborted", "inside", "unknown"]) == ["inside"]
            cancelled.cancel()
            with pytest.raises(Aborted):
                await aborted
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert counts(queue) == (1, 1, 0)
        assert await left == "left"
        assert counts(queue) == (0, 0, 1)

    run(main())


def test_a_request_whose_turn_has_come_and_that_does_not_know_it_yet_can_be_aborted_too():
    """The engine does not have it, so nobody else could abort it."""

    async def main():
        queue = RequestQueue(BOUNDS, 1)

        async def call(name):
            async with queue.enter(request(name)):
                raise AssertionError("it was aborted")

        async with queue.enter(request("first")):
            calls = [asyncio.ensure_future(call(name)) for name in ("second", "third")]
            await asyncio.sleep(0)
        assert queue.abort(None) == []  # "second" has been admitted by the end of "first"
        assert queue.abort(["second"]) == []
        for task in calls:
            with pytest.raises(Aborted):
                await task
        assert counts(queue) == (0, 0, 1)

    run(main())


def test_an_id_is_used_by_one_request_at_a_time():
    async def main():
        queue = RequestQueue(BOUNDS, 1)
        async with queue.enter(request("a")):
            waiting = asyncio.ensure_future(queue.enter(request("b")).__aenter__())
            await asyncio.sleep(0)
            for name in "ab":
                with pytest.raises(ValueError, match=f"request '{name}' is running or queued already"):
                    async with queue.enter(request(name)):
                        pass
        await waiting

    run(main())


def test_the_end_reaches_who_waits_and_who_comes():
    async def main():
        queue = RequestQueue(BOUNDS, 1)
        async with queue.enter(request("inside")):
            waiting = asyncio.ensure_future(queue.enter(request("waiting")).__aenter__())
            await asyncio.sleep(0)
            queue.end(RuntimeError("over"))
            for call in (waiting, queue.enter(request("late")).__aenter__()):
                with pytest.raises(RuntimeError, match="over"):
                    await call
        assert counts(queue) == (0, 0, 1)

    run(main())


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=20))
def test_never_more_than_the_limit_and_everyone_gets_in(limit, requests):
    async def main():
        queue, seen = RequestQueue(BOUNDS, limit), []

        async def call(name, priority, steps):
            async with queue.enter(request(name, priority)):
                seen.append(counts(queue)[0])
                for _ in range(steps):
                    await asyncio.sleep(0)

        await asyncio.gather(*(call(str(i), priority, steps) for i, (priority, steps) in enumerate(requests)))
        assert len(seen) == len(requests) and max(seen, default=0) <= limit

    run(main())


@pytest.mark.parametrize(
    ("change", "left"),
    [({}, 8), ({"max_new_tokens": 5}, 5), ({"max_new_tokens": 5, "partial": (1,) * 5}, 0), ({"partial": (1,) * 6}, 2)],
)
def test_how_many_tokens_a_request_may_still_sample(change, left):
    assert BOUNDS.tokens_left(request(**change)) == left


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": ()}, "empty"),
        ({"prompt": (100,)}, r"must lie in \[0, 100\)"),
        ({"partial": (-1,)}, r"must lie in \[0, 100\)"),
        ({"prompt": (1,) * 10}, "a prompt of 10 tokens leaves no room in max_length=10"),
        ({"top_p": 0.0}, "out of range"),
        ({"temperature": float("nan")}, "out of range"),
        ({"stop_strings": ("",)}, "must not be empty"),
    ],
)
def test_requests_that_can_never_be_run_are_refused(change, message):
    with pytest.raises(ValueError, match=f"request 'r': .*{message}"):
        BOUNDS.tokens_left(request(**change))


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(ValueError, match="need a tokenizer"):
        RequestBounds(100, 10, has_tokenizer=False).tokens_left(request(stop_strings=("x",)))


def test_busy_time_is_that_between_the_first_and_the_last_request(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("roll.strategies.infer.request_queue.time.perf_counter", lambda: now[0])
    busy = BusyTime()
    for at, running, seconds in ((1, True, 0), (3, True, 2), (4, False, 3), (9, False, 3), (10, True, 3), (12, True, 5)):
        now[0] = float(at)
        busy.count(running)
        assert busy.seconds == seconds
