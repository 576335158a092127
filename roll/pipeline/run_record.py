"""What a run leaves behind, and what it shows while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from roll.data.sample import SampleGroup
from roll.metrics import learning_curve
from roll.metrics.display import Display, RoleLine, RunSnapshot, print_summary
from roll.metrics.ledger import Ledger
from roll.metrics.redact import redact
from roll.metrics.run_log import GroupLog, read_rows
from roll.metrics.sample_log import SampleLog
from roll.metrics.staleness import StalenessStats
from roll.metrics.trackers import make_trackers
from roll.pipeline.run_lock import RunLock, Superseded
from roll.pipeline.stage import State

ACCURACY = "val_correct/all/mean"
SUMMARY = "summary.json"


class RunRecord:
    """The folder `<output_dir>/<exp_name>`: config.yaml, metrics.jsonl, samples.jsonl, groups.jsonl, learning_curve.png,
    trace.json, summary.json; and the display."""

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],
        *,
        exp_name: str,
        trackers: tuple[str, ...],
        tracker_kwargs: Mapping[str, Any],
        samples_per_step: int,
        staleness_bound: int,
        logging_steps: int,
        max_steps: int,
        resumed: Mapping[str, Any] | None,
        clock: Callable[[], float],
        lock: RunLock | None = None,
    ) -> None:
        """`resumed`: the `state()` that a checkpoint of this folder recorded; what was written after it is rolled back. `lock`:
        who lost it leaves the results to its successor."""
        self.run_dir = run_dir
        self._lock = lock
        self._exp_name = exp_name
        self._max_steps = max_steps
        self._clock = clock
        self._started = self._began = clock()
        (run_dir / "config.yaml").write_text(yaml.safe_dump(redact(config), sort_keys=False))
        self.groups = GroupLog(run_dir)
        self._samples = SampleLog(run_dir, samples_per_step)
        self.staleness = StalenessStats(staleness_bound)
        first_step = 0
        if resumed is not None:
            self.staleness.restore(resumed["staleness"])
            first_step = resumed["step"]
        self.groups.rewind(resumed["groups"] if resumed is not None else 0)
        self._samples.rewind(resumed["samples"] if resumed is not None else 0)
        self._trackers = make_trackers(
            trackers,
            run_dir,
            exp_name,
            config,
            tracker_kwargs,
            first_step if resumed is not None else -1,
            resumed.get("metrics", 0) if resumed is not None else 0,
        )
        self.display = Display(logging_steps=logging_steps)
        self.step = self._first_step = first_step
        self._reward: float | None = None
        self._lag: float | None = None
        self.samples = 0
        self.response_tokens = 0
        rows = read_rows(run_dir / "metrics.jsonl")
        self.validation: list[tuple[int, float]] = [(row["step"], row[ACCURACY]) for row in rows if ACCURACY in row]

    def begin(self) -> None:
        """The workers are up: from here the speed of the run is measured."""
        self._began = self._clock()

    def state(self) -> dict[str, Any]:
        """Where the journals stand, for a checkpoint."""
        return {
            "step": self.step,
            "groups": self.groups.position(),
            "samples": self._samples.position(),
            "metrics": self._trackers.position(),
            "staleness": self.staleness.state(),
        }

    def add_step(self, version: int, groups: tuple[SampleGroup, ...], metrics: Mapping[str, float]) -> None:
        """A step on policy version `version` has trained the groups."""
        self.step = version + 1
        lags = self.staleness.add_step(version, groups)
        self._samples.record(self.step, groups)
        self._trackers.log(self.step, {**metrics, **lags})
        self._reward = metrics.get("critic/score/mean")
        self._lag = lags["staleness/mean"]
        self.samples += sum(len(group.samples) for group in groups)
        self.response_tokens += sum(len(sample.response_ids) for group in groups for sample in group.samples)

    def add_validation(self, version: int, metrics: Mapping[str, float]) -> None:
        self._trackers.log(version, metrics)
        self.validation.append((version, metrics[ACCURACY]))

    def show(self, ledger: Ledger, roles: list[str], waits_for: Mapping[str, str], groups: Mapping[str, Any]) -> None:
        """`waits_for`: role -> what it lacks when it waits for input."""
        now = self._clock()
        running = now - self._began
        done = self.step - self._first_step
        present = [role for role in roles if role in ledger.names()]
        lines = []
        for role in present:
            state, since, _ = ledger.current(role)
            reason = waits_for.get(role, "") if state == State.WAITING_INPUT.value else ""
            lines.append(RoleLine(role, state, reason, now - since))
        self.display.update(
            RunSnapshot(
                step=self.step,
                max_steps=self._max_steps,
                elapsed_s=now - self._started,
                eta_s=running / done * (self._max_steps - self.step) if done else None,
                reward=self._reward,
                validation=self.validation,
                staleness_now=self._lag,
                staleness_bound=self.staleness.bound,
                tokens_per_s=self.response_tokens / running if running and done else None,
                roles=lines,
                groups={**groups, "dropped": sum(groups["dropped"].values())},
            )
        )

    def figures(self, wall_s: float) -> dict[str, Any]:
        """Steps, validation, staleness and throughput, for summary.json."""
        seconds = max(wall_s, 1e-9)
        return {
            "steps": self.step,
            "validation": [{"step": step, "accuracy": accuracy} for step, accuracy in self.validation],
            "staleness": self.staleness.summary(),
            "throughput": {
                "samples_per_s": self.samples / seconds,
                "response_tokens_per_s": self.response_tokens / seconds,
            },
        }

    def finish(self, summary: dict[str, Any], ledger: Ledger | None) -> None:
        """Writes the summary, the picture and the trace (chrome://tracing), closes everything, and says where the results are.

        A run whose results cannot be written (a full disk) has failed, and `summary` says so; a picture is not worth that."""
        self.display.close()
        self._trackers.finish(summary["status"])
        self.groups.close()
        self._samples.close()
        try:
            if self._lock is not None:
                self._lock.check()
        except Superseded:
            return
        write_summary(self.run_dir, summary)
        try:
            if ledger is not None:
                (self.run_dir / "trace.json").write_text(json.dumps(ledger.chrome_trace(self._clock())))
            picture = self.run_dir / "learning_curve.png"
            learning_curve.plot(self.run_dir / "metrics.jsonl", picture, self._exp_name, self.staleness.bound)
        except OSError as error:
            self.display.note(f"trace.json and learning_curve.png cannot be written: {error}")
        print_summary(summary, self.run_dir)


def announce_running(run_dir: Path, started: str) -> str:
    """From here on summary.json says that the run runs, not how an earlier one ended. Returns what it says if the driver is
    killed: whoever outlives the driver writes that (`Watchdog`). Raises `OSError`."""
    running = {"status": "running", "reason": "", "host": socket.gethostname(), "pid": os.getpid(), "started": started}
    _replace(run_dir / SUMMARY, json.dumps(running, indent=2))
    why = f"the driver (process {os.getpid()}) was killed, or crashed; what it wrote last is on its standard error"
    return json.dumps(running | {"status": "failed", "reason": why}, indent=2)


def write_summary(run_dir: Path, summary: dict[str, Any]) -> None:
    """If it cannot be written, `summary` becomes that of a run which failed for this reason, if for no other before."""
    path = run_dir / SUMMARY
    try:
        _replace(path, json.dumps(summary, indent=2))
    except OSError as error:
        if summary["status"] != "failed":
            summary |= {"status": "failed", "reason": f"the results cannot be written: {error}"}
        short = json.dumps({"status": "failed", "reason": summary["reason"], "steps": summary.get("steps")})
        # What is there already keeps its place on a full disk.
        with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
            file.write(short.encode())
            file.truncate()


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_text(text)
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def archive_previous(run_dir: Path) -> Path | None:
    """Moves the folder of an earlier run of the same name aside (`<exp_name>.1`, `.2`, ...), so that nothing of it is lost."""
    if not (run_dir / "config.yaml").exists():
        return None
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
        number += 1
    run_dir.rename(aside)
    run_dir.mkdir()
    return aside
