"""A report of the rows of metrics.jsonl, those of earlier starts among them; and the process that reports."""

from __future__ import annotations

from collections.abc import Sequence

from roll.core.configs.ppo import PPOConfig
from roll.core.record.callbacks import Callback, MetricsRow

PROCESS = {"both": "driver", "train": "trainer", "bench": "bench"}
"""Mode -> the name of a process. Explorers have names of their own."""


def process_labels(config: PPOConfig) -> dict[str, str]:
    """Returns the names by which others tell runs and their processes apart."""
    return {"run": config.exp_name, "process": PROCESS.get(config.mode, config.explorer_name)}


class OfRows(Callback):
    def clear(self) -> None:
        """Forgets all rows."""

    def add(self, step: int, row: MetricsRow) -> None:
        """A row of a step, or of its validation."""

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        self.clear()
        for row in rows:
            self.add(row["step"], row)

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        self.add(step, metrics)

    on_validation = on_step
