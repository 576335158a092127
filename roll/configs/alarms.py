"""Alarms: a metric that leaves its range is told, or stops the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roll.configs.fields import Bounds, option, required

AlarmAction = Literal["warn", "stop"]


@dataclass(frozen=True, kw_only=True)
class AlarmConfig:
    """An alarm. It is given once when a metric has left its range for long enough, and again only after it has been back."""

    metric: str = required("The metric, by its name in metrics.jsonl.")
    above: float | None = option(None, "Values above this are out of range. NaN always is.")
    below: float | None = option(None, "Values below this are out of range.")
    for_steps: int = option(
        1, "Values in a row that have to be out of range; those of a validation count by validations.", bounds=Bounds(ge=1)
    )
    action: AlarmAction = option(
        "warn", "warn: the run goes on; stop: it ends after the step, with a checkpoint, status stopped and exit code 3."
    )
