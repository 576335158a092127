"""Programs that a model might find profitable: none earns what it has not earned, none harms the judge or another sample."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_programs import answering, deceiving, endless, escaping, forged, greedy, leaving, touching

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardResult
from roll.graders.code_rule import CodeSandboxRewardWorker
from roll.graders.sandbox.usage import below

LIMIT_S = 3.0
CPU_S = 1
PRINTED = [{"stdin": "8", "expected_stdout": "right 8731"}]
CALLED = {"fn_name": "f", "inputs": [[8]], "outputs": [8731]}
ASSERTED = ["assert f(8) == 8731", "from solution import f\ndef test_it():\n    assert isinstance(f(8), int) and f(8) == 8731"]


def sample(text: str, tests: Any) -> Sample:
    prompt = Prompt("code/0/1", [1], "?", "code", "code", "", {"test_cases": tests})
    return Sample(prompt, 0, [2], [0.0], [], "stop", response_text=f"```python\n{text}\n```")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("8731")
    return path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        yield server


def state_of(secret: Path) -> list[object]:
    """What a program could change of a file and its folder."""
    seen = [
        (each.stat().st_mode, each.stat().st_mtime_ns, each.stat().st_uid, os.listxattr(each)) for each in (secret, secret.parent)
    ]
    return [seen, sorted(os.listdir(secret.parent))]


def state_of_process() -> list[object]:
    """What a program could change of its judge's process."""
    limits = [resource.getrlimit(kind) for kind in range(16)]
    return [limits, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.sched_getscheduler(0)]


def test_no_program_earns_or_harms_anything(secret: Path, listener: socket.socket) -> None:
    quick = [*forged(), *leaving(), *deceiving(), *answering(), *escaping(secret, listener.getsockname()[1]), *greedy()]
    quick += touching(secret, os.getpid())
    assert len({*quick, *endless()}) >= 300
    tests = [PRINTED, CALLED, ASSERTED]
    hostile = [sample(text, tests[i % 3]) for i, text in enumerate(quick)]
    hostile += [sample(text, tests[i % 3]) for i, text in enumerate(endless())]
    honest = sample("print('right', int(input()) + 8723)\n", PRINTED)
    arguments = {"cpu_s": CPU_S, "memory_mb": 512}
    config = {"timeout_s": LIMIT_S, "max_concurrency": 2, "reward_args": arguments}

    async def timed(worker: CodeSandboxRewardWorker, graded: Sample) -> tuple[RewardResult, float]:
        begin = time.monotonic()
        return await worker.result(graded), time.monotonic() - begin

    async def main() -> tuple[list[RewardResult], list[float], list[RewardResult]]:
        worker = CodeSandboxRewardWorker(config)
        await worker.start()
        try:
            batch = [honest] * 20
            await worker.compute_rewards(batch)
            before = len([*below(os.getpid())])
            lanes = await asyncio.gather(*(_in_turn(worker, hostile[i::2], honest, timed) for i in range(2)))
            after = await worker.compute_rewards(batch)
            async with asyncio.timeout(20):  # a program that has ended is gone a moment later; one that runs on stays
                while len([*below(os.getpid())]) > before:
                    await asyncio.sleep(0.02)
        finally:
            await worker.close()
        judged = [pair for lane in lanes for pair in lane[0]]
        neighbours = [result for lane in lanes for result in lane[1]] + after
        return [result for result, _ in judged], [seconds for _, seconds in judged], neighbours

    threads = threading.active_count()
    before_files, before_process = state_of(secret), state_of_process()
    results, seconds, neighbours = asyncio.run(main())
    in_order = [*hostile[0::2], *hostile[1::2]]
    earned = [graded.response_text for graded, result in zip(in_order, results, strict=True) if result.value != 0.0]
    assert not earned, f"{len(earned)}: {[result for result in results if result.value != 0.0][:3]} {earned[:3]}"
    assert max(seconds) < LIMIT_S + 5.0, in_order[seconds.index(max(seconds))].response_text
    assert {result.value for result in neighbours} == {1.0}
    assert threading.active_count() == threads
    assert secret.read_text() == "8731"
    assert (before_files, before_process) == (state_of(secret), state_of_process())
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not [name for name in os.listdir("/tmp") if name in ("evil", "link", "disk")]


async def _in_turn(
    worker: CodeSandboxRewardWorker, samples: list[Sample], honest: Sample, timed: Any
) -> tuple[list[tuple[RewardResult, float]], list[RewardResult]]:
    """Each hostile sample, and an honest one after every tenth."""
    judged, neighbours = [], []
    for i, graded in enumerate(samples):
        judged.append(await timed(worker, graded))
        if i % 10 == 0:
            neighbours.append(await worker.result(honest))
    return judged, neighbours
