"""Does a long run grow? The main job (embedded task, asynchronous, on Ray, checkpoints and validations as it has them) trains
until the time is over, while the resident memory of every process is read from /proc with the number of the step.

The table has, for each process, its memory after the warm-up and at the end, and the slope of the least-squares line through all
readings between them. A process that is not there from the first to the last of them is marked by its number of readings.

    python benchmarks/memory_over_time.py [--minutes 60] [--warm-up MINUTES] [--every 30] [--folder DIR] [key=value ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline_run import ROOT, save_results
from processes import PAGE, family, name_of

CONFIG = ROOT / "examples/config/rlvr_config_async.yaml"
START_S = 600.0
"""The first step has to come within this time."""


@dataclass(frozen=True, slots=True)
class Reading:
    at_s: float
    """Since the first step."""
    step: int
    rss_mib: float


@dataclass(slots=True)
class Process:
    """Titles of Ray's workers change with every call, and lose what stands before a full stop."""

    names: set[str] = field(default_factory=set)
    readings: list[Reading] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The one that says most."""
        return max(self.names, key=lambda name: (name != "other", "(" not in name, len(name)))


Series = dict[int, Process]
"""By process id; under 0 all together."""


@dataclass(frozen=True, slots=True)
class Growth:
    process: str
    readings: int
    start_mib: float
    end_mib: float
    kib_per_step: float
    mib_per_hour: float


def slope(xs: list[float], ys: list[float]) -> float:
    """Of the least-squares line; 0 where there is only one x."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0


def growth(process: str, readings: list[Reading]) -> Growth:
    memory = [reading.rss_mib for reading in readings]
    by_step = slope([float(reading.step) for reading in readings], memory)
    by_hour = slope([reading.at_s / 3600 for reading in readings], memory)
    return Growth(process, len(readings), memory[0], memory[-1], 1024 * by_step, by_hour)


def read(series: Series, driver: int, at_s: float, step: int) -> float:
    """Adds a reading of every process; returns the memory of all together."""
    total = 0.0
    for pid, title in family(driver).items():
        with contextlib.suppress(OSError):  # it has just ended
            rss_mib = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20
            series[pid].names.add("driver" if pid == driver else name_of(title))
            series[pid].readings.append(Reading(at_s, step, rss_mib))
            total += rss_mib
    series[0].names.add("all together")
    series[0].readings.append(Reading(at_s, step, total))
    return total


def last_step(metrics: Path) -> int:
    """Of the last whole line; 0 before there is one. Only the end of the file is read, however long it has become."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 2**17))
        lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def watch(process: subprocess.Popen[bytes], metrics: Path, minutes: float, every_s: float) -> Series:
    """Raises `RuntimeError` if the run ends by itself."""

    def alive() -> None:
        if (code := process.poll()) is not None:
            raise RuntimeError(f"the run ended with exit code {code}")

    begin = time.monotonic()
    while not last_step(metrics):
        alive()
        if time.monotonic() > begin + START_S:
            raise RuntimeError(f"no step in {START_S:.0f} s")
        time.sleep(0.5)
    began, series = time.monotonic(), defaultdict[int, Process](Process)
    while (at_s := time.monotonic() - began) <= 60 * minutes:
        alive()
        step = last_step(metrics)
        print(f"{at_s / 60:6.1f} min  step {step:>6}  {read(series, process.pid, at_s, step):8.0f} MiB", flush=True)
        time.sleep(max(0.0, began + every_s * len(series[0].readings) - time.monotonic()))
    return dict(series)


def start(folder: Path, overrides: list[str]) -> subprocess.Popen[bytes]:
    always = [f"output_dir={folder}", "exp_name=run", "max_steps=100000000"]
    name = [f"--config_path={CONFIG.parent}", f"--config_name={CONFIG.stem}"]
    command = [sys.executable, "examples/start_rlvr_pipeline.py", *name, *always, *overrides]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    with (folder / "console.txt").open("w") as console:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=console, stderr=subprocess.STDOUT)


def stop(process: subprocess.Popen[bytes]) -> None:
    """By SIGTERM, after a step; by force if that takes minutes."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(180)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="from the first step, the warm-up included")
    parser.add_argument("--warm-up", type=float, help="minutes that are left out; default: a fifth of --minutes, at most 10")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two readings")
    parser.add_argument("--folder", type=Path, help="the run's folder, which stays; default: one that is removed")
    parser.add_argument("overrides", nargs="*", help="key=value of the job")
    args = parser.parse_args()
    warm_up = min(10.0, args.minutes / 5) if args.warm_up is None else args.warm_up

    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        driver = start(folder, args.overrides)
        try:
            series = watch(driver, folder / "run/metrics.jsonl", args.minutes, args.every)
        except RuntimeError as error:
            sys.exit(f"{error}\n{(folder / 'console.txt').read_text()[-3000:]}")
        finally:
            stop(driver)
    settled = {pid: [each for each in process.readings if each.at_s >= 60 * warm_up] for pid, process in series.items()}
    rows = [growth(series[pid].name, readings) for pid, readings in settled.items() if readings]
    if not rows:
        sys.exit(f"no reading after the warm-up of {warm_up:g} minutes")
    last, first = settled[0][-1], settled[0][0]
    minutes, steps = (last.at_s - first.at_s) / 60, last.step - first.step
    print(f"\n{minutes:.1f} minutes and {steps} steps after a warm-up of {warm_up:g} minutes")
    print(f"{'':<28}{'readings':>9}{'start MiB':>11}{'end MiB':>9}{'KiB/step':>10}{'MiB/h':>9}")
    for row in sorted(rows, key=lambda row: -row.end_mib):
        print(
            f"{row.process:<28}{row.readings:>9}{row.start_mib:>11.1f}{row.end_mib:>9.1f}"
            f"{row.kib_per_step:>10.2f}{row.mib_per_hour:>9.2f}"
        )
    told = [{"pid": pid, "name": each.name, "readings": [asdict(one) for one in each.readings]} for pid, each in series.items()]
    save_results("memory_over_time", {"warm_up_min": warm_up, "rows": [asdict(row) for row in rows], "readings": told})


if __name__ == "__main__":
    main()
