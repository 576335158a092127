"""This project's RLVR pipeline against TRL's GRPOTrainer on the same CPU cores: trained samples a second.

Same model (random Qwen2, 0.8 M parameters), prompts, group size, response lengths (long-tailed, see letters.py), reward, loss
(GRPO, clipped, beta 0), AdamW, and one optimiser step a batch of 128 samples, in float32. The sides alternate, each run in a
process of its own on the same two cores. Start-up and the first steps are left out on both sides; on ours also the last ones, so
that what was rolled out ahead before the first measured step is made up for after the last.

* pipeline: the real one on Ray, asynchronous (ratio 1): trainer and engine, one thread each
* local: the same in one process (--local)
* trl: GRPOTrainer is one process that generates and trains in turn, so it gets both threads

    make bench-env    # TRL has an environment of its own: .venv-bench, from requirements/bench.txt
    python benchmarks/rlvr_vs_trl.py [--rounds 2] [--steps 10] [--hidden 128] [--layers 4] [--sides pipeline local trl]
    python benchmarks/rlvr_vs_trl.py --model examples/smollm2/cache/model [--steps 40] [--accuracy 0.3]

With `--model` the task of `make demo-real` is trained, both sides in bf16 with masters in float32, and the table also says how
long each side took to the same accuracy: from the beginning of its first step until `--accuracy` of the answers of five steps
were right. With each run stands the machine's load at its begin and end: figures of a busy machine are not those of a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import letters
import sums
from pipeline_run import LIMIT_S, ROOT, run_pipeline, save_results

from roll.core.data.sample import Sample
from roll.core.rewards.worker import RewardWorker

CORES = 2
WIND_DOWN = 2
TARGET = 1.3


class LetterReward(RewardWorker):
    async def grade(self, sample: Sample) -> float:
        return letters.reward(sample.response_text)


CONFIGS = {
    "letters": (ROOT / "benchmarks" / "letters.yaml", "prompts.jsonl", ()),
    "sums": (sums.EXAMPLE / "full.yaml", "train.jsonl", ("actor_train.training_args.warmup_steps=0", "save_steps=1000000")),
}
"""By load: its configuration on our side, its file of prompts, what else is overridden."""


def ours(load: Any, folder: Path, out: Path, steps: int, seed: int, local: bool) -> dict[str, Any]:
    first, last = load.WARM_UP, load.WARM_UP + steps
    config, prompts, others = CONFIGS[load.__name__]
    overrides = [
        f"max_steps={last + WIND_DOWN}",
        f"seed={seed}",
        f"pretrain={folder / 'model'}",
        f"actor_train.data_args.file_name={folder / prompts}",
        *others,
    ]
    run = run_pipeline(config, overrides, out, local)
    rows = run.between(first, last)

    def mean(key: str) -> float:
        return statistics.fmean(row[key] for row in rows)

    return {
        "seconds": run.period_s(first, last),
        "length_mean": mean("tokens/response_length/mean"),
        "length_max": max(row["tokens/response_length/max"] for row in rows),
        "cut_off": mean("tokens/response_length/clip"),
        "reward": mean("critic/score/mean"),
        "waited": sum(row["time/wait_for_batch_s"] for row in rows),
        "staleness": mean("staleness/mean"),
        "ends": [run.period_s(0, int(row["step"])) for row in run.between(0, last)],
        "right": [row.get("rewards/sums/right/mean", 0.0) for row in run.between(0, last)],
    }


def trl(load: Any, python: Path, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    side, limit = ROOT / "benchmarks" / "trl_side.py", LIMIT_S + 60 * steps
    command = [str(python), str(side), str(folder), str(steps), str(CORES), str(seed), load.__name__]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of {' '.join(command)}\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    args = arguments()
    if "trl" in args.sides and not args.trl_python.exists():
        sys.exit(f"error: {args.trl_python} is missing: make it with `make bench-env`, or leave trl out of --sides")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # the processes started from here inherit it

    load: Any = sums if args.model else letters
    samples = args.steps * load.PROMPTS_PER_STEP * load.GROUP
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.model:
            sums.make(folder, args.model)
        else:
            prompts = letters.PROMPTS_PER_STEP * (letters.WARM_UP + args.steps + WIND_DOWN)
            print(f"{letters.make(folder, args.hidden, args.layers, prompts) / 1e6:.2f} M parameters")
        print(f"{args.rounds} rounds of {args.steps} steps of {samples // args.steps} samples", flush=True)
        results = all_runs(args, load, folder, samples)
    print(table(results, samples))
    if args.model:
        print(to_accuracy(results, args.accuracy))
    save_results("rlvr_vs_trl", {"load": load.__name__, "samples": samples, "runs": results})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="steps measured in each run")
    parser.add_argument("--model", type=Path, help="of make_model.py: a real one, with its task")
    parser.add_argument("--accuracy", type=float, default=0.3, help="--model: the share of right answers that is to be reached")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sides", nargs="+", default=["pipeline", "local", "trl"], choices=["pipeline", "local", "trl"])
    parser.add_argument("--trl-python", type=Path, default=ROOT / ".venv-bench" / "bin" / "python")
    args = parser.parse_args()
    if args.model and not (args.model.parent / "train.jsonl").exists():
        parser.error(f"--model {args.model}: there is no train.jsonl beside it; make it with `make smollm2`")
    return args


def all_runs(args: argparse.Namespace, load: Any, folder: Path, samples: int) -> dict[str, list[dict[str, Any]]]:
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in args.sides}
    for number in range(args.rounds):
        runs: dict[str, Callable[[], dict[str, Any]]] = {
            "pipeline": lambda: ours(load, folder, folder / f"pipeline-{number}", args.steps, number, local=False),  # noqa: B023
            "local": lambda: ours(load, folder, folder / f"local-{number}", args.steps, number, local=True),  # noqa: B023
            "trl": lambda: trl(load, args.trl_python, folder, args.steps, number),  # noqa: B023
        }
        for side in args.sides:
            begin = os.getloadavg()[0]
            result = runs[side]() | {"machine_load": [begin, os.getloadavg()[0]]}
            results[side].append(result)
            rate = samples / result["seconds"]
            loads = " → ".join(f"{each:.1f}" for each in result["machine_load"])
            print(f"  round {number + 1} {side:9} {rate:7.1f} samples/s, load average {loads}", flush=True)
    return results


def to_accuracy(results: dict[str, list[dict[str, Any]]], accuracy: float) -> str:
    lines = [f"\nseconds until {accuracy:.0%} of the answers of {sums.OVER} steps were right, by round:"]
    for side, runs in results.items():
        found = [sums.seconds_to(accuracy, run["right"], run["ends"]) for run in runs]
        told = [
            f"{each:.0f} s" if each is not None else f"not in {run['ends'][-1]:.0f} s"
            for each, run in zip(found, runs, strict=True)
        ]
        lines.append(f"  {side:9} {', '.join(told)}")
    return "\n".join(lines)


def table(results: dict[str, list[dict[str, Any]]], samples: int) -> str:
    described = {
        "pipeline": "pipeline (Ray, ratio 1): 1 + 1 threads",
        "local": "local (--local, ratio 1): 1 + 1 threads",
        "trl": f"trl GRPOTrainer: {CORES} threads",
    }
    rate = {side: statistics.median(samples / run["seconds"] for run in runs) for side, runs in results.items()}
    lines = [f"\n{'side':40} {'samples/s':>10} {'/ trl':>7} {'response: mean':>15} {'max':>5} {'cut off':>8} {'reward':>7}"]
    for side, runs in results.items():
        mean = {key: statistics.fmean(run[key] for run in runs) for key in ("length_mean", "length_max", "cut_off", "reward")}
        ratio = f"{rate[side] / rate['trl']:6.2f}x" if "trl" in rate else "      -"
        lines.append(
            f"{described[side]:40} {rate[side]:10.1f} {ratio} {mean['length_mean']:15.1f} {mean['length_max']:5.0f} "
            f"{mean['cut_off']:8.1%} {mean['reward']:7.4f}"
        )
    if {"pipeline", "trl"} <= rate.keys():
        ratio_met = rate["pipeline"] / rate["trl"] >= TARGET
        lines.append(f"target: pipeline / trl >= {TARGET}: {'met' if ratio_met else 'missed'}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
