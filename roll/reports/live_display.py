"""The display of a run that runs: the results of its steps and validations, beside its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from roll.core.record.callbacks import MetricsRow, Summary
from roll.core.record.estimates import Validated
from roll.core.record.run_progress import RunProgress
from roll.reports.display import Display, RunSnapshot
from roll.reports.learning_curve import LOSS, PAIR_LOSS, REWARD, STALENESS_MEAN
from roll.reports.rows import OfRows
from roll.reports.verdict import CUT, Curves, verdict


class LiveDisplay(OfRows):
    def __init__(self, logging_steps: int, curves: Curves | None) -> None:
        """`curves`: None: the run trains nothing, and there is no verdict on it."""
        self._logging_steps, self._curves = logging_steps, curves
        self._display: Display | None = None
        """From the beginning of the run."""
        self.clear()

    def clear(self) -> None:
        self._step: MetricsRow = {}
        """Metrics of the last one."""
        self._validation: list[Validated] = []
        self._new_step = False

    def note(self, line: str) -> None:
        """Prints one line that stays."""
        if self._display is not None:
            self._display.note(line)

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        if self._display is None:
            self._display = Display(logging_steps=self._logging_steps)
        super().on_run_begin(step, rows)

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        self._step, self._new_step = metrics, True

    def add(self, step: int, row: MetricsRow) -> None:
        if (found := Validated.of_row({**row, "step": step})) is not None:
            self._validation.append(found)

    def on_refresh(self, progress: RunProgress) -> None:
        assert self._display is not None
        show = self._display.step if self._new_step else self._display.update
        self._new_step = False
        show(self._snapshot(progress))

    def on_run_end(self, summary: Summary) -> None:
        if self._display is not None:
            self._display.close()

    def _snapshot(self, progress: RunProgress) -> RunSnapshot:
        known = {field.name: getattr(progress, field.name) for field in fields(progress)}
        if groups := progress.groups:
            known["groups"] = {**groups, "dropped": sum(groups["dropped"].values())}
        return RunSnapshot(
            **known,
            reward=self._step.get(REWARD),
            loss=self._step.get(PAIR_LOSS, self._step.get(LOSS)) if REWARD not in self._step else None,
            cut=self._step.get(CUT),
            validation=self._validation,
            verdict=verdict(self._curves.curve, "running", groups, self._curves.names) if self._curves is not None else None,
            staleness_now=self._step.get(STALENESS_MEAN),
        )
