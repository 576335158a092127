"""How well `roll simulate` predicts: runs that are predicted first and then made.

One run of the embedded task under a slow reward calibrates; every other configuration is predicted from its trace before it is
run (the mean of some seeds), and both are compared over the later half of their steps. Ends with the share of step times that
are within 10 % and of the trainer's and the engines' idle shares within 5 points.

    python benchmarks/simulate_vs_reality.py [--steps 30] [--seeds 3] [--only "ratio 2" ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from pipeline_run import ROOT, run_pipeline, save_results
from sync_vs_async import overrides as slow_reward

from roll.simulate.figures import Figures, steady

CALIBRATION = "ratio 1"
BESIDE = ["num_gpus_per_node=2", "actor_train.device_mapping=0", "actor_infer.device_mapping=1"]
SHARED = ["num_gpus_per_node=1", "actor_train.device_mapping=0", "actor_infer.device_mapping=0"]
TWO_ENGINES = ["num_gpus_per_node=3", "actor_train.device_mapping=0", "actor_infer.device_mapping=1,2"]
REFERENCE = ["use_kl_loss=true", "kl_loss_coef=0.01", "reference={device_mapping: 0}"]


def batch(groups: int, samples: int) -> list[str]:
    """One optimiser step of so many samples."""
    whole = f"actor_train.training_args.per_device_train_batch_size={groups * samples}"
    return [f"rollout_batch_size={groups}", f"num_return_sequences_in_group={samples}", whole]


CASES: dict[str, tuple[float, list[str]]] = {
    CALIBRATION: (1, BESIDE),
    "ratio 0": (0, BESIDE),
    "ratio 0.5": (0.5, BESIDE),
    "ratio 2": (2, BESIDE),
    "ratio 4": (4, BESIDE),
    "ratio 0, one device": (0, SHARED),
    "ratio 1, one device": (1, SHARED),
    "two engines, ratio 1": (1, TWO_ENGINES),
    "half the groups, ratio 1": (1, [*BESIDE, *batch(8, 8)]),
    "twice the groups, ratio 1": (1, [*BESIDE, *batch(32, 8)]),
    "twice the groups, ratio 2": (2, [*BESIDE, *batch(32, 8)]),
    "groups of 4, ratio 1": (1, [*BESIDE, *batch(16, 4)]),
    "4 judgements at once, ratio 1": (1, [*BESIDE, "rewards.arithmetic.max_concurrency=4"]),
    "16 judgements at once, ratio 2": (2, [*BESIDE, "rewards.arithmetic.max_concurrency=16"]),
    "two redundant groups, ratio 1": (1, [*BESIDE, "redundant_groups=2"]),
    "reference, ratio 1": (1, [*BESIDE, *REFERENCE]),
    "reference, ratio 0": (0, [*BESIDE, *REFERENCE]),
}


def given(case: str, steps: int) -> list[str]:
    ratio, more = CASES[case]
    always = [f"max_steps={steps}", "rewards.arithmetic.reward_args={mean_s: 0.1, sigma: 0.83}"]
    return [*slow_reward(ratio, steps, 1), *batch(16, 8), *more, *always]


def predicted(trace: Path, case: str, steps: int, seeds: int) -> list[dict[str, Any]]:
    """`Figures` of a simulation for each seed."""
    paths = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH"))))
    found = []
    for seed in range(seeds):
        changes = [*given(case, steps), f"seed={seed}", "validation=null"]
        command = [sys.executable, "-m", "roll.cli.main", "simulate", "--trace", str(trace), "--json", *changes]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths})
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}")
        found.append(json.loads(done.stdout)["predictions"][0]["steady"])
    return found


def real(case: str, steps: int, out: Path) -> Figures:
    run = run_pipeline(ROOT / "examples/config/rlvr_config_async.yaml", given(case, steps), out, local=True)
    config = yaml.safe_load((out / "run" / "config.yaml").read_text())
    return steady(run.steps, config["rollout_batch_size"] * config["num_return_sequences_in_group"], 0.0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args(arguments)
    out = Path(tempfile.mkdtemp(prefix="simulate-"))
    measured = {CALIBRATION: real(CALIBRATION, options.steps, out / CALIBRATION)}
    trace = out / CALIBRATION / "run"
    cases = [case for case in CASES if case in options.only]
    told = {case: predicted(trace, case, options.steps, options.seeds) for case in cases}
    print("| run | step predicted | real | error | trainer idle | engines idle | lag |\n|---|---|---|---|---|---|---|")
    rows = []
    for case in cases:
        if case not in measured:
            measured[case] = real(case, options.steps, out / case)
        row = compared(case, told[case], measured[case])
        rows.append(row)
        print(row["line"], flush=True)
    within = fmean(abs(row["error"]) <= 0.10 for row in rows)
    close = fmean(gap <= 0.05 for row in rows for gap in row["idle_gaps"].values())
    print(f"\nstep times within 10 %: {within:.0%}; idle shares within 5 points: {close:.0%}")
    save_results("simulate_vs_reality", {"steps": options.steps, "rows": rows, "within": within, "idle_close": close})


def compared(case: str, told: Sequence[dict[str, Any]], seen: Figures) -> dict[str, Any]:
    step = fmean(one["step_s"] for one in told)
    error = step / seen.step_s - 1
    idle = {role: fmean(one["idle"][role] for one in told) for role in ("actor_train", "actor_infer")}
    gaps = {role: abs(share - seen.idle[role]) for role, share in idle.items()}
    shares = [f"{idle[role]:.0%}, {seen.idle[role]:.0%}" for role in idle]
    lag = f"{fmean(one['staleness'] for one in told):.2f}, {seen.staleness:.2f}"
    line = f"| {case} | {step:.2f} s | {seen.step_s:.2f} s | {error:+.0%} | {shares[0]} | {shares[1]} | {lag} |"
    return {"case": case, "line": line, "error": error, "idle_gaps": gaps, "predicted": list(told), "real": seen.plain()}


if __name__ == "__main__":
    main()
