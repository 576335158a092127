"""`early_stopping`: a run ends in order when a metric has had no gain for long enough."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from roll.core.configs.sizes import compact, counted
from roll.core.configs.watching import EarlyStoppingConfig
from roll.core.record.callbacks import MetricsRow, Summary
from roll.core.record.run_progress import RunProgress
from roll.reports.best_steps import ScoredStep, waiting
from roll.reports.rows import OfRows


class EarlyStopping(OfRows):
    def __init__(self, rule: EarlyStoppingConfig) -> None:
        self._rule, self._watched = rule, False
        self.clear()

    def clear(self) -> None:
        self._values: list[ScoredStep] = []

    def add(self, step: int, row: MetricsRow) -> None:
        """In a row of metrics.jsonl a value that is not a number is null. A row without the metric counts for nothing."""
        if (name := self._rule.metric) in row:
            self._values.append(ScoredStep(step, nan if row[name] is None else float(row[name])))

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        """Values of steps that were taken back, when the trainer restarts, are taken back."""
        super().on_run_begin(step, rows)
        self._stops = None
        self._heed()

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        self._watched = True
        self.add(step, metrics)
        self._heed()

    on_validation = on_step

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        if "status" in summary and self._watched and not self._values:
            summary["warnings"] += [f"early_stopping: no step and no validation had {self._rule.metric}: nothing was watched"]

    def _heed(self) -> None:
        rule, (best, since) = self._rule, waiting(self._values, self._rule.mode, self._rule.least)
        if since >= rule.patience and self._stops is None:
            than = f"better than {compact(best.value)} (step {best.step})" if best is not None else "a number"
            self.stop(f"{rule.metric} was not {than} {counted(since, 'time')} in a row (early_stopping)")
