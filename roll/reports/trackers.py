"""The trackers named in `track_with` are told the metrics of each step. Each has a thread; one that fails while the run goes on
is switched off with a warning, never waited for and never fatal."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from roll.core.configs.redact import HIDDEN, redact, secrets
from roll.core.errors import TrackerError, boundary, contained
from roll.core.record.callbacks import Callback, MetricsRow, Summary
from roll.core.record.live_files import Status
from roll.reports.remote_trackers import MlflowTracker, SwanlabTracker, TensorBoardTracker, TrackedRun, WandbTracker

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        """Values are numbers, or mappings of numbers (histograms). A step may be logged in several parts."""

    def finish(self, status: Status) -> None:
        """Ends the tracker; called once, at the end of the run."""


REMOTE: dict[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "swanlab": SwanlabTracker,
    "mlflow": MlflowTracker,
}


class Background:
    """A tracker on a thread of its own, which may be slow or break without harm to the run.

    It is also made there: some packages take over Ctrl-C, which they cannot do outside the main thread."""

    START_S = 120.0
    PENDING = 1000
    """Steps that may wait for a slow tracker; one that falls further behind is switched off."""
    FINISH_S = 30.0
    """Time that it gets at the end to send the rest."""

    def __init__(self, name: str, make: Callable[[], Tracker], hidden: Iterable[str] = ()) -> None:
        """`hidden`: texts that its messages must not show. Raises `TrackerError` if it cannot start."""
        self.name = name
        self.alive = True
        self._hidden = [text for text in hidden if len(text) > 3]
        self._jobs: queue.Queue[tuple[int, Mapping[str, object]] | Status] = queue.Queue(self.PENDING)
        started: Future[Tracker] = Future()
        self._thread = threading.Thread(target=self._work, args=(make, started), name=f"tracker-{name}", daemon=True)
        self._thread.start()
        try:
            started.result(self.START_S)
        except TrackerError:
            raise
        except TimeoutError:
            self.alive = False
            raise TrackerError(f"track_with: {name} did not start within {self.START_S:.0f} s") from None
        except Exception as error:  # boundary: a foreign package may raise anything, which becomes one line
            raise TrackerError(f"track_with: {name} cannot start: {describe(error, self._hidden)}") from None

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        self._put((step, metrics))

    def finish(self, status: Status) -> None:
        self._put(status)
        self._thread.join(self.FINISH_S if self.alive else 0.0)
        if self.alive and self._thread.is_alive():
            self._switch_off(f"still had steps to send {self.FINISH_S:.0f} s after the end")

    def _put(self, job: tuple[int, Mapping[str, object]] | Status) -> None:
        if not self.alive:
            return
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._switch_off(f"is {self.PENDING} steps behind")

    def _work(self, make: Callable[[], Tracker], started: Future[Tracker]) -> None:
        try:
            tracker = contained(make)
        except Exception as error:  # handed to the thread that waits for the start
            return started.set_exception(error)
        started.set_result(tracker)
        with boundary(self._switch_off, say=partial(describe, hidden=self._hidden)):
            while self.alive:
                job = self._jobs.get()
                if isinstance(job, str):
                    return tracker.finish(job)
                tracker.log(*job)

    def _switch_off(self, why: str) -> None:
        logger.warning("tracker %s is switched off, training goes on (metrics.jsonl has everything): %s", self.name, why)
        self.alive = False  # set last: a reader of this flag may rely on the warning


class Trackers(Callback):
    """The trackers `names` (any of tensorboard, wandb, swanlab, mlflow) of a run."""

    def __init__(
        self,
        names: Iterable[str],
        run_dir: Path,
        exp_name: str,
        config: Mapping[str, object],
        kwargs: Mapping[str, object] | None = None,
        last_step: int = -1,
    ) -> None:
        """`kwargs`: by tracker name, or flat where one tracker is named. `last_step`: the step of the checkpoint that is resumed;
        -1: none. Raises `TrackerError` if a tracker cannot start."""
        names, self._hidden = list(names), [*secrets(config), *secrets(kwargs or {})]
        own = _kwargs_by_name(names, kwargs or {})
        self._make = {name: partial(REMOTE[name], **own[name]) for name in names}
        self._run = TrackedRun(run_dir, exp_name, redact(config), last_step)
        self._begun = False
        self._start()

    def _start(self) -> None:
        self.all = [Background(name, partial(make, self._run), self._hidden) for name, make in self._make.items()]

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        """Cuts steps that are taken back from their curves."""
        if self._begun:
            self.finish("interrupted")
            self._run = replace(self._run, last_step=step)
            self._start()
        self._begun = True
        for tracker in self.all:
            if getattr(REMOTE[tracker.name], "CUTS", False):
                for row in (row for row in rows if row["step"] == self._run.last_step):
                    tracker.log(row["step"], row)

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        for tracker in self.all:
            tracker.log(step, metrics)

    on_validation = on_step

    def on_run_end(self, summary: Summary) -> None:
        self.finish(summary["status"])

    def finish(self, status: Status) -> None:
        for tracker in self.all:
            tracker.finish(status)


def describe(error: BaseException, hidden: Iterable[str]) -> str:
    """Returns one line about an error, in which no secret is repeated."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    for secret in hidden:
        text = text.replace(secret, HIDDEN)
    return text


def _kwargs_by_name(names: list[str], kwargs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    if unknown := [name for name in names if name not in REMOTE]:
        raise TrackerError(f"track_with: unknown tracker {unknown[0]!r}; there are {', '.join(REMOTE)}")
    if all(name in REMOTE for name in kwargs):
        return {name: dict(kwargs.get(name) or {}) for name in names}
    if len(names) > 1:
        raise TrackerError(f"tracker_kwargs: with several trackers, put the options under their names ({', '.join(names)})")
    return {name: dict(kwargs) for name in names}
