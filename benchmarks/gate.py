"""Whether the product has become slower than noise: each part's work beside a yardstick that is not the product's code, in turns,
one thread each.

    training     a step's gradients of groups that share prompts; plain torch, a padded row for each sample
    engine       long-tailed responses; `model.generate` in batches
    weights      from a trainer's weights to a flip in the engine; copies of as many bytes
    driver       the driver's work for 256 groups, on virtual time; a fixed program of Python's own
    grading      programs judged in the sandbox; a new interpreter for each
    run          steps of the main job in one process; the fixed program

A part's speed is its yardstick's seconds over its own, the median over the rounds. `gate.json` has its mean and scatter over
several runs, by processor: ratios of torch and Python differ between these. Red, with exit code 1, is what is slower than the
mean by three standard deviations and by a tenth at least.

    python benchmarks/gate.py [--only driver run] [--rounds 3] [--record 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from driver_at_scale import drive
from engines import SIZES, make_model, save
from grading import LIMITS, CodeSandboxRewardWorker, code_samples, in_interpreters, with_worker
from hf_infer_vs_generate import PROMPT, log_normal_lengths, small_model, with_engine, with_generate
from pipeline_run import ROOT, run_pipeline
from shared_prefixes import BUDGET, batch_of, groups, step

from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainingArguments
from roll.core.data.token_batch import TokenBatch
from roll.core.weights.bucket import manifest_of
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.platform.garbage import searching_young_objects, spare_what_is_there
from roll.strategies.infer.hf.strategy import HFInferStrategy
from roll.strategies.train.fsdp2 import FSDP2Strategy

FIGURES = ROOT / "benchmarks" / "gate.json"
SIZE = "1M"
DEVIATIONS, LEAST = 3.0, 0.10
SLOTS, COPIES, JUDGED, STEPS, BUCKET_BYTES = 32, 4, 40, (5, 25), 64 << 20
Round = Callable[[], tuple[float, float]]
"""Works once -> seconds of the product, of the yardstick."""


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def python_alone() -> None:
    """Objects, dictionaries, pickles, JSON and an event loop: what a driver does."""

    async def many() -> None:
        for number in range(200):
            await asyncio.gather(*(asyncio.sleep(0, result=number) for _ in range(20)))

    asyncio.run(many())
    rows = [{"id": i, "name": f"group {i}", "values": [i, i + 1, float(i)]} for i in range(4000)]
    for _ in range(4):
        pickle.loads(pickle.dumps(rows))
        json.loads(json.dumps(rows))


@contextmanager
def training() -> Iterator[Round]:
    with _strategy(SIZE) as strategy:
        model, vocabulary = make_model(SIZE).train(), SIZES[SIZE]["vocab_size"]
        generator = torch.Generator().manual_seed(1)
        batch = batch_of(groups(lambda n: torch.randint(vocabulary, (n,), generator=generator), 1))
        yield lambda: (step(strategy, batch), seconds(lambda: _plain_gradients(model, batch)))


@contextmanager
def _strategy(size: str) -> Iterator[FSDP2Strategy]:
    arguments = TrainingArguments(lr_scheduler_type="constant")
    with tempfile.TemporaryDirectory() as folder:
        save(make_model(size), folder)
        spec = TrainSpec(
            model_path=folder,
            model=ModelArguments(dtype="fp32"),
            backend=FSDP2Config(),
            optimisation=Optimisation(arguments=arguments, total_steps=None, max_grad_norm=1.0, max_tokens_per_microbatch=BUDGET),
            max_tokens_per_microbatch_infer=BUDGET,
            collective_timeout_s=600.0,
        )
        yield FSDP2Strategy(RankContext(threads=1), spec)


def _plain_gradients(model: Any, batch: TokenBatch) -> None:
    model.zero_grad()
    padded = batch.padded()
    for rows, trained in zip(padded.tokens.split(8), padded.loss_mask.split(8), strict=True):
        logits = model(input_ids=rows, use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        losses[trained[:, 1:].flatten()].sum().backward()


@contextmanager
def engine() -> Iterator[Round]:
    lengths = log_normal_lengths(2 * SLOTS, 30.0, 0.7, 96)
    prompts = [tuple(range(i // 8, i // 8 + PROMPT)) for i in range(len(lengths))]
    with _engine() as ours:
        model = small_model(PROMPT + 96)
        yield lambda: (
            seconds(lambda: with_engine(ours, prompts, lengths)),
            seconds(lambda: with_generate(model, prompts, lengths, SLOTS)),
        )


@contextmanager
def _engine() -> Iterator[HFInferStrategy]:
    ours = HFInferStrategy.from_model(
        small_model(PROMPT + 96), None, max_running_requests=SLOTS, max_length=PROMPT + 96, threads=1
    )
    try:
        yield ours
    finally:
        asyncio.run(ours.close())


@contextmanager
def weights() -> Iterator[Round]:
    with _strategy("50M") as strategy:
        model = make_model("50M")
        ours, versions = HFInferStrategy.from_model(model, None, max_running_requests=1, max_length=64, threads=1), count(1)

        async def update() -> None:
            version, buckets = next(versions), list(strategy.export_weights(BUCKET_BYTES))
            for bucket in buckets:
                await ours.receive_bucket(version, bucket)
            await ours.activate_weights(manifest_of(version, buckets), "interrupt")

        yield lambda: (seconds(lambda: asyncio.run(update())), seconds(lambda: copies(model)))
        asyncio.run(ours.close())


def copies(model: Any) -> None:
    for _ in range(COPIES):
        for parameter in model.parameters():
            parameter.detach().clone()


@contextmanager
def driver() -> Iterator[Round]:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count()
        drive(16, 100, Path(folder) / "imports")

        def ours() -> float:
            found = drive(64, 250, Path(folder) / str(next(numbers)))
            return float(found["s_per_step"])

        yield lambda: (ours(), seconds(python_alone))


@contextmanager
def grading() -> Iterator[Round]:
    samples, worker, loop = code_samples(JUDGED), CodeSandboxRewardWorker(LIMITS), asyncio.new_event_loop()
    loop.run_until_complete(worker.start())
    try:
        yield lambda: (
            seconds(lambda: loop.run_until_complete(with_worker(worker, samples))),
            seconds(lambda: in_interpreters(samples)),
        )
    finally:
        loop.run_until_complete(worker.close())
        loop.close()


@contextmanager
def run() -> Iterator[Round]:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count()
        first, last = STEPS

        def ours() -> float:
            overrides, out = [f"max_steps={last}", "save_steps=1000000"], Path(folder) / str(next(numbers))
            found = run_pipeline(ROOT / "examples/config/rlvr_config_async.yaml", overrides, out, local=True)
            return found.period_s(first, last)

        yield lambda: (ours(), seconds(python_alone))


PARTS = {part.__name__: part for part in (training, engine, weights, driver, grading, run)}


def measured(part: str, rounds: int) -> float:
    """Its speed; a first round is not counted."""
    with PARTS[part]() as once:
        once()
        found = [once() for _ in range(rounds)]
    return statistics.median(yardstick / ours for ours, yardstick in found)


def scatter(speeds: list[float]) -> dict[str, float]:
    """Mean and standard deviation of the logarithm."""
    logs = [math.log(speed) for speed in speeds]
    return {"speed": math.exp(statistics.fmean(logs)), "deviation": statistics.stdev(logs), "runs": len(logs)}


def limit(figures: dict[str, float]) -> float:
    """The least speed that is not slower than noise."""
    return figures["speed"] * min(math.exp(-DEVIATIONS * figures["deviation"]), 1 - LEAST)


def processor() -> str:
    found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("model name", "flags"))]
    amx = "with AMX" if any("amx_tile" in line for line in found) else "without AMX"
    return f"{found[0].partition(': ')[2] if found else 'unknown'}, {amx}"


@searching_young_objects()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=int, metavar="RUNS", help="writes the figures of so many runs, three at least")
    args = parser.parse_args()
    torch.set_num_threads(1)
    spare_what_is_there()
    everything = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    known = everything.setdefault(processor(), {})
    if args.record:
        runs = [{part: measured(part, args.rounds) for part in args.only} for _ in range(max(3, args.record))]
        known |= {part: scatter([one[part] for one in runs]) for part in args.only}
        FIGURES.write_text(json.dumps(everything, indent=2) + "\n")
    if not known:
        print(f"there are no figures for {processor()}: make them on a quiet machine, with --record 5", file=sys.stderr)
        return 2
    slower = []
    print(f"{'part':10}{'speed':>9}{'known':>9}{'least':>9}")
    for part in args.only:
        if part not in known:
            continue
        speed, least = measured(part, args.rounds), limit(known[part])
        slower += [part] if speed < least else []
        verdict = "slower" if speed < least else ""
        print(f"{part:10}{speed:9.3f}{known[part]['speed']:9.3f}{least:9.3f}  {verdict}", flush=True)
    print(f"slower than noise: {', '.join(slower)}" if slower else "nothing is slower than noise")
    return bool(slower)


if __name__ == "__main__":
    sys.exit(main())
