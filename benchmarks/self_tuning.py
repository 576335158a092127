"""Does staleness that tunes itself reach an accuracy as soon as the best fixed setting does, which one only knows afterwards?

Three tasks whose rollouts wait for something remote, so that asynchrony pays: additions with a slow judge, additions with a judge
of long tails and a loss that stands little staleness (`tis`), frozen lakes with a slow world. Fixed: `async_generation_ratio`
and `async_pipeline_depth` are the same number. Tuned: rollouts may be up to 8 batches ahead, the depth is `auto`, and depth and
learning rate follow the effective sample size (`staleness_tuning`). `adaptive`: as tuned, without that block.

Time runs from the first step to the end of the step after which a validation, averaged with the one before it, has reached the
task's accuracy. Runs wait most of the time, and two go side by side. Whatever is finished is not run again.

    python benchmarks/self_tuning.py [--tasks "slow judge" ...] [--settings "ratio 1" tuned] [--seeds 1 2 3] [--jobs 2]
"""

from __future__ import annotations

import argparse
import itertools
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline_run import ROOT, Run, read_run, run_pipeline, save_results
from simulate_vs_reality import reward
from slow_lake import CONFIG as LAKE
from slow_lake import slow_lake

ADDITIONS = ROOT / "examples" / "config" / "rlvr_config_async.yaml"
EVAL_STEPS = 5
FARTHEST = 8
TARGET_ESS = 0.95
COLLAPSED = 0.5
"""Of the best accuracy that a run has had: a run that ends with less."""


@dataclass(frozen=True)
class Task:
    config: Path
    overrides: tuple[str, ...]
    accuracy: float
    """To be reached."""
    steps: int
    script: str = "start_rlvr_pipeline.py"
    model: str = "make_embedded.py"


TASKS = {
    "slow judge": Task(ADDITIONS, reward(0.15, 0.83), 0.5, 80),
    "long tails, tis": Task(ADDITIONS, (*reward(0.1, 1.5), "actor_train.pg_variant=tis"), 0.5, 120),
    "slow world": Task(
        LAKE, tuple(slow_lake(mean_s=0.4, sigma=1.0)), 0.65, 30, "start_agentic_pipeline.py", "make_frozen_lake.py"
    ),
}


def fixed(ratio: float) -> tuple[str, ...]:
    return f"async_generation_ratio={ratio:g}", f"async_pipeline_depth={ratio:g}"


SETTINGS = {
    **{f"ratio {ratio:g}": fixed(ratio) for ratio in (0, 1, 2, 4, 8)},
    "adaptive": (f"async_generation_ratio={FARTHEST}",),
    "tuned": (
        f"async_generation_ratio={FARTHEST}",
        f"staleness_tuning={{learning_rate: true, depth: true, target_ess: {TARGET_ESS}}}",
    ),
}


@dataclass(frozen=True)
class Outcome:
    seconds: float | None
    """Until the accuracy was reached; None: it was not."""
    steps: int | None
    final: float
    collapsed: bool
    lag: float
    step_s: float


def outcome(run: Run, accuracy: float) -> Outcome:
    elapsed = {int(row["step"]): row["time/elapsed_s"] for row in run.steps}
    begun = elapsed[1] - run.steps[0]["time/step_s"] - run.steps[0]["time/wait_for_batch_s"]
    points = [(int(point["step"]), point["accuracy"]) for point in run.summary["validation"]]
    reached = next((step for (_, a), (step, b) in itertools.pairwise(points) if (a + b) / 2 >= accuracy), None)
    late = run.steps[len(run.steps) // 2 :]
    final = fmean(value for _, value in points[-2:])
    return Outcome(
        seconds=None if reached is None else elapsed[reached] - begun,
        steps=reached,
        final=final,
        collapsed=final < COLLAPSED * max(value for _, value in points),
        lag=fmean(row["staleness/token_mean"] for row in late),
        step_s=(elapsed[len(run.steps)] - begun) / len(run.steps),
    )


def run_one(name: str, setting: str, seed: int, out: Path) -> Outcome:
    task, folder = TASKS[name], out / name / setting / f"seed {seed}"
    if not (folder / "run" / "summary.json").exists():
        always = [f"seed={seed}", f"max_steps={task.steps}", f"eval_steps={EVAL_STEPS}", "save_steps=1000000"]
        given = [*always, *task.overrides, *SETTINGS[setting]]
        run_pipeline(task.config, given, folder, local=True, script=task.script, no_validation=())
    found = outcome(read_run(folder / "run"), task.accuracy)
    print(f"{name}, {setting}, seed {seed}: {found}", flush=True)
    return found


def line(setting: str, runs: list[Outcome]) -> str:
    seconds = [math.inf if run.seconds is None else run.seconds for run in runs]
    steps = ["–" if run.steps is None else str(run.steps) for run in runs]
    cells = [setting, ", ".join("–" if math.isinf(s) else f"{s:.0f}" for s in seconds), f"{fmean(seconds):.0f}", ", ".join(steps)]
    cells += [f"{fmean(run.final for run in runs):.2f}", str(sum(run.collapsed for run in runs))]
    return f"| {' | '.join([*cells, f'{fmean(run.lag for run in runs):.2f}', f'{fmean(run.step_s for run in runs):.2f} s'])} |"


def show(name: str, found: dict[str, list[Outcome]]) -> dict[str, Any]:
    print(f"\n{name}: accuracy {TASKS[name].accuracy}\n")
    print("| setting | seconds, by seed | mean | steps | final accuracy | collapsed | lag | step |\n" + "|---" * 8 + "|")
    print("\n".join(line(setting, runs) for setting, runs in found.items()))
    means = {setting: fmean(math.inf if run.seconds is None else run.seconds for run in runs) for setting, runs in found.items()}
    best = min((setting for setting in found if setting.startswith("ratio")), key=means.__getitem__, default=None)
    if best is not None and "tuned" in means:
        print(f"\ntuned against {best}: {means['tuned'] / means[best]:.2f}")
    return {setting: [vars(run) for run in runs] for setting, runs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "self_tuning")
    options = parser.parse_args()
    for model in {TASKS[name].model for name in options.tasks}:
        subprocess.run([sys.executable, f"examples/embedded/{model}"], cwd=ROOT, check=True)
    cells = [(name, setting, seed) for name in options.tasks for seed in options.seeds for setting in options.settings]
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = dict(zip(cells, pool.map(lambda cell: run_one(cell[0], cell[1], cell[2], options.out), cells), strict=True))
    tables = {
        name: show(name, {setting: [outcomes[name, setting, seed] for seed in options.seeds] for setting in options.settings})
        for name in options.tasks
    }
    save_results("self_tuning", tables)


if __name__ == "__main__":
    main()
