"""How well does `roll simulate` predict? Twenty configurations that were chosen, and are predicted, before they are run.

Of each job a run at ratio 1 calibrates, and every other configuration of it is predicted from that trace (the mean of some seeds)
before it is run (the mean of `--runs` seeds); both are compared over the later half of their steps. What is there already is not
made again, so the table can be made in pieces, one configuration at a time, while a machine is quiet: the last column has its
load before and after the runs. The table is of all that has been made so far, with the misses: a step time off by more than
10 %, an idle share by more than 5 points.

    python benchmarks/simulate_vs_reality.py [--only "long tails, ratio 4" ...] [--steps 40] [--seeds 3] [--runs 1]
        [--local] [--same_ratio]

`--only` without a name prints the table. Remove a configuration's folder in --out, or a calibration's, to make it again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline_run import LIMIT_S, ROOT, read_run, run_pipeline, save_results

from roll.simulate.figures import steady

FARTHEST, FARTHEST_IDLE = 0.10, 0.05
FIRST_SEED = 42
ROLES = ("actor_train", "actor_infer")
BESIDE = ("num_gpus_per_node=2", "actor_train.device_mapping=0", "actor_infer.device_mapping=1")
SHARED = ("num_gpus_per_node=1", "actor_train.device_mapping=0", "actor_infer.device_mapping=0")
APART = ("num_gpus_per_node=1", "model_update_transport=checkpoint_dir", "groups_database=null")


def batch(groups: int, samples: int) -> tuple[str, ...]:
    """One optimiser step of so many samples."""
    whole = f"actor_train.training_args.per_device_train_batch_size={groups * samples}"
    return f"rollout_batch_size={groups}", f"num_return_sequences_in_group={samples}", whole


def reward(mean_s: float, sigma: float) -> tuple[str, ...]:
    """A judge that takes a lognormal time, and no processor."""
    key = "rewards.arithmetic"
    slow = f"{key}.worker_cls=sync_vs_async.SlowReward", f"{key}.reward_args={{mean_s: {mean_s}, sigma: {sigma}}}"
    return (*slow, f"{key}.max_concurrency=100000", f"{key}.timeout_s=60")


@dataclass(frozen=True)
class Job:
    changes: tuple[str, ...] = ()
    config: str = "rlvr_config_async"
    script: str = "start_rlvr_pipeline.py"
    model: str = "make_embedded.py"
    validation: tuple[str, ...] = ("validation",)
    """The keys without which nothing is validated."""


JOBS = {
    "main job": Job(batch(16, 8)),
    "slow rewards": Job((*batch(16, 8), *reward(0.1, 0.83))),
    "long tails": Job((*batch(16, 8), *reward(0.1, 1.5))),
    "frozen lakes": Job(
        (),
        "agent_val_frozen_lake_async",
        "start_agentic_pipeline.py",
        "make_frozen_lake.py",
        ("val_env_manager", "val_batch_size"),
    ),
}


@dataclass(frozen=True)
class Case:
    job: str
    ratio: float
    changes: tuple[str, ...] = BESIDE
    validates: bool = False
    explorers: int = 0
    """Processes of their own, with an engine each."""


CASES = {
    "main job, ratio 0": Case("main job", 0),
    "main job, ratio 2": Case("main job", 2),
    "main job, ratio 0, one device": Case("main job", 0, SHARED),
    "main job, ratio 1, reference": Case(
        "main job", 1, (*BESIDE, "use_kl_loss=true", "kl_loss_coef=0.01", "reference={device_mapping: 0}")
    ),
    "main job, ratio 1, validation": Case("main job", 1, (*BESIDE, "eval_steps=5", "val_batch_size=64"), validates=True),
    "slow rewards, ratio 0": Case("slow rewards", 0),
    "slow rewards, ratio 0.5": Case("slow rewards", 0.5),
    "slow rewards, ratio 2": Case("slow rewards", 2),
    "slow rewards, ratio 4": Case("slow rewards", 4),
    "slow rewards, ratio 1, one device": Case("slow rewards", 1, SHARED),
    "slow rewards, ratio 1, 4 at once": Case("slow rewards", 1, (*BESIDE, "rewards.arithmetic.max_concurrency=4")),
    "slow rewards, ratio 1, 32 groups": Case("slow rewards", 1, (*BESIDE, *batch(32, 8))),
    "slow rewards, ratio 1, groups of 4": Case("slow rewards", 1, (*BESIDE, *batch(16, 4))),
    "long tails, ratio 0": Case("long tails", 0),
    "long tails, ratio 4": Case("long tails", 4),
    "long tails, ratio 1, 2 redundant": Case("long tails", 1, (*BESIDE, "redundant_groups=2")),
    "frozen lakes, ratio 0": Case("frozen lakes", 0),
    "frozen lakes, ratio 2": Case("frozen lakes", 2),
    "frozen lakes, ratio 0, one device": Case("frozen lakes", 0, SHARED),
    "slow rewards, ratio 2, two explorers": Case("slow rewards", 2, explorers=2),
}


def given(case: Case, steps: int) -> list[str]:
    always = (f"async_generation_ratio={case.ratio:g}", f"max_steps={steps}", "save_steps=1000000")
    return [*JOBS[case.job].changes, *case.changes, *always]


def trace_of(job: str, ratio: float, out: Path, steps: int, local: bool) -> Path:
    """The run that calibrates the job, made if it is not there; at another ratio than 1 with a seed of its own."""
    name, seed = (job, FIRST_SEED) if ratio == 1 else (f"{job}, ratio {ratio:g}", FIRST_SEED - 1)
    run = out / "calibration" / name
    if not (run / "load.json").exists():
        print(f"calibrating: {name}", flush=True)
        subprocess.run([sys.executable, f"examples/embedded/{JOBS[job].model}"], cwd=ROOT, check=True)
        begin = os.getloadavg()[0]
        real(Case(job, ratio, (*BESIDE, f"seed={seed}")), run, steps, local)
        written(run / "load.json", [begin, os.getloadavg()[0]])
    return run / "run"


def predicted(case: Case, trace: Path, steps: int, seeds: int) -> list[dict[str, Any]]:
    """`Figures` of a simulation for each seed."""
    job, paths = JOBS[case.job], os.pathsep.join(filter(None, (str(ROOT), f"{ROOT}/benchmarks", os.environ.get("PYTHONPATH"))))
    named = ["--config_path", str(ROOT / "examples/config"), "--config_name", job.config]
    plain = [] if case.validates else [f"{key}=null" for key in job.validation]
    apart = ["--explorers", str(case.explorers)] if case.explorers else []
    found = []
    for seed in range(seeds):
        changes = [*plain, *given(case, steps), f"seed={seed}"]
        command = [sys.executable, "-m", "roll.cli.main", "simulate", "--trace", str(trace), *named, *apart, "--json", *changes]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths})
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}")
        found.append(json.loads(done.stdout)["predictions"][0]["steady"])
    return found


def real(case: Case, out: Path, steps: int, local: bool) -> dict[str, Any]:
    """`Figures` of a run."""
    job = JOBS[case.job]
    config = ROOT / "examples/config" / f"{job.config}.yaml"
    if case.explorers:
        run_apart(case, config, out, steps)
    else:
        unset = () if case.validates else job.validation
        run_pipeline(config, given(case, steps), out, local, script=job.script, no_validation=unset)
    figures = steady(read_run(out / "run").steps, 1, 0.0).plain()
    if case.explorers:  # as in a simulation, over the whole run
        summaries = [json.loads(file.read_text()) for file in (out / "run/explorers").glob("*/summary.json")]
        figures["idle"]["actor_infer"] = fmean(summary["idle_share"]["actor_infer"] for summary in summaries)
    return figures


def run_apart(case: Case, config: Path, out: Path, steps: int) -> None:
    """A trainer and explorers. Raises `RuntimeError`."""
    out.mkdir(parents=True)
    halves = {"trainer": ["mode=train", "actor_train.device_mapping=0"]}
    for name in (f"explorer-{i}" for i in range(case.explorers)):
        halves[name] = ["mode=explore", "actor_infer.device_mapping=0", f"explorer_name={name}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "HF_HUB_OFFLINE": "1"}
    start = [sys.executable, f"examples/{JOBS[case.job].script}", "--local", f"--config_path={config.parent}"]
    start += [f"--config_name={config.stem}", f"output_dir={out}", "exp_name=run", "track_with=none", "validation=null"]
    processes = []
    try:
        for name, half in halves.items():
            with (out / f"{name}.txt").open("w") as console:
                command = [*start, *given(case, steps), *APART, *half]
                processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=console, stderr=console))
        if any(process.wait(LIMIT_S) for process in processes):
            raise RuntimeError(f"a process failed: {out}/*.txt")
    finally:
        for process in processes:
            process.kill()


def make(name: str, out: Path, steps: int, local: bool, number: int) -> None:
    """Runs what was predicted."""
    file = out / name / f"real {number}.json"
    if file.exists():
        return
    begin, case, seed = os.getloadavg()[0], CASES[name], f"seed={FIRST_SEED + number}"
    print(f"running: {name}, {seed}", flush=True)
    figures = real(replace(case, changes=(*case.changes, seed)), out / name / f"run {number}", steps, local)
    written(file, {"figures": figures, "load": [begin, os.getloadavg()[0]]})


def written(file: Path, value: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1))


def rows(out: Path, prediction: str) -> Iterator[dict[str, Any]]:
    """Of the configurations that are predicted and run."""
    for name in CASES:
        told, seen = out / name / prediction, sorted((out / name).glob("real *.json"))
        if told.exists() and seen:
            yield compared(name, json.loads(told.read_text()), [json.loads(file.read_text()) for file in seen])


def compared(name: str, told: list[dict[str, Any]], seen: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    made, load = [one["figures"] for one in seen], (seen[0]["load"][0], seen[-1]["load"][1])
    found: dict[str, Any] = {key: fmean(one[key] for one in made) for key in ("step_s", "staleness")}
    found["idle"] = {role: fmean(one["idle"][role] for one in made) for role in ROLES}
    step = fmean(one["step_s"] for one in told)
    error = step / found["step_s"] - 1
    idle = {role: fmean(one["idle"][role] for one in told) for role in ROLES}
    gaps = {role: share - found["idle"][role] for role, share in idle.items()}
    misses = [f"step {error:+.0%}"] * (abs(error) > FARTHEST)
    misses += [f"{role} {100 * gap:+.0f} points" for role, gap in gaps.items() if abs(gap) > FARTHEST_IDLE]
    shares = [f"{idle[role]:.0%}, {found['idle'][role]:.0%}" for role in ROLES]
    lag = f"{fmean(one['staleness'] for one in told):.2f}, {found['staleness']:.2f}"
    cells = [
        name,
        f"{step:.3g} s",
        ", ".join(f"{one['step_s']:.3g} s" for one in made),
        f"{error:+.0%}",
        *shares,
        lag,
        ", ".join(misses),
    ]
    line = f"| {' | '.join([*cells, f'{load[0]:.1f}, {load[1]:.1f}'])} |"
    return {"case": name, "line": line, "error": error, "idle_gaps": gaps, "predicted": told, "real": found, "load": load}


def show(out: Path, steps: int, prediction: str) -> None:
    made = list(rows(out, prediction))
    print("\n| run | step predicted | real | error | trainer idle | engines idle | lag | misses | load |\n" + "|---" * 9 + "|")
    print("\n".join(row["line"] for row in made))
    if made:
        within = sum(abs(row["error"]) <= FARTHEST for row in made)
        gaps = [abs(gap) <= FARTHEST_IDLE for row in made for gap in row["idle_gaps"].values()]
        shares = f"{sum(gaps)} of {len(gaps)} idle shares within 5 points"
        print(f"\n{len(made)} of {len(CASES)}: {within} step times within 10 %, {shares}")
        save_results("simulate_vs_reality", {"steps": steps, "rows": made})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3, help="of a prediction")
    parser.add_argument("--runs", type=int, default=1, help="of each configuration")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--local", action="store_true", help="one process instead of Ray's")
    parser.add_argument("--out", type=Path, default=ROOT / "build/simulate_vs_reality")
    parser.add_argument("--same_ratio", action="store_true", help="calibrate at the ratio that is predicted, not at 1")
    options = parser.parse_args()
    prediction = "predicted, same ratio.json" if options.same_ratio else "predicted.json"
    out = options.out / (f"{options.steps} steps" + ", one process" * options.local)
    for name in options.only:
        if not (out / name / prediction).exists():
            case = CASES[name]
            trace = trace_of(case.job, case.ratio if options.same_ratio else 1, out, options.steps, options.local)
            print(f"predicting: {name}", flush=True)
            written(out / name / prediction, predicted(case, trace, options.steps, options.seeds))
    for name, number in itertools.product(options.only, range(options.runs)):
        make(name, out, options.steps, options.local, number)
    show(out, options.steps, prediction)


if __name__ == "__main__":
    main()
