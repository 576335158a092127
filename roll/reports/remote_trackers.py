"""The back ends of other projects behind the `Tracker` interface. Their packages are imported when one is made, not before.

Every class takes the run it belongs to and the user's `tracker_kwargs`, which win over the defaults set here. A resumed run
continues under its old id. Steps may arrive out of order: a validation ends while later steps train."""

from __future__ import annotations

import importlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from roll.core.errors import TrackerError


@dataclass(frozen=True, slots=True)
class TrackedRun:
    run_dir: Path
    exp_name: str
    config: Mapping[str, Any]
    """Without secrets."""
    last_step: int
    """Last step of the checkpoint that is resumed; -1 for a fresh run."""

    def remembered_id(self, tracker: str) -> str | None:
        """Returns the id under which `tracker` knows the run that is resumed."""
        return None if self.last_step < 0 else self._ids().get(tracker)

    def remember_id(self, tracker: str, run_id: str) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._ids_path.write_text(json.dumps({**self._ids(), tracker: run_id}, indent=2) + "\n")

    @property
    def _ids_path(self) -> Path:
        return self.run_dir / "tracker_ids.json"

    def _ids(self) -> dict[str, str]:
        return json.loads(self._ids_path.read_text()) if self._ids_path.exists() else {}


class TensorBoardTracker:
    CUTS = True
    """Takes back the last step, too, whose validation may be made again: all that the run knows of it is logged anew."""

    def __init__(self, run: TrackedRun, **kwargs: object) -> None:
        tensorboard = load("tensorboard", "torch.utils.tensorboard")
        defaults = {"log_dir": str(run.run_dir / "tensorboard"), "purge_step": max(run.last_step, 0)}
        self._writer = tensorboard.SummaryWriter(**(defaults | kwargs))

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        for name, value in scalars(metrics):
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, status: str) -> None:
        self._writer.close()


class WandbTracker:
    def __init__(self, run: TrackedRun, **kwargs: object) -> None:
        wandb = load("wandb")
        if api_key := kwargs.pop("api_key", None):
            kwargs["settings"] = wandb.Settings(api_key=api_key)
        run_id = run.remembered_id("wandb") or uuid.uuid4().hex[:12]
        defaults = {"project": "roll", "name": run.exp_name, "dir": str(run.run_dir), "id": run_id, "resume": "allow"}
        self._run = wandb.init(**(defaults | kwargs), config=dict(run.config))
        run.remember_id("wandb", self._run.id)
        # wandb's own step counter cannot go back; a metric named step, which is the x axis of all others, can.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        self._run.log({"step": step, **dict(scalars(metrics))})

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


class SwanlabTracker:
    STATES: ClassVar = {"finished": "success", "stopped": "aborted", "failed": "crashed", "interrupted": "aborted"}

    def __init__(self, run: TrackedRun, **kwargs: Any) -> None:
        self._swanlab = load("swanlab")
        if login := kwargs.pop("login_kwargs", None):
            self._swanlab.login(**login)
        run_id = run.remembered_id("swanlab") or uuid.uuid4().hex[:21]
        defaults = {"project": "roll", "experiment_name": run.exp_name, "logdir": str(run.run_dir / "swanlog")}
        if kwargs.get("mode", "cloud") in ("cloud", "online", "offline"):
            defaults |= {"id": run_id, "resume": "allow"}
        self._swanlab.init(**(defaults | kwargs), config=dict(run.config))
        run.remember_id("swanlab", run_id)

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        self._swanlab.log(dict(scalars(metrics)), step=step)

    def finish(self, status: str) -> None:
        state = self.STATES[status]
        self._swanlab.finish(state, error=status if state == "crashed" else None)


class MlflowTracker:
    STATES: ClassVar = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "interrupted": "KILLED"}
    BATCH = 100
    """Parameters a request: the server's limit."""
    _resumed = False

    def __init__(
        self,
        run: TrackedRun,
        tracking_uri: str | None = None,
        experiment_name: str = "roll",
        run_name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        mlflow = load("mlflow")
        self._entities = load("mlflow", "mlflow.entities")
        self._before: dict[str, set[int]] = {}
        """Steps of each metric before a run was resumed."""
        # The client is used, not the module's functions, which keep one active run per thread.
        self._client = mlflow.MlflowClient(tracking_uri)
        if known := run.remembered_id("mlflow"):
            self._id, self._resumed = known, True
            self._client.update_run(known, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(experiment_name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(experiment_name)
        self._id = self._client.create_run(experiment_id, tags=dict(tags or {}), run_name=run_name or run.exp_name).info.run_id
        run.remember_id("mlflow", self._id)
        params = [self._entities.Param(key, str(value)[:500]) for key, value in _leaves(run.config, ".")]
        for start in range(0, len(params), self.BATCH):
            self._client.log_batch(self._id, params=params[start : start + self.BATCH])

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        now_ms = int(time.time() * 1000)
        # MLflow refuses names with this character.
        named = [(name.replace("@", "_at_"), value) for name, value in scalars(metrics)]
        values = [self._entities.Metric(name, value, now_ms, step) for name, value in named if not self._has(name, step)]
        self._client.log_batch(self._id, metrics=values)

    def _has(self, name: str, step: int) -> bool:
        """Returns True if the step was logged before the run was killed, or taken back: MLflow would show it twice."""
        if self._resumed and name not in self._before:
            self._before[name] = {metric.step for metric in self._client.get_metric_history(self._id, name)}
        return step in self._before.get(name, ())

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._id, self.STATES[status])


def load(tracker: str, module: str | None = None) -> ModuleType:
    """Raises `TrackerError`, naming the pip package and the key that asked for it, if the package is not installed."""
    try:
        loaded = importlib.import_module(module or tracker)
    except ImportError as error:
        raise _missing(tracker) from error
    if loaded.__file__ is None:  # a folder of that name in the working directory, e.g. the ./wandb of an earlier run
        raise _missing(tracker)
    return loaded


def _missing(tracker: str) -> TrackerError:
    return TrackerError(f"track_with: {tracker} needs a package that is not installed; `pip install {tracker}` or leave it out")


def scalars(metrics: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yields the numbers among the metrics; those of a nested mapping are named `outer/inner`."""
    for name, value in _leaves(metrics, "/"):
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, int | float):
            yield name, float(value)


def _leaves(tree: Mapping[str, object], separator: str, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, separator, f"{prefix}{name}{separator}")
        else:
            yield f"{prefix}{name}", value
