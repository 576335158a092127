"""Threads for a user's code: what the caller hears of them, and what hangs."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from roll.core.distributed import user_code
from roll.core.distributed.user_code import UserThreads, in_thread
from roll.core.errors import Escaped, TooManyStuck

THERE: ContextVar[str] = ContextVar("there", default="")


def test_a_call_has_the_context_of_its_maker_and_returns():
    THERE.set("here")
    assert in_thread("test", lambda more: THERE.get() + more, "!").outcome.result(60) == "here!"


@pytest.mark.parametrize(
    ("raised", "heard"), [(SystemExit(3), Escaped), (KeyError("x"), KeyError), (StopIteration(), RuntimeError)]
)
def test_the_caller_hears_what_a_call_raises(raised, heard):
    """A `StopIteration`, as of `next()` of nothing, too: a coroutine that waits for it must not wait for ever."""

    def fails():
        raise raised

    async def waits():
        await asyncio.wait_for(asyncio.wrap_future(in_thread("test", fails).outcome), 60)

    with pytest.raises(heard):
        asyncio.run(waits())


def test_no_thread_is_started_while_too_many_hang(monkeypatch):
    monkeypatch.setattr(user_code, "MOST_STUCK", 2)
    released, threads = threading.Event(), UserThreads("mine.reward")
    hanging = [threads.start(released.wait, 60) for _ in range(3)]
    try:
        threads.leave(hanging[0])
        threads.leave(threads.start(int))  # it ends: nothing hangs there
        threads.start(int).outcome.result(60)
        threads.leave(hanging[1])
        with pytest.raises(TooManyStuck, match=r"^2 threads of mine\.reward hang.*the last hangs in .*threading\.py"):
            threads.start(int)
    finally:
        released.set()
    for each in hanging:
        each.thread.join(60)
    assert threads.start(int).outcome.result(60) == 0
