"""What a step costs more with `metrics_address`, scraped every second, and with durable turns: runs in pairs, with and without.

Processor time of a whole run is compared, start included: other work on the machine disturbs it less than the seconds; pairs
take turns in their order. The model and its steps are tiny, so all shares are larger than those of a model that anybody trains.

    python benchmarks/operating_cost.py [--pairs 5] [--steps 60] [--only metrics]
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, stdev

from pipeline_run import ROOT, run_pipeline, save_results

from roll.platform.ports import free_port

CONFIGS = ROOT / "examples/config"
AGENTS = ("start_agentic_pipeline.py", ("val_env_manager", "val_batch_size"))
RUNS = {
    "metrics": (CONFIGS / "rlvr_config_async.yaml", ("start_rlvr_pipeline.py", ("validation",))),
    "durable turns": (CONFIGS / "agent_val_frozen_lake_async.yaml", AGENTS),
}


def scraper(port: int) -> Callable[[int], None]:
    def look(_: int) -> None:
        with contextlib.suppress(OSError):  # the run is still starting, or has ended
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()

    return look


def measured(what: str, on: bool, folder: Path, steps: int) -> tuple[float, float]:
    """Processor seconds of a run, and the median seconds of its steps."""
    config, (script, without) = RUNS[what]
    port = free_port()
    switch = f"metrics_address=127.0.0.1:{port}" if on else "metrics_address=null"
    if what == "durable turns":
        switch = f"custom_envs.FrozenLake.durable_turns={str(on).lower()}"
    given, look = [f"max_steps={steps}", "save_steps=0", switch], scraper(port) if what == "metrics" and on else None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = run_pipeline(config, given, folder, local=True, script=script, no_validation=without, look=look)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, median(row["time/step_s"] for row in run.steps[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", choices=RUNS)
    args = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {}
    for what in [args.only] if args.only else RUNS:
        rows = results.setdefault(what, [])
        for pair in range(args.pairs):
            found = {}
            for on in (False, True) if pair % 2 else (True, False):
                with tempfile.TemporaryDirectory() as name:
                    found[on] = measured(what, on, Path(name), args.steps)
            rows.append({"processor": found[True][0] / found[False][0] - 1, "step": found[True][1] / found[False][1] - 1})
            print(f"{what} {pair + 1}: processor {rows[-1]['processor']:+.1%}, step {rows[-1]['step']:+.1%}", flush=True)
        shares = [row["processor"] for row in rows]
        error = stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
        print(f"{what}: processor {fmean(shares):+.1%} ± {error:.1%}, step {median(row['step'] for row in rows):+.1%} (median)")
    save_results("operating_cost", results)


if __name__ == "__main__":
    main()
