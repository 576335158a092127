"""A report of the rows of metrics.jsonl, those of earlier starts among them."""

from __future__ import annotations

from collections.abc import Sequence

from roll.core.record.callbacks import Callback, MetricsRow


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
