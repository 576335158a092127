"""What runs at the same time: rollouts, scores and training, with times that are scripted instead of worked for.

The real pipeline on the embedded task, in one process, with workers that sleep: a reward that takes as long as its sample's
generation is scripted to take, those who score, and a trainer. Processor time hardly enters; every section compares runs of this
script with each other.

    python benchmarks/overlap.py [--steps 12] [--only equal reference log_prob tail arrival]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pipeline_run import ROOT, run_pipeline, save_results
from torch import Tensor

from roll.core.algorithms.loss import LossSpec
from roll.core.data.sample import Sample
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_interface import BatchTotals
from roll.core.workers.workers import LogProbWorker, TrainWorker
from roll.graders.rules import ExactMatchRewardWorker

WARM_UP, WIND_DOWN = 8, 3
TRAIN_S, SCORE_S = "SCRIPTED_TRAIN_S", "SCRIPTED_SCORE_S"
"""Environment variables: seconds of a whole batch."""
GROUPS, SAMPLES = 8, 4
"""Of a step, and of a group."""
REFERENCE = ["use_kl_loss=true", "kl_loss_coef=0.01", "reference.worker_cls=overlap.ScriptedReference"]
RECOMPUTE = "old_logprobs=recompute"
LONG = 20
"""How many times as long as the others one response in a hundred takes."""


class ScriptedReward(ExactMatchRewardWorker):
    """`spread: constant` takes `mean_s`; `group`: up to `mean_s`, all samples of a group the same; `tail`: one sample in a
    hundred takes 20 times `mean_s`."""

    reads = frozenset({"mean_s", "spread"})

    async def grade(self, sample: Sample) -> float:
        mean_s, spread = float(self.reward_args["mean_s"]), self.reward_args["spread"]
        if spread == "group":
            mean_s *= random.Random(sample.prompt.uid).random()
        elif spread == "tail" and random.Random(f"{sample.prompt.uid}/{sample.index}").random() < 0.01:
            mean_s *= LONG
        await asyncio.sleep(mean_s)
        return await super().grade(sample)


class ScriptedTrainer(TrainWorker):
    def train(self, batches: Sequence[TokenBatch], loss: LossSpec, totals: Sequence[BatchTotals]) -> list[dict[str, float]]:
        time.sleep(float(os.environ[TRAIN_S]))
        return [{"actor_train/lr": 0.0} for _ in batches]

    def add_gradients(self, batch: TokenBatch, loss: LossSpec) -> None:
        time.sleep(float(os.environ[TRAIN_S]) * len(batch) / (GROUPS * SAMPLES))

    def step_on_gradients(self, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        return {"actor_train/lr": 0.0}

    def log_probs(self, batch: TokenBatch) -> Tensor:
        return scored(batch)


class ScriptedReference(TrainWorker):
    def log_probs(self, batch: TokenBatch) -> Tensor:
        return scored(batch)


class ScriptedCopy(LogProbWorker):
    def log_probs(self, batch: TokenBatch) -> Tensor:
        return scored(batch)


def scored(batch: TokenBatch) -> Tensor:
    time.sleep(float(os.environ[SCORE_S]))
    return torch.zeros(batch.num_tokens)


class Bench:
    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        self.rows: list[dict[str, Any]] = []

    def step_s(
        self,
        name: str,
        mean_s: float,
        train_s: float,
        *more: str,
        ratio: float = 1,
        score_s: float = 0.0,
        spread: str = "constant",
    ) -> float:
        """Seconds of a step, from one end to the next."""
        os.environ |= {TRAIN_S: str(train_s), SCORE_S: str(score_s)}
        reward = "rewards.arithmetic"
        overrides = {
            "num_gpus_per_node": 3,
            "async_generation_ratio": ratio,
            "max_steps": WARM_UP + self._steps + WIND_DOWN,
            "save_steps": 1000000,
            "rollout_batch_size": GROUPS,
            "num_return_sequences_in_group": SAMPLES,
            "actor_train.training_args.per_device_train_batch_size": GROUPS * SAMPLES,
            "actor_train.worker_cls": "overlap.ScriptedTrainer",
            f"{reward}.worker_cls": "overlap.ScriptedReward",
            f"{reward}.reward_args": f"{{mean_s: {mean_s}, spread: {spread}}}",
            f"{reward}.max_concurrency": 100000,
            f"{reward}.timeout_s": 60,
        }
        given = [f"{key}={value}" for key, value in overrides.items()]
        config = ROOT / "examples" / "config" / "rlvr_config_async.yaml"
        run = run_pipeline(config, [*given, *more], self._folder / str(len(self.rows)), local=True)
        seconds = run.period_s(WARM_UP, WARM_UP + self._steps) / self._steps
        lag = run.summary["staleness"]
        self.rows.append({"name": name, "step_s": seconds, "lag_mean": lag["mean"], "lag_max": lag["max"]})
        print(f"  {name:<58} {seconds:6.2f} s a step   lag mean {lag['mean']:.2f}, max {lag['max']}", flush=True)
        return seconds


def equal(bench: Bench) -> None:
    seconds = 2.0
    print(f"generation {seconds:g} s, training {seconds:g} s")
    bench.step_s("ratio 0", seconds, seconds, ratio=0)
    both = bench.step_s("ratio 1", seconds, seconds)
    print(f"  ratio 1 takes {both / seconds:.3f} x the larger; target <= 1.05")


def reference(bench: Bench) -> None:
    shared, own = "reference.device_mapping=0", "reference.device_mapping=2"
    for ratio, mean_s in ((1, 0.1), (3, 1.15)):
        print(f"training 1.15 s, reference 0.95 s, generation {mean_s:g} s, ratio {ratio}")
        without = bench.step_s("without a reference", mean_s, 1.15, ratio=ratio)
        bench.step_s("reference on the device of actor_train", mean_s, 1.15, *REFERENCE, shared, score_s=0.95, ratio=ratio)
        ahead = bench.step_s("reference on a device of its own", mean_s, 1.15, *REFERENCE, own, score_s=0.95, ratio=ratio)
        print(f"  on its own device it costs {ahead / without - 1:.1%} of a step; target <= 5 %")


def log_prob(bench: Bench) -> None:
    role = ["actor_log_prob.device_mapping=2", "actor_log_prob.worker_cls=overlap.ScriptedCopy"]
    for ratio, mean_s in ((1, 0.1), (3, 1.15)):
        print(f"training 1.15 s, old log-probs 0.95 s, generation {mean_s:g} s, ratio {ratio}")
        without = bench.step_s("the sampler's", mean_s, 1.15, ratio=ratio)
        bench.step_s("recomputed by actor_train", mean_s, 1.15, RECOMPUTE, score_s=0.95, ratio=ratio)
        own = bench.step_s("by actor_log_prob, of the version before", mean_s, 1.15, RECOMPUTE, *role, score_s=0.95, ratio=ratio)
        print(f"  in a role of their own they cost {own / without - 1:.1%} of a step")


def tail(bench: Bench) -> None:
    print(f"generation 0.1 s, one response in a hundred {LONG} times as long; training 1 s; 25 x 4 responses a step")
    batch = ["rollout_batch_size=25", "actor_train.training_args.per_device_train_batch_size=100"]
    in_turn = bench.step_s("ratio 0", 0.1, 1.0, *batch, ratio=0, spread="tail")
    for ratio in (1, 2):
        ahead = bench.step_s(f"ratio {ratio}", 0.1, 1.0, *batch, ratio=ratio, spread="tail")
        print(f"  {in_turn / ahead - 1:.0%} more steps in the same time; {in_turn - 1:.0%} if the trainer never waited")


def arrival(bench: Bench) -> None:
    print("on-policy: generation of a group up to 1 s, training 1 s")
    generation = bench.step_s("ratio 0, training takes no time", 1.0, 0.0, ratio=0, spread="group")
    whole = bench.step_s("ratio 0", 1.0, 1.0, ratio=0, spread="group")
    arriving = bench.step_s("ratio 0, train_on_arrival", 1.0, 1.0, "train_on_arrival=true", ratio=0, spread="group")
    print(f"  generation + training: {generation + 1:.2f} s; whole batches {whole:.2f} s, on arrival {arriving:.2f} s")
    print(f"  groups that come at random times up to 1 s and train for 1/{GROUPS} s each, one after the other: {queued():.2f} s")


def queued() -> float:
    """When the last group is trained, on average."""
    rng = random.Random(0)
    draws = [sorted(rng.random() for _ in range(GROUPS)) for _ in range(20000)]
    return sum(max(at + (GROUPS - i) / GROUPS for i, at in enumerate(draw)) for draw in draws) / len(draws)


SECTIONS = {"equal": equal, "reference": reference, "log_prob": log_prob, "tail": tail, "arrival": arrival}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="steps measured")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    args = parser.parse_args()
    results: Mapping[str, list[dict[str, Any]]] = {name: [] for name in args.only}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            bench = Bench(Path(folder) / name, args.steps)
            SECTIONS[name](bench)
            results[name].extend(bench.rows)
    save_results("overlap", {"steps": args.steps, "sections": results})


if __name__ == "__main__":
    main()
