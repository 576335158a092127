"""Configuration of a run's watchers: alarms and the best steps, by a metric, and the receivers of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roll.core.configs.fields import Bounds, option, required

AlarmAction = Literal["warn", "stop"]


@dataclass(frozen=True, kw_only=True)
class ByMetric:
    metric: str = option("val_correct/all/mean", "The metric, by its name in metrics.jsonl.")
    mode: Literal["max", "min"] = option("max", "max: the highest value is the best; min: the lowest.")


@dataclass(frozen=True, kw_only=True)
class KeepBestConfig(ByMetric):
    """Checkpoints that stay besides the newest, by a metric of validations. `checkpoints/best` links to the best one."""

    count: int = option(1, "Number of the best checkpoints that stay.", bounds=Bounds(ge=1))


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig(ByMetric):
    """A run ends, status finished, when the metric has had no gain for long enough."""

    patience: int = required("Values in a row without a gain; those of a validation count by validations.", bounds=Bounds(ge=1))
    least: float = option(0.0, "Least difference from the best value that is a gain.", bounds=Bounds(ge=0))


@dataclass(frozen=True, kw_only=True)
class AlarmConfig:
    """An alarm. It is raised once when a metric has left its range for long enough, and again only after the metric was back."""

    metric: str = required("The metric, by its name in metrics.jsonl.")
    above: float | None = option(None, "Values above this are out of range. NaN always is.")
    below: float | None = option(None, "Values below this are out of range.")
    for_steps: int = option(
        1, "Values in a row that have to be out of range; those of a validation count by validations.", bounds=Bounds(ge=1)
    )
    action: AlarmAction = option(
        "warn", "warn: the run goes on; stop: it ends after the step, with a checkpoint, status stopped and exit code 3."
    )


@dataclass(frozen=True, kw_only=True)
class OnEventConfig:
    """Receivers of an event, as JSON: a command, as a list of words, or a webhook, as an address. `$NAME` in either is a variable
    of the environment, in which secrets stay."""

    finished: str | list[str] | None = option(None, "The run has ended in order.")
    failed: str | list[str] | None = option(None, "The run has failed, or was stopped.")
    alarm: str | list[str] | None = option(None, "An alarm was given.")
    best: str | list[str] | None = option(None, "A checkpoint is the best so far (keep_best).")
    timeout_s: float = option(10.0, "Seconds after which a command or a webhook is given up.", bounds=Bounds(gt=0))

    def receivers(self) -> dict[str, str | list[str]]:
        named = {"finished": self.finished, "failed": self.failed, "alarm": self.alarm, "best": self.best}
        return {event: to for event, to in named.items() if to is not None}
