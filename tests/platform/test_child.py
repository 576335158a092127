"""Children answer within their limit or are killed, with all that they started, and end with their parent."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from roll.core.errors import CallFailed, ChildDied
from roll.platform import child as child_module
from roll.platform.child import Child, ChildPool, same_imports, start_process


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def run(body: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(body, 60))


async def started(name: str = "Obedient", *arguments: Any, **options: Any) -> Child:
    child = Child(f"child_handlers:{name}", *arguments, environment=os.environ | same_imports(), **options)
    await child.ready(30)
    return child


def ended(pid: int, within_s: float = 20.0) -> bool:
    """True once the process has exited (reaped or not)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def test_calls_and_what_they_raise() -> None:
    async def main() -> None:
        child = await started("Obedient", "hello")
        assert await child.ask(10, "greet", "\n\u2028é") == "hello \n\u2028é"
        assert await child.ask(10, "read_input") == "", "it has no input to take from us"
        with pytest.raises(CallFailed, match="TypeError: only text, numbers, lists and dicts can leave a process, not object"):
            await child.ask(10, "thing")
        with pytest.raises(TypeError, match="not object"):
            await child.ask(10, "greet", object())
        assert await child.ask(10, "pid") == child.pid, "no error costs the process"
        assert await child.kill() == "signal 9" and ended(child.pid, 0)
        with pytest.raises(ChildDied, match="signal 9"):
            await child.ask(10, "pid")

    run(main())


def test_a_message_that_is_too_long_is_an_error_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        child = await started()
        assert len(await child.ask(30, "long", 10_000_000)) == 10_000_000
        with pytest.raises(CallFailed, match=r"ValueError: .* bytes are too long to leave a process"):
            await child.ask(60, "long", child_module.LONGEST_BYTES)
        monkeypatch.setattr(child_module, "LONGEST_BYTES", 1000)
        with pytest.raises(ValueError, match="1000 are the most"):
            await child.ask(10, "greet", "x" * 1000)
        assert await child.ask(10, "pid") == child.pid
        await child.kill()

    run(main())


@pytest.mark.parametrize("end", ["limit", "cancelled"])
def test_a_call_without_an_answer_costs_the_child(end: str) -> None:
    async def main() -> None:
        child = await started()
        call = asyncio.create_task(child.ask(0.2 if end == "limit" else None, "hang"))
        await asyncio.sleep(0)
        if end == "cancelled":
            call.cancel()
        with pytest.raises(TimeoutError if end == "limit" else asyncio.CancelledError):
            await call
        assert child.ending == "signal 9" and not Path(f"/proc/{child.pid}").exists()

    run(main())


@pytest.mark.parametrize("turns", range(8))
def test_a_child_killed_just_before_a_call_is_told_at_once(turns: int) -> None:
    """However many turns of the event loop there are between the end of the process and the call: in one of them the end has been
    noticed, and is not carried through. Its limit is what a call would wait for that nobody answers."""

    async def main() -> None:
        child = await started()
        os.kill(child.pid, signal.SIGKILL)
        assert ended(child.pid)
        for _ in range(turns):
            await asyncio.sleep(0)
        with pytest.raises(ChildDied, match="signal 9"):
            await child.ask(20, "pid")

    run(main())


def test_what_a_child_started_ends_with_it_also_when_it_dies_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        child = await started()
        with pytest.raises(ChildDied, match="exit code 3"):
            await child.ask(30, "offspring", str(tmp_path / "pid"))

    run(main())
    assert ended(int((tmp_path / "pid").read_text()))


def test_a_child_that_cannot_begin_says_why() -> None:
    async def main() -> None:
        with pytest.raises(CallFailed, match="ValueError: no such greeting"):
            await started("Obedient", "refuse")
        with pytest.raises(CallFailed, match=r"AttributeError: .*Nobody"):
            await started("Nobody")

    run(main())
    child = Child("child_handlers:Nobody", environment=same_imports())
    with pytest.raises(CallFailed):
        child.ready_blocking()
    assert ended(child.pid, 0)


def test_many_calls_side_by_side() -> None:
    async def main() -> None:
        child = await started("Busy", side_by_side=True)
        calls = [asyncio.create_task(child.call("wait", i)) for i in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(CallFailed, match="KeyError: 'lost'"):
            await child.call("fail")
        calls[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[2]
        assert await child.call("release") == 1, "the cancelled call was cancelled there"
        del calls[2]
        assert await asyncio.gather(*calls) == [0, 1, 3, 4]
        assert await child.kill(patience_s=30) == "exit code 7", "it closes when the connection ends"

    run(main())


def test_a_pool_replaces_what_ended_and_has_no_children_when_it_is_closed() -> None:
    async def main() -> None:
        pool = ChildPool("child_handlers:Obedient", environment=os.environ | same_imports())
        first = await pool.take()
        pool.give_back(first)
        assert await pool.take() is first and pool.pids == [first.pid]
        await first.kill()
        pool.give_back(first)
        second, third = await pool.take(), await pool.take()
        assert len({first, second, third}) == 3 and pool.pids == sorted([second.pid, third.pid])
        asked, starting = asyncio.create_task(second.ask(None, "hang")), asyncio.create_task(pool.take())
        await asyncio.sleep(0)
        await pool.close()
        for call in (asked, starting, pool.take()):
            with pytest.raises(ChildDied):
                await call
        assert pool.pids == [] and ended(second.pid, 0) and ended(third.pid, 0)

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child that is stuck lives on")
def test_a_process_whose_starter_ended_before_it_could_ask_for_the_signal_ends_at_once() -> None:
    """As seen from the process: its parent is not the one that started it."""
    real = os.getpid
    try:
        os.getpid = lambda: 1  # type: ignore[assignment]
        process = start_process(sys.executable, "import time; time.sleep(60)", [], os.environ)
    finally:
        os.getpid = real
    assert process.wait(30) == 1


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_children_of_a_ray_worker_live_as_long_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts the life of the thread that started a child."""
    from roll.core.distributed.backend import WorkerSpec
    from roll.core.distributed.cluster import Cluster
    from roll.core.distributed.devices import detect, place
    from roll.platform.ray_backend import RayBackend

    monkeypatch.setenv("PYTHONPATH", same_imports()["PYTHONPATH"])

    async def main() -> None:
        backend = RayBackend(detect())
        try:
            spec = WorkerSpec("parent", "child_handlers.Parent", place((0,), detect())[0], {})
            cluster = await Cluster.start("parent", backend, [spec], 200)
            pids = await cluster.call(0, "ask")
            for _ in range(5):
                await asyncio.gather(*(cluster.call(0, "nothing") for _ in range(10)))
                assert await cluster.call(0, "ask") == pids
            os.kill(pids[-1], signal.SIGKILL)
            assert all(ended(pid) for pid in pids)
        finally:
            await backend.shutdown()

    asyncio.run(asyncio.wait_for(main(), 500))
