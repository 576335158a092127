"""Does bfloat16 learn as float32 does? The task of `make demo-real`, the same seeds in both, one run after another.

The trainer's masters are float32 on all sides. The table has the mean reward of the first and
of the last quarter of the steps, the share of right answers in the last one, and what the mismatch between engine and trainer
was: the divergence k3 of the sampler's log-probs from the trainer's, in nats per token.

    make smollm2
    python benchmarks/precision_learns.py [--seeds 1 2 3] [--steps 40] [--sides fp32 bf16 bf16_engine bf16_trainer] [override ...]

A run that lies in `--out` already is read and not run again: what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from pipeline_run import RESULTS, Run, read_run, run_pipeline, save_results
from sums import EXAMPLE

LIMIT_S = 3600.0
SIDES = {"fp32": ("fp32", "fp32"), "bf16": ("bf16", "bf16"), "bf16_engine": ("fp32", "bf16"), "bf16_trainer": ("bf16", "fp32")}
"""The types of the trainer and of the engine."""
COLUMNS = ("first", "last", "right", "k3", "step_s")


def run(side: str, seed: int, steps: int, overrides: list[str], out: Path) -> Run:
    folder = out / f"{side}-{seed}-{steps}"
    if (folder / "run" / "summary.json").exists() and (done := read_run(folder / "run")).summary["status"] == "finished":
        return done
    given = [f"{role}.model_args.dtype={dtype}" for role, dtype in zip(("actor_train", "actor_infer"), SIDES[side], strict=True)]
    given += [f"seed={seed}", f"max_steps={steps}", "save_steps=1000000", *overrides]
    return run_pipeline(EXAMPLE / "full.yaml", given, folder, local=True, limit_s=LIMIT_S)


def figures(done: Run) -> dict[str, float]:
    steps = len(done.steps)
    first, last = done.between(0, steps // 4), done.between(steps - steps // 4, steps)

    def mean(key: str, rows: list[dict[str, float]]) -> float:
        return statistics.fmean(row[key] for row in rows)

    return {
        "first": mean("critic/score/mean", first),
        "last": mean("critic/score/mean", last),
        "right": mean("rewards/sums/right/mean", last),
        "k3": mean("actor/train_infer_k3", done.steps),
        "step_s": done.period_s(1, steps) / (steps - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=["fp32", "bf16"])
    parser.add_argument("--out", type=Path, default=RESULTS / "precision_learns")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| type | seed | " + " | ".join(COLUMNS) + " |", flush=True)
    for seed in args.seeds:
        for side in args.sides:
            row = figures(run(side, seed, args.steps, args.overrides, args.out.resolve()))
            rows.append({"side": side, "seed": seed, **row})
            print(f"| {side} | {seed} | " + " | ".join(f"{row[each]:.3g}" for each in COLUMNS) + " |", flush=True)
    save_results("precision_learns", {"steps": args.steps, "overrides": args.overrides, "runs": rows})


if __name__ == "__main__":
    main()
