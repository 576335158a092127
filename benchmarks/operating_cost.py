"""What `metrics_address`, scraped every second, costs a step, and a durable turn a turn: runs in pairs, with and without.

Processor time of a whole run is compared, start included: other work on the machine disturbs it less than the seconds; pairs take
turns in their order. Neither cost knows the model, so a tiny one shows it best. `--real` says what it is beside the seconds of a
step, or of one of its samples of eight tokens at most, of SmolLM2-135M (`make smollm2`), as if they never ran at the same time.

    python benchmarks/operating_cost.py [--pairs 5] [--steps 60] [--only metrics] [--real]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

from pipeline_run import ROOT, Run, run_pipeline, save_results

from roll.platform.ports import free_port

CONFIGS = ROOT / "examples/config"


@dataclass(frozen=True)
class Load:
    config: Path
    unit: str
    script: str = "start_rlvr_pipeline.py"
    no_validation: tuple[str, ...] = ("validation",)


RUNS = {
    "metrics": Load(CONFIGS / "rlvr_config_async.yaml", "step"),
    "durable turns": Load(
        CONFIGS / "agent_val_frozen_lake_async.yaml",
        "turn",
        "start_agentic_pipeline.py",
        ("val_env_manager", "val_batch_size"),
    ),
}
REAL, REAL_STEPS, REAL_WARM_UP, REAL_SAMPLES = ROOT / "examples/smollm2/full.yaml", 8, 2, 64


def scraper(port: int) -> Callable[[int], None]:
    def look(_: int) -> None:
        with contextlib.suppress(OSError):  # the run is still starting, or has ended
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()

    return look


def units(load: Load, folder: Path, run: Run) -> int:
    """Steps, or the turns of all episodes: each is a token here."""
    if load.unit == "step":
        return len(run.steps)
    rows = map(json.loads, (folder / "run" / "groups.jsonl").read_text().splitlines())
    return sum(row.get("tokens", 0) for row in rows)


def measured(what: str, on: bool, folder: Path, steps: int) -> tuple[float, int]:
    """Processor seconds of a run, and how many steps or turns it had."""
    load, port = RUNS[what], free_port()
    switch = f"metrics_address=127.0.0.1:{port}" if on else "metrics_address=null"
    if what == "durable turns":
        switch = f"custom_envs.FrozenLake.durable_turns={str(on).lower()}"
    given, look = [f"max_steps={steps}", "save_steps=0", switch], scraper(port) if what == "metrics" and on else None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = run_pipeline(load.config, given, folder, True, load.script, load.no_validation, look)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, units(load, folder, run)


def real_seconds(unit: str) -> float:
    """Seconds of a step or, for a turn, of one of its samples with a real model."""
    with tempfile.TemporaryDirectory() as name:
        run = run_pipeline(REAL, [f"max_steps={REAL_STEPS}", "save_steps=0"], Path(name), False)
    of_step = run.period_s(REAL_WARM_UP, REAL_STEPS) / (REAL_STEPS - REAL_WARM_UP)
    return of_step if unit == "step" else of_step / REAL_SAMPLES


def extra_of_pairs(what: str, pairs: int, steps: int) -> list[float]:
    """Processor seconds that a step or turn has more, in each pair."""
    extra, unit = [], RUNS[what].unit
    for pair in range(pairs):
        found = {}
        for on in (False, True) if pair % 2 else (True, False):
            with tempfile.TemporaryDirectory() as name:
                found[on] = measured(what, on, Path(name), steps)
        extra.append(found[True][0] / found[True][1] - found[False][0] / found[False][1])
        share = found[True][0] / found[False][0] - 1
        print(f"{what} {pair + 1}: {1e3 * extra[-1]:+.2f} ms a {unit}, {share:+.1%} of a run", flush=True)
    return extra


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", choices=RUNS)
    parser.add_argument("--real", action="store_true")
    args = parser.parse_args()
    results: dict[str, dict[str, object]] = {}
    for what in [args.only] if args.only else RUNS:
        extra = extra_of_pairs(what, args.pairs, args.steps)
        mean, error = fmean(extra), stdev(extra) / len(extra) ** 0.5 if len(extra) > 1 else float("nan")
        results[what] = {"extra_s": extra}
        middle = f"median {1e3 * median(extra):+.2f}"
        print(f"{what}: {1e3 * mean:+.2f} ± {1e3 * error:.2f} ms of processor time a {RUNS[what].unit} ({middle})", flush=True)
        if args.real:
            whole = real_seconds(RUNS[what].unit)
            results[what]["of_s"] = whole
            print(f"  of the {1e3 * whole:,.0f} ms with SmolLM2: {mean / whole:+.2%} ± {error / whole:.2%}", flush=True)
    save_results("operating_cost", results)


if __name__ == "__main__":
    main()
