"""Runs the product as a user does, in a process of its own, and reads what the run left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIMIT_S = 900.0
"""For one run: several times what it takes on a quiet machine."""


@dataclass(frozen=True)
class Run:
    steps: list[dict[str, float]]
    """The rows of metrics.jsonl that speak of a training step, in order."""
    summary: dict[str, Any]

    def period_s(self, first: int, last: int) -> float:
        """Seconds between the end of step `first` and the end of step `last`. A step waits for its batch, then trains it, and
        the wait of the next begins where it ends; so start-up, checkpoints and what comes after `last` are not in it."""
        return sum(row["time/wait_for_batch_s"] + row["time/step_s"] for row in self.between(first, last))

    def between(self, first: int, last: int) -> list[dict[str, float]]:
        return [row for row in self.steps if first < row["step"] <= last]


def run_pipeline(
    config: Path,
    overrides: list[str],
    out: Path,
    local: bool,
    script: str = "start_rlvr_pipeline.py",
    no_validation: tuple[str, ...] = ("validation",),
    look: Callable[[int], None] | None = None,
    limit_s: float = LIMIT_S,
) -> Run:
    """A start script of `examples` with these overrides. Raises `RuntimeError` with its last words if it fails.
    `no_validation`: the keys without which nothing is validated. `look` is called with the driver's process id, about
    every second while it runs."""
    out.mkdir(parents=True, exist_ok=True)
    name = [f"--config_path={config.parent}", f"--config_name={config.stem}", *(["--local"] if local else [])]
    always = [f"output_dir={out}", "exp_name=run", "track_with=none", "rollout_log_per_step=0"]
    always += [f"{key}=null" for key in no_validation]
    # What the user has there already may be what torch or an engine is found by.
    paths = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, f"examples/{script}", *name, *always, *overrides]
    with (out / "console.txt").open("w") as console:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=console, stderr=subprocess.STDOUT)
        code, end = None, time.monotonic() + limit_s
        while code is None:
            if time.monotonic() > end:
                process.kill()
            if look is not None:
                look(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(1.0)
    if code:
        raise RuntimeError(f"exit code {code} of {' '.join(command)}\n{(out / 'console.txt').read_text()[-3000:]}")
    return read_run(out / "run")


def read_run(folder: Path) -> Run:
    """What a finished run left in `<output_dir>/<exp_name>`."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "time/step_s" in row]
    return Run(steps, json.loads((folder / "summary.json").read_text()))


def save_results(name: str, result: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2))
    print(f"\n{path.relative_to(ROOT)}")
