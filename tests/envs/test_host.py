"""What one environment does costs the others nothing, whatever it does."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.core.configs.problems import ConfigError
from roll.core.errors import EnvFailure
from roll.envs.host import EnvHandle, EnvHost

HERE = Path(__file__).parent
MOODY, SLEEPER, SLOW = (f"envs_under_test.{name}" for name in ("Moody", "Sleeper", "Slow"))
EXECUTIONS = ("inline", "thread", "process")


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(HERE))
    import envs_under_test  # type: ignore[import-not-found]

    envs_under_test.RELEASED.clear()
    envs_under_test.Sleeper.cancelled = envs_under_test.Slow.running = envs_under_test.Slow.most = 0
    yield envs_under_test
    envs_under_test.RELEASED.set()


async def opened(host: EnvHost, env_type: str = MOODY, **env_config: Any) -> EnvHandle:
    handle = await host.open("tag", env_type, env_config)
    await handle.reset(3)
    return handle


async def failure(call: Coroutine[Any, Any, Any]) -> EnvFailure:
    with pytest.raises(EnvFailure) as caught:
        await call
    return caught.value


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


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


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_episodes_and_exceptions(execution: Any) -> None:
    """An exception costs its episode; the next begins with a new instance; the neighbour notices nothing."""

    async def main() -> None:
        host = EnvHost(execution)
        first, second = await opened(host), await opened(host)
        assert (await first.step("go"))[:4] == ("episode 1", 1.0, False, False)
        assert (await first.reset(4))[0] == "episode 2, seed 4", "the instance is kept between episodes"
        error = await failure(first.step("raise"))
        assert (error.kind, error.message) == ("exception", f"{MOODY}.step: KeyError: 'lost'")
        with pytest.raises(RuntimeError, match="reset"):
            await first.step("go")
        assert (await first.reset(5))[0] == "episode 1, seed 5"
        assert (await second.step("go"))[0] == "episode 1"
        assert host.failures == {"exception": 1}
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("four", "must return (observation, reward, terminated, truncated, info)"),
        ("nan", "must be finite, not nan"),
        ("word", "must be a number, not str 'much'"),
        ("huge", "must be at most 1e+32 in size, not int 9999"),
    ],
)
def test_answers_that_are_none_fail_the_episode(execution: Any, action: str, message: str) -> None:
    async def main() -> None:
        host = EnvHost(execution)
        handle = await opened(host)
        error = await failure(handle.step(action))
        assert error.kind == "exception" and message in error.message
        await handle.reset(1)
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("kind", ["StopIteration", "KeyboardInterrupt", "GeneratorExit", "CancelledError", "Odd"])
def test_whatever_an_environment_raises_fails_its_episode_alone(execution: Any, kind: str) -> None:
    """In a process of its own an interruption ends that process, which is the same."""

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)  # as in a run
        host = EnvHost(execution)
        handle, other = await opened(host), await opened(host)
        error = await failure(asyncio.wait_for(handle.step(f"odd: {kind}"), 30))
        assert error.kind == "died" if execution == "process" and error.kind != "exception" else f"{kind}: why" in error.message
        assert (await other.step("go"))[0] == "episode 1"
        assert (await handle.reset(5))[0] == "episode 1, seed 5"
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_what_an_environment_prints_and_its_numpy_numbers(execution: Any) -> None:
    async def main() -> None:
        host = EnvHost(execution)
        handle = await opened(host)
        assert (await handle.step("print"))[0] == "episode 1"
        reward, terminated, truncated = (await handle.step("numpy"))[1:4]
        assert (reward, terminated, truncated) == (0.5, False, False)
        assert type(reward) is float and type(truncated) is bool
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_constructor_that_raises_is_a_failure_of_the_episode(execution: Any) -> None:
    async def main() -> None:
        host = EnvHost(execution)
        handle = await host.open("tag", MOODY, {"refuse": True})
        error = await failure(handle.reset(0))
        assert error.kind == "exception" and "refused" in error.message
        await host.close()

    asyncio.run(main())


def test_a_hanging_process_is_killed_and_replaced_while_the_others_go_on() -> None:
    async def main() -> None:
        host = EnvHost("process", step_timeout_s=1.0, reset_timeout_s=30.0)
        hung, stuck, fine = await asyncio.gather(*(opened(host) for _ in range(3)))
        old = [hung.pid, stuck.pid]
        started = time.monotonic()
        hanging = [asyncio.create_task(failure(hung.step("hang"))), asyncio.create_task(failure(stuck.step("hang in C")))]
        steps = 0
        while not all(task.done() for task in hanging):
            assert (await fine.step("go"))[0] == "episode 1"
            steps += 1
        assert 1.0 <= time.monotonic() - started < 10
        assert steps > 20, "the neighbour was held up"
        assert {task.result().kind for task in hanging} == {"timeout"}
        assert all(gone(pid) for pid in old if pid)
        assert (await hung.reset(9))[0] == "episode 1, seed 9"
        assert hung.pid not in old
        assert host.failures == {"timeout": 2}
        pids = host.pids
        await host.close()
        assert len(pids) == 2 and all(gone(pid) for pid in pids)

    asyncio.run(main())


def test_a_killed_process_costs_its_own_episode() -> None:
    async def main() -> None:
        host = EnvHost("process", step_timeout_s=30.0)
        first, second, third = await asyncio.gather(*(opened(host) for _ in range(3)))
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        errors = [await failure(first.step("go")), await failure(second.step("die"))]
        assert [(error.kind, "signal 9" in error.message) for error in errors] == [("died", True)] * 2
        assert (await third.step("go"))[0] == "episode 1"
        for handle in (first, second):
            await handle.reset(1)
            assert (await handle.step("go"))[0] == "episode 1"
        await host.close()

    asyncio.run(main())


def test_a_value_that_cannot_leave_the_process_is_named() -> None:
    async def main() -> None:
        host = EnvHost("process")
        handle = await opened(host)
        error = await failure(handle.step("object"))
        assert error.kind == "exception" and "not object" in error.message
        await host.close()

    asyncio.run(main())


def test_processes_are_handed_on() -> None:
    async def main() -> None:
        host = EnvHost("process")
        first = await opened(host)
        pid = first.pid
        await first.close()
        second = await opened(host)
        assert second.pid == pid and (await second.step("go"))[4]["pid"] == pid
        assert pid != os.getpid()
        await host.close()
        assert host.pids == []

    asyncio.run(main())


def test_cancelling_a_step_kills_its_process_and_frees_its_place() -> None:
    async def main() -> None:
        host = EnvHost("process", max_concurrent={"tag": 1})
        handle = await opened(host)
        pid = handle.pid
        call = asyncio.create_task(handle.step("hang"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert pid is not None and gone(pid)
        await handle.reset(1)
        assert host.failures == {}, "being cancelled is no failure"
        await host.close()

    asyncio.run(main())


def test_closing_the_host_ends_what_is_running() -> None:
    async def main() -> None:
        host = EnvHost("process", step_timeout_s=60.0)
        handle = await opened(host)
        call = asyncio.create_task(failure(handle.step("hang")))
        await asyncio.sleep(0)
        await host.close()
        assert (await call).kind == "died"

    asyncio.run(main())


def test_processes_end_when_their_parent_is_killed() -> None:
    """One waits for work, one is stuck in a step."""
    program = f"""
import asyncio
from roll.envs.host import EnvHost

async def main():
    host = EnvHost("process", step_timeout_s=1.0)
    handles = [await host.open("tag", "{MOODY}", {{}}) for _ in range(2)]
    for handle in handles:
        await handle.reset(0)
    stuck = asyncio.create_task(handles[0].step("hang in C"))
    await asyncio.sleep(0)
    print(*host.pids, flush=True)
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
    assert len(pids) == 2 and all(ended(pid) for pid in pids)


def test_a_hanging_thread_is_left_behind_and_ends_when_its_call_does(module: Any) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "environment"}

    def threads() -> int:
        return sum(thread.name == "environment" and thread not in before for thread in threading.enumerate())

    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        host = EnvHost("thread", step_timeout_s=0.2)
        hung, fine = await opened(host), await opened(host)
        error = await failure(hung.step("hang"))
        assert error.kind == "timeout" and "0.2 s" in error.message
        assert (await fine.step("go"))[0] == "episode 1"
        assert (await hung.reset(2))[0] == "episode 1, seed 2", "a new thread, a new instance"
        assert threads() == 3
        module.RELEASED.set()
        while threads() > 2:
            await asyncio.sleep(0.01)
        assert (await hung.step("go"))[0] == "episode 1", "the late answer went nowhere"
        assert not complaints
        error = await failure(fine.step("exit"))
        assert (error.kind, error.message) == ("exception", f"{MOODY}.step: SystemExit: 5")
        await host.close()

    asyncio.run(main())


def test_every_threaded_environment_stays_in_one_thread() -> None:
    async def main() -> None:
        host = EnvHost("thread")
        handles = [await opened(host) for _ in range(3)]
        threads = [{(await handle.step("go"))[4]["thread"] for _ in range(3)} for handle in handles]
        assert all(len(some) == 1 for some in threads) and len(set.union(*threads)) == 3
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_coroutines_overlap_and_are_cancelled_at_the_limit(execution: Any, module: Any) -> None:
    async def main() -> None:
        host = EnvHost(execution, step_timeout_s=5.0 if execution == "process" else 1.0)
        number = 2 if execution == "process" else 200
        handles = await asyncio.gather(*(opened(host, SLEEPER) for _ in range(number)))
        started = time.monotonic()
        steps = await asyncio.gather(*(handle.step("0.1") for handle in handles))
        assert all(step[0] == "0.1" for step in steps)
        if execution != "process":
            assert time.monotonic() - started < 5, "200 waits of 0.1 s, one after the other, take 20 s"
            assert (await failure(handles[0].step("60"))).kind == "timeout"
            assert module.Sleeper.cancelled == 1
            assert len({step[4]["thread"] for step in steps}) == 1, "no threads are needed to wait"
        await host.close()

    asyncio.run(main())


def test_at_most_max_concurrent_calls_of_a_tag_run_at_once(module: Any) -> None:
    async def main() -> None:
        host = EnvHost("thread", max_concurrent={"slow": 2})
        slow = [await host.open("slow", SLOW, {}) for _ in range(6)]
        await asyncio.gather(*(handle.reset(0) for handle in slow))
        await asyncio.gather(*(handle.step("go") for handle in slow))
        assert module.Slow.most == 2
        assert sum(handle.waiting_s for handle in slow) > 0.02 and all(handle.running_s >= 0.02 for handle in slow)
        module.Slow.most = 0
        free = [await host.open("free", SLOW, {}) for _ in range(6)]
        await asyncio.gather(*(handle.reset(0) for handle in free))
        await asyncio.gather(*(handle.step("go") for handle in free))
        assert module.Slow.most > 2, "other tags have no limit"
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("execution", "env_type", "env_config", "message"),
    [
        ("inline", "envs_under_test.Nobody", {}, "custom_envs.tag.env_type = 'envs_under_test.Nobody': cannot be imported"),
        (
            "inline",
            "frozen_lake",
            {"szie": 3},
            "custom_envs.tag.env_config.szie = 3: FrozenLake has no such key; fix: did you mean size?",
        ),
        ("thread", "envs_under_test.Selfish", {}, "custom_envs.tag.execution = 'thread'"),
    ],
)
def test_bad_configurations_are_found_when_opening(
    execution: Any, env_type: str, env_config: dict[str, Any], message: str
) -> None:
    async def main() -> None:
        await EnvHost(execution).open("tag", env_type, env_config)

    with pytest.raises(ConfigError) as error:
        asyncio.run(main())
    assert message in str(error.value)
