"""Hard time limits, replacement, and no process left behind."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roll.core.errors import GraderError
from roll.graders.pool import TimedPool

GRADERS = """
import os, subprocess, sys, time

def echo(item):
    print("printed by the function")
    return item

def moody(item):
    if item == "hang":
        while True:
            pass
    if item == "hang in C":
        return 7 ** (7 ** 10)
    if item == "die":
        os._exit(3)
    if item == "raise":
        raise ValueError("no such answer")
    if item == "environment":
        return dict(os.environ)
    if item == "offspring":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        with open(os.environ["TMPDIR"] + "/offspring", "w") as file:
            file.write(str(child.pid))
        time.sleep(60)
    return os.getpid()
"""


@pytest.fixture(autouse=True)
def graders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graders_under_test.py").write_text(GRADERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def ended(pid: int, within_s: float = 10.0) -> bool:
    """True once the process has exited (reaped or not)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def reaped(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_values_of_concurrent_calls_belong_to_their_items() -> None:
    async def main() -> list[object]:
        pool = TimedPool(2, 5.0, "graders_under_test:echo")
        await pool.start()
        items: list[object] = [{"i": i, "text": "\n\u2028é" * i} for i in range(20)]
        try:
            assert await asyncio.gather(*(pool.run(item) for item in items)) == items
            assert len(pool.pids) == 2
        finally:
            await pool.close()
        return items

    asyncio.run(main())


@pytest.mark.parametrize("item", ["hang", "hang in C"])
def test_a_call_that_hangs_is_killed_at_the_limit_and_its_process_replaced(item: str) -> None:
    async def main() -> None:
        pool = TimedPool(1, 0.5, "graders_under_test:moody")
        await pool.start()
        try:
            (old,) = pool.pids
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                await pool.run(item)
            assert 0.5 <= time.monotonic() - started < 20
            assert reaped(old)
            new = await pool.run("pid")
            assert new != old and pool.pids == [new]
        finally:
            await pool.close()
        assert reaped(new)

    asyncio.run(main())


def test_death_and_exception_are_errors_with_a_reason() -> None:
    async def main() -> None:
        pool = TimedPool(1, 10.0, "graders_under_test:moody")
        try:
            first = await pool.run("pid")
            with pytest.raises(GraderError, match="ValueError: no such answer"):
                await pool.run("raise")
            assert await pool.run("pid") == first, "an exception does not cost the process"
            with pytest.raises(GraderError, match=r"died \(exit code 3\)"):
                await pool.run("die")
            os.kill(await pool.run("pid"), signal.SIGKILL)
            with pytest.raises(GraderError, match=r"died \(signal 9\)"):
                await pool.run("pid")
            assert await pool.run("pid") != first
        finally:
            await pool.close()

    asyncio.run(main())


def test_what_a_grader_started_dies_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        pool = TimedPool(1, 1.0, "graders_under_test:moody")
        with pytest.raises(TimeoutError):
            await pool.run("offspring")
        await pool.close()

    asyncio.run(main())
    assert ended(int((tmp_path / "offspring").read_text()))


def test_cancelling_a_call_frees_its_slot() -> None:
    async def main() -> None:
        pool = TimedPool(1, 60.0, "graders_under_test:moody")
        await pool.start()
        (old,) = pool.pids
        call = asyncio.create_task(pool.run("hang"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await pool.run("pid") != old and reaped(old)
        await pool.close()

    asyncio.run(main())


def test_closing_ends_running_and_later_calls() -> None:
    async def main() -> None:
        pool = TimedPool(1, 60.0, "graders_under_test:moody")
        await pool.start()
        (pid,) = pool.pids
        running, waiting = asyncio.create_task(pool.run("hang")), asyncio.create_task(pool.run("hang"))
        await asyncio.sleep(0)
        await pool.close()
        assert reaped(pid) and pool.pids == []
        for call in (running, waiting, pool.run("pid")):
            with pytest.raises(GraderError, match=r"died|closed"):
                await call

    asyncio.run(main())


def test_a_function_that_cannot_be_loaded_is_refused_at_the_start() -> None:
    async def main() -> None:
        for target, why in [
            ("no_such_module:f", "No module named 'no_such_module'"),
            ("graders_under_test:f", "no attribute 'f'"),
        ]:
            with pytest.raises(GraderError, match=f"{target} cannot be loaded: .*{why}"):
                await TimedPool(1, 1.0, target).start()

    asyncio.run(main())


def test_graders_see_none_of_the_environment_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "secret")

    async def main() -> dict[str, str]:
        pool = TimedPool(1, 5.0, "graders_under_test:moody")
        environment: dict[str, str] = await pool.run("environment")
        await pool.close()
        return environment

    assert "JUDGE_API_KEY" not in asyncio.run(main())


def test_graders_end_when_their_parent_is_killed() -> None:
    """One waits for work, one is stuck inside a call."""
    program = """
import asyncio, sys
from roll.graders.pool import TimedPool

async def main():
    pool = TimedPool(2, 1.0, "graders_under_test:moody")
    await pool.start()
    stuck = asyncio.create_task(pool.run("hang in C"))
    await asyncio.sleep(0)
    print(*pool.pids, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(pids) == 2
    assert all(ended(pid) for pid in pids)
