"""The user's `alarms`: given when a metric has been out of its range for long enough, and written to alarms.jsonl."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from roll.configs.base import AlarmConfig
from roll.record.callbacks import Callback
from roll.record.journal import JournalFile
from roll.record.run_progress import RunProgress
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
    def __init__(self, rules: Sequence[AlarmConfig], run_dir: Path, note: Callable[[str], None]) -> None:
        """`note`: prints a line. Raises `OSError`."""
        self._rules, self._note = rules, note
        self._journal = JournalFile(run_dir / ALARMS) if rules else None
        self._table: Table | None = None
        self._watched = False
        self.given: list[Alarm] = []

    def on_run_begin(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """After a restart of the trainer, alarms of steps that were taken back are taken back. In `rows` a value that is not a
        number is null."""
        restarts, self._table, before = self._table is not None, Table([_row(rule) for rule in self._rules]), self.given
        self._watched, self._stops, self.given = False, None, []
        for row in rows if restarts else ():
            self.judge(row["step"], {name: math.nan if value is None else value for name, value in row.items()})
        self.given = [alarm for alarm in self.given if alarm in before]
        self._heed(self.given)
        if self._journal is not None:
            self._journal.retain(lambda row: isinstance(row.get("step"), int) and row["step"] <= step)

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._watched = True
        self._give(self.judge(step, metrics))

    def on_validation(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._give(self.judge(step, metrics))

    def judge(self, step: int, metrics: Mapping[str, Any]) -> list[Alarm]:
        """The alarms that are new with these metrics. A metric that is not among them keeps its count."""
        new = []
        for said in self._table.judge(metrics) if self._table is not None else ():
            rule, finite = self._rules[said.row], said.value if math.isfinite(said.value) else None
            new.append(Alarm(step, rule.metric, finite, rule.action, f"step {step}: {said.text}"))
        self.given += new
        return new

    def _give(self, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            assert self._journal is not None
            self._journal.append(alarm._asdict())
            self._note(f"alarm: {alarm.text}{': the run stops' if alarm.action == 'stop' else ''}")
        self._heed(alarms)

    def _heed(self, alarms: Sequence[Alarm]) -> None:
        """The first that is to end the run gives the reason."""
        for alarm in alarms:
            if alarm.action == "stop" and self._stops is None:
                self.stop(f"alarm: {alarm.text}", "stopped")

    @property
    def never_seen(self) -> list[str]:
        """The metrics that no step and no validation had, in the order of the rules."""
        seen = self._table.seen if self._table is not None else ()
        return list(dict.fromkeys(rule.metric for place, rule in enumerate(self._rules) if place not in seen))

    def on_summary(self, summary: MutableMapping[str, Any], progress: RunProgress) -> None:
        summary["alarms"] = [alarm._asdict() for alarm in self.given]
        if "status" in summary and self._watched:
            lines = (f"alarms: no step and no validation had {metric}: nothing was watched" for metric in self.never_seen)
            summary["warnings"] += lines

    def on_run_end(self, summary: Mapping[str, Any]) -> None:
        if self._journal is not None:
            self._journal.close()


def out_of_range(rule: AlarmConfig, value: float) -> bool:
    within_above = rule.above is None or value <= rule.above
    within_below = rule.below is None or value >= rule.below
    return not (within_above and within_below)


def _row(rule: AlarmConfig) -> Row:
    holds = partial(_holds, rule)
    return Row(rule.metric, holds, partial(_text, rule), patience=rule.for_steps, said="again")


def _holds(rule: AlarmConfig, name: str, value: float, metrics: Mapping[str, Any]) -> bool:
    return out_of_range(rule, value)


def _text(rule: AlarmConfig, name: str, value: float, metrics: Mapping[str, Any]) -> str:
    too_high = rule.above is not None and not value <= rule.above
    limit = f"above {rule.above:g}" if too_high else f"below {rule.below:g}"
    lasting = f", {rule.for_steps} times in a row" if rule.for_steps > 1 else ""
    return f"{rule.metric} is {value:.4g}, {limit}{lasting}"
