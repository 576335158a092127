"""The user's `alarms`: given when a metric has been out of its range for long enough, and written to alarms.jsonl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from roll.core.configs.watching import AlarmConfig
from roll.core.record.callbacks import Callback, MetricsRow, Summary
from roll.core.record.journal import JournalFile
from roll.core.record.run_progress import RunProgress
from roll.reports.live_display import LiveDisplay
from roll.reports.table import Row, Table

ALARMS = "alarms.jsonl"
"""The journal of those that were given, one per row."""


class Alarm(NamedTuple):
    step: int
    metric: str
    value: float | None
    """None: not a number."""
    action: str
    text: str


class Alarms(Callback):
    def __init__(self, rules: Sequence[AlarmConfig], run_dir: Path, display: LiveDisplay) -> None:
        """Raises `OSError`."""
        self._rules, self._display = rules, display
        self._journal = JournalFile(run_dir / ALARMS) if rules else None
        self._table = Table(())
        self._begun = self._watched = False
        self.given: list[Alarm] = []

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        """After a restart of the trainer, alarms of steps that were taken back are taken back. In `rows` a value that is not a
        number is null."""
        self._table, before, self.given = Table([_row(rule) for rule in self._rules]), self.given, []
        for row in rows if self._begun else ():
            self.judge(row["step"], {name: math.nan if value is None else value for name, value in row.items()})
        self._begun, self._watched, self._stops = True, False, None
        self.given = [alarm for alarm in self.given if alarm in before]
        self._heed()
        if self._journal is not None:
            self._journal.retain(lambda row: isinstance(row.get("step"), int) and row["step"] <= step)

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        self._watched = True
        self.on_validation(step, metrics)

    def on_validation(self, step: int, metrics: MetricsRow) -> None:
        for alarm in self.judge(step, metrics):
            assert self._journal is not None
            self._journal.append(alarm._asdict())
            self._display.note(f"alarm: {alarm.text}{': the run stops' if alarm.action == 'stop' else ''}")
        self._heed()

    def judge(self, step: int, metrics: MetricsRow) -> list[Alarm]:
        """The alarms that are new with these metrics. A metric that is not among them keeps its count."""
        new = []
        for place, value, text in self._table.judge(metrics):
            rule, finite = self._rules[place], value if math.isfinite(value) else None
            new.append(Alarm(step, rule.metric, finite, rule.action, f"step {step}: {text}"))
        self.given += new
        return new

    def _heed(self) -> None:
        """The first that is to end the run gives the reason."""
        stops = [alarm.text for alarm in self.given if alarm.action == "stop"]
        if stops and self._stops is None:
            self.stop(f"alarm: {stops[0]}", "stopped")

    @property
    def never_seen(self) -> list[str]:
        """The metrics that no step and no validation had, in the order of the rules."""
        return list(dict.fromkeys(rule.metric for place, rule in enumerate(self._rules) if place not in self._table.seen))

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        summary["alarms"] = [alarm._asdict() for alarm in self.given]
        if "status" in summary and self._watched:
            summary["warnings"] += [
                f"alarms: no step and no validation had {each}: nothing was watched" for each in self.never_seen
            ]

    def on_run_end(self, summary: Summary) -> None:
        if self._journal is not None:
            self._journal.close()


def out_of_range(rule: AlarmConfig, value: float) -> bool:
    within_above = rule.above is None or value <= rule.above
    within_below = rule.below is None or value >= rule.below
    return not (within_above and within_below)


def _row(rule: AlarmConfig) -> Row:
    def text(name: str, value: float, _: MetricsRow) -> str:
        limit = f"above {rule.above:g}" if rule.above is not None and not value <= rule.above else f"below {rule.below:g}"
        lasting = f", {rule.for_steps} times in a row" if rule.for_steps > 1 else ""
        return f"{name} is {value:.4g}, {limit}{lasting}"

    return Row(rule.metric, lambda value, _: out_of_range(rule, value), text, patience=rule.for_steps, said="again")
