"""How many samples a second the graders judge on two cores, against a process for each sample: prints a table.

Mathematics: `MathRuleRewardWorker`, whose processes stay, against a fork for each sample of a process that has math-verify
loaded and used already. Code: `CodeSandboxRewardWorker`, with every limit that this machine offers, against a new interpreter for
each sample with limits on time and memory alone. Two samples are judged at once on all sides; the sides alternate, and half of
the samples are right. Memory is the most that the processes of a side had at a time (what they share counts once), divided by the
samples that it judged at once; a worker's own processes are part of it.

    python benchmarks/grading.py [--samples 200] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardWorker
from roll.graders.code_judge import same_output
from roll.graders.code_rule import CodeSandboxRewardWorker
from roll.graders.math_grader import grade
from roll.graders.rules import MathRuleRewardWorker
from roll.graders.sandbox.usage import below

AT_ONCE = 2
TRUTHS = (r"\frac{{{0}}}{{7}}", r"{0}\sqrt{{3}}", "{0}", r"({0}, 5)", r"x^2 + {0}x")
PROGRAM = "n = int(input())\nprint(sum(i * i for i in range(n)) + {0})\n"
LIMITS = {"timeout_s": 10.0, "max_concurrency": AT_ONCE}


def math_samples(count: int) -> list[Sample]:
    truths = [TRUTHS[i % len(TRUTHS)].format(i + 11) for i in range(count)]
    said = [truth if i % 2 else truth.replace(str(i + 11), str(i + 12)) for i, truth in enumerate(truths)]
    prompts = [Prompt(str(i), [], "", "", "", truth) for i, truth in enumerate(truths)]
    texts = [f"We find $x = {i}$ on the way, and so the answer is $\\boxed{{{text}}}$." for i, text in enumerate(said)]
    return [_sample(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]


def code_samples(count: int) -> list[Sample]:
    expected = str(sum(i * i for i in range(100)))
    row = {"test_cases": [{"stdin": "100\n", "expected_stdout": expected}]}
    return [_sample(Prompt(str(i), [], "", "", "", "", row), f"```python\n{PROGRAM.format(1 - i % 2)}```") for i in range(count)]


def _sample(prompt: Prompt, text: str) -> Sample:
    return Sample(prompt, 0, [], [], [], "stop", response_text=text)


async def with_worker(worker: RewardWorker, samples: list[Sample]) -> float:
    results = await worker.compute_rewards(samples)
    return _share(result.value for result in results)


def in_forks(samples: list[Sample]) -> float:
    """Forks from one thread alone: a lock that another thread holds would be held in the child for ever."""
    context = multiprocessing.get_context("fork")
    running: dict[Any, Any] = {}
    values = []
    for sample in [*samples, *[None] * AT_ONCE]:
        if len(running) == AT_ONCE or sample is None:
            done: list[Any] = wait(list(running))
            values += [connection.recv() for connection in done]
            for connection in done:
                running.pop(connection).join()
        if sample is not None:
            ours, theirs = context.Pipe(duplex=False)
            item = {"response": sample.response_text, "ground_truth": sample.prompt.ground_truth}
            running[ours] = context.Process(target=_send_grade, args=(theirs, item))
            running[ours].start()
            theirs.close()
    return _share(values)


def _send_grade(connection: Any, item: dict[str, Any]) -> None:
    connection.send(grade(item))


def in_interpreters(samples: list[Sample]) -> float:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return _share(threads.map(_in_interpreter, samples))


def _in_interpreter(sample: Sample) -> float:
    (case,) = sample.prompt.row["test_cases"]
    source = sample.response_text.removeprefix("```python\n").removesuffix("```")
    done = subprocess.run(
        [sys.executable, "-I", "-c", source],
        input=case["stdin"],
        capture_output=True,
        text=True,
        timeout=LIMITS["timeout_s"],
        preexec_fn=_limit,
        check=False,
    )
    return float(same_output(done.stdout, case["expected_stdout"]))


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (4, 4))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def _share(values: Any) -> float:
    found = list(values)
    return sum(value == 1 for value in found) / len(found)


async def measure(samples: int, rounds: int) -> None:
    sides: list[tuple[str, RewardWorker, Callable[[list[Sample]], float], list[Sample]]] = [
        ("math_rule", MathRuleRewardWorker(LIMITS), in_forks, math_samples(samples)),
        ("code_sandbox", CodeSandboxRewardWorker(LIMITS), in_interpreters, code_samples(samples)),
    ]
    print("| grader | samples/s | a process per sample | ratio | MB a sample | a process per sample |\n|---|---|---|---|---|---|")
    for name, worker, process, given in sides:
        await worker.start()
        ours, theirs, our_mb, their_mb = [], [], [0.0], [0.0]
        try:
            await timed(with_worker(worker, given[:20]))
            if process is in_forks:
                for sample in given[:20]:  # what a parser has learnt is in the forks, too
                    grade({"response": sample.response_text, "ground_truth": sample.prompt.ground_truth})
            for _ in range(rounds):
                kept = {*below(os.getpid())}
                ours.append(samples / await timed(with_worker(worker, given)))
                theirs.append(samples / await timed(asyncio.to_thread(process, given)))
            # Looking takes time of its own, so it has a round of its own.
            our_mb.append(await most_mb(with_worker(worker, given), set()))
            their_mb.append(await most_mb(asyncio.to_thread(process, given), kept))
        finally:
            await worker.close()
        one, other = statistics.median(ours), statistics.median(theirs)
        memory = " | ".join(f"{max(found) / AT_ONCE:.0f}" for found in (our_mb, their_mb))
        print(f"| {name} | {one:.0f} | {other:.0f} | {one / other:.1f} | {memory} |", flush=True)


async def most_mb(judging: Coroutine[Any, Any, float], others: set[int]) -> float:
    """The most memory that the processes below this one had together meanwhile, without `others`."""
    most, task = 0.0, asyncio.ensure_future(judging)
    while not (await asyncio.wait({task}, timeout=0.01))[0]:
        most = max(most, sum(map(_own_mb, {*below(os.getpid())} - others)))
    return most


def _own_mb(process: int) -> float:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
    return 0.0


async def timed(judging: Coroutine[Any, Any, float]) -> float:
    """Its seconds. Raises if it is not half of the samples that are right."""
    begin = time.perf_counter()
    share = await judging
    if share != 0.5:
        raise RuntimeError(f"{share:.0%} of the samples are right, not half: the sides do not judge alike")
    return time.perf_counter() - begin


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.samples, arguments.rounds))
