"""Configuration of the best steps of a run, by a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roll.core.configs.fields import Bounds, option, required


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
