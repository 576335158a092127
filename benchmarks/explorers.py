"""What explorers that are processes of their own add to a run, and what it costs when they come and go.

    python benchmarks/explorers.py [--explorers 1 2 4] [--latency 4] [--steps 24]

A tiny model, and a reward that takes `--latency` seconds as a remote judge would, of which an explorer has `LANES` at once: what
limits an explorer is waiting, not the processor, so explorers on one machine can add up. The first table runs with one, two and
four explorers from the start; groups/s counts from the moment at which all of them have completed a group to the last one. In the
second a second explorer joins when 30 % of the steps are done and is killed with SIGKILL at 60 %: groups/s before, between and
after. Each run has to end well, and `roll verify` has to find nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from roll.core.data.sample import Sample
from roll.core.rewards.worker import RewardWorker

ROOT = Path(__file__).resolve().parents[1]
BATCH, SAMPLES, LANES = 8, 4, 16
APART = ("model_update_transport=checkpoint_dir", "num_gpus_per_node=1", "resume_from_checkpoint=auto", "member_timeout=6")


class RemoteJudge(RewardWorker):
    """Takes its time, and likes texts of an even length."""

    async def grade(self, sample: Sample) -> float:
        await asyncio.sleep(float(self.reward_args["latency_s"]))
        return float(len(sample.response_text) % 2 == 0)


class Run:
    """A run whose processes are started one by one."""

    def __init__(self, folder: Path, name: str, steps: int, latency_s: float, lanes: int) -> None:
        self.folder = folder / name
        self.steps = steps
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()
        self._changes = [
            *APART, f"output_dir={folder}", f"exp_name={name}", f"max_steps={steps}", "validation=null", "save_steps=100000",
            f"rollout_batch_size={BATCH}", f"num_return_sequences_in_group={SAMPLES}", "track_with=none",
            f"actor_train.training_args.per_device_train_batch_size={BATCH * SAMPLES}", f"async_generation_ratio={lanes}",
            f"async_pipeline_depth={lanes}", "rewards.arithmetic.worker_cls=explorers.RemoteJudge",
            f"rewards.arithmetic.max_concurrency={LANES}", f"+rewards.arithmetic.reward_args.latency_s={latency_s}",
        ]  # fmt: skip

    def start(self, name: str, *changes: str) -> None:
        command = [sys.executable, "-m", "roll.cli.main", "train", "rlvr", "--local", "--config_path", "examples/config"]
        command += ["--config_name", "rlvr_config_async", *self._changes, *changes]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'benchmarks'}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def explore(self, name: str) -> None:
        self.start(name, "mode=explore", "actor_infer.device_mapping=0", f"explorer_name={name}")

    def train(self) -> None:
        self.start("trainer", "mode=train", "actor_train.device_mapping=0")

    def kill(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes.pop(name).wait()

    def query(self, query: str) -> list[tuple[float, ...]]:
        try:
            with sqlite3.connect(f"file:{self.folder / 'groups.db'}?mode=ro", uri=True, timeout=30) as connection:
                return connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # the file, or its tables, are not there yet
            return []

    def until(self, what: str, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 900
        while not there():
            failed = [name for name, process in self._processes.items() if process.poll()]
            if failed or time.monotonic() > deadline:
                raise SystemExit(f"{what}: {failed or 'nothing'} ended; see {self.folder}/*.log")
            time.sleep(0.1)

    def until_step(self, step: int) -> None:
        self.until(f"step {step}", lambda: any(trained >= step * BATCH for (trained,) in self.query("SELECT trained FROM runs")))

    def end(self) -> None:
        self.until("the end", lambda: all(process.poll() == 0 for process in self._processes.values()))
        verify = [sys.executable, "-m", "roll.cli.main", "verify", str(self.folder)]
        told = subprocess.run(verify, cwd=ROOT, capture_output=True, text=True, check=False)
        print(f"  {told.stdout.strip().splitlines()[-1] if told.stdout else told.stderr.strip()}", flush=True)
        if told.returncode:
            raise SystemExit(1)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def completed(self, member: str = "%") -> np.ndarray:
        """When groups were completed, in order."""
        return np.array(
            [at for (at,) in self.query(
                f"SELECT completed_at FROM groups WHERE completed_at IS NOT NULL AND member LIKE '{member}' ORDER BY completed_at"
            )]
        )  # fmt: skip


@contextmanager
def new_run(options: argparse.Namespace, name: str, most: int) -> Iterator[Run]:
    """`most`: explorers at the same time. Admission has to let all of their lanes be in use."""
    lanes = -(-most * LANES // (SAMPLES * BATCH)) + 1
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(options.keep or folder), name, options.steps * most, options.latency, lanes)
        try:
            yield run
        finally:
            run.stop()


def scaling(options: argparse.Namespace, explorers: int) -> float:
    """Groups a second of so many explorers."""
    with new_run(options, f"explorers-{explorers}", explorers) as run:
        run.train()
        for i in range(explorers):
            run.explore(f"explorer{i}")
        run.end()
        begin = max(run.completed(f"explorer{i}")[0] for i in range(explorers))
        times = run.completed()
        counted = times[times > begin]
        return float(len(counted) / (counted[-1] - begin))


def join_and_kill(options: argparse.Namespace) -> dict[str, float]:
    """Groups a second with one explorer, with the second that joined, and after that was killed."""
    with new_run(options, "join_and_kill", 2) as run:
        run.train()
        run.explore("explorer")
        run.until_step(int(0.3 * run.steps))
        run.explore("second")
        run.until("the second explorer", lambda: len(run.completed("second")) > 0)
        joined = run.completed("second")[0]
        run.until_step(int(0.6 * run.steps))
        killed = time.time()
        run.kill("second")
        run.end()
        times = run.completed()
        intervals = {"one explorer": (times[0], joined), "two": (joined, killed), "one again": (killed, times[-1])}
        rates = {name: float(((times > a) & (times <= b)).sum() / (b - a)) for name, (a, b) in intervals.items()}
        (lost,) = run.query("SELECT count(*) FROM groups WHERE reason = 'explorer_lost'")
        return rates | {"groups given back": float(lost[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--explorers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--latency", type=float, default=4.0, help="seconds that the judge takes")
    parser.add_argument("--steps", type=int, default=24, help=f"of {BATCH} groups, for each explorer")
    parser.add_argument("--keep", help="keep the runs in this folder")
    parser.add_argument("--only", choices=["scaling", "join_and_kill"])
    options = parser.parse_args()
    ideal = LANES / SAMPLES / options.latency
    results: dict[str, object] = {"ideal groups/s of one": ideal}
    if options.only != "join_and_kill":
        print(f"{'explorers':>10}{'groups/s':>10}{'of linear':>11}", flush=True)
        rates = {count: scaling(options, count) for count in options.explorers}
        first = rates[options.explorers[0]] / options.explorers[0]
        for count, rate in rates.items():
            print(f"{count:>10}{rate:>10.2f}{rate / count / first:>11.2f}", flush=True)
        results["scaling"] = rates
    if options.only != "scaling":
        results["join and kill"] = join_and_kill(options)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
