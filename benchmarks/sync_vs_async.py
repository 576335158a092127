"""Synchronous against asynchronous training under a slow reward: does the wall time come down to what the slower half needs?

The embedded task, with a reward that takes a log-normal time a sample (mean 0.3 s, like a remote judge; the same for the same
sample in every run) and any number of samples at once. For each `async_generation_ratio` two runs of the real pipeline:

* the run itself: its wall time, and of that the seconds in which the trainer had a batch in its hands (train busy);
* the same run with a trainer that trains nothing, in no time: how long the rollouts take when they never wait for training
  (rollouts alone; admission, staleness bound, rewards and weight updates are the same).

The bound is max(train busy, rollouts alone). Start-up, the first steps and the last ones are left out.

    python benchmarks/sync_vs_async.py [--local] [--steps 14] [--ratios 0 1 2] [--epochs 1]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline_run import ROOT, Run, run_pipeline, save_results

from roll.core.algorithms.loss import LossSpec
from roll.core.data.sample import Sample
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_interface import BatchTotals
from roll.core.workers.workers import TrainWorker
from roll.graders.rules import ExactMatchRewardWorker

WARM_UP = 5
"""Steps left out at the beginning: first calls, and the depth of the pipeline finds its place."""
WIND_DOWN = 2
"""Steps left out at the end, when no more rollouts are started."""
MEAN_S, SIGMA = 0.3, 0.7
TARGET = 1 / 0.85


class SlowReward(ExactMatchRewardWorker):
    """Takes its time, without using a processor: a remote judge."""

    reads = frozenset({"mean_s", "sigma"})

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._sigma = float(self.reward_args["sigma"])
        self._mu = math.log(float(self.reward_args["mean_s"])) - self._sigma**2 / 2

    async def grade(self, sample: Sample) -> float:
        await asyncio.sleep(random.Random(f"{sample.prompt.uid}/{sample.index}").lognormvariate(self._mu, self._sigma))
        return await super().grade(sample)


class InstantTrainer(TrainWorker):
    """Everything a trainer does but the training."""

    def train(self, batches: Sequence[TokenBatch], loss: LossSpec, totals: Sequence[BatchTotals]) -> list[dict[str, float]]:
        return [{"actor_train/lr": 0.0} for _ in batches]


def overrides(ratio: float, steps: int, epochs: int) -> list[str]:
    reward = "rewards.arithmetic"
    return [
        f"async_generation_ratio={ratio:g}",
        f"max_steps={WARM_UP + steps + WIND_DOWN}",
        f"ppo_epochs={epochs}",
        "save_steps=1000000",
        f"{reward}.worker_cls=sync_vs_async.SlowReward",
        f"{reward}.reward_args={{mean_s: {MEAN_S}, sigma: {SIGMA}}}",
        f"{reward}.max_concurrency=100000",
        f"{reward}.timeout_s=60",
    ]


def measured(ratio: float, run: Run, alone: Run, steps: int) -> dict[str, Any]:
    window = (WARM_UP, WARM_UP + steps)
    wall = run.period_s(*window)
    train = sum(row["time/step_s"] for row in run.between(*window))
    rollouts = alone.period_s(*window)
    bound = max(train, rollouts)
    return {
        "ratio": ratio,
        "wall_s": wall,
        "train_busy_s": train,
        "rollouts_alone_s": rollouts,
        "bound_s": bound,
        "wall_over_bound": wall / bound,
        "staleness": run.summary["staleness"],
        "idle_share": run.summary["idle_share"],
        "depth": [row["scheduler/pipeline_depth"] for row in run.steps],
        "wait_s": [row["time/wait_for_batch_s"] for row in run.steps],
        "step_s": [row["time/step_s"] for row in run.steps],
        "alone_wait_s": [row["time/wait_for_batch_s"] for row in alone.steps],
        "alone_step_s": [row["time/step_s"] for row in alone.steps],
    }


def line(row: dict[str, Any]) -> str:
    lag, idle = row["staleness"], row["idle_share"]
    return (
        f"{row['ratio']:5g} {row['wall_s']:8.1f} {row['train_busy_s']:11.1f} {row['rollouts_alone_s']:15.1f} "
        f"{row['bound_s']:8.1f} {row['wall_over_bound']:10.2f} {lag['mean']:12.2f} {lag['max']:4d} "
        f"{idle['actor_train']:12.0%} {idle['actor_infer']:12.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", action="store_true", help="in one process, without Ray")
    parser.add_argument("--steps", type=int, default=14, help="steps measured")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=1, help="passes over each batch: how long training takes")
    args = parser.parse_args()

    backend = "--local" if args.local else "Ray"
    print(f"reward: log-normal, mean {MEAN_S} s, sigma {SIGMA}; {args.steps} steps, {args.epochs} epochs; {backend}; seconds")
    print(
        f"{'ratio':>5} {'wall':>8} {'train busy':>11} {'rollouts alone':>15} {'bound':>8} {'wall/bound':>10} "
        f"{'lag: mean':>12} {'max':>4} {'idle: train':>12} {'infer':>12}"
    )
    rows = []
    config = ROOT / "examples" / "config" / "rlvr_config_async.yaml"
    with tempfile.TemporaryDirectory() as folder:
        for ratio in args.ratios:
            common = overrides(ratio, args.steps, args.epochs)
            run = run_pipeline(config, common, Path(folder) / f"run-{ratio:g}", args.local)
            instant = [*common, "actor_train.worker_cls=sync_vs_async.InstantTrainer"]
            alone = run_pipeline(config, instant, Path(folder) / f"alone-{ratio:g}", args.local)
            rows.append(measured(ratio, run, alone, args.steps))
            print(line(rows[-1]), flush=True)
    if one := next((row for row in rows if row["ratio"] == 1), None):
        verdict = "met" if one["wall_over_bound"] <= TARGET else "missed"
        print(f"target at ratio 1: wall <= bound / 0.85, that is wall/bound <= {TARGET:.2f}: {verdict}")
    save_results("sync_vs_async" + ("_local" if args.local else ""), {"steps": args.steps, "epochs": args.epochs, "rows": rows})


if __name__ == "__main__":
    main()
