"""What the metrics of several steps in a row warn of: that they teach nothing, which every run reports, and what the user's
`alarms` name. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from roll.configs.base import AlarmConfig

ALARMS = "alarms.jsonl"
"""The journal of those that were given, one per row."""
PATIENCE = 3
"""Steps in a row before a warning."""


CHECKS: dict[str, Callable[[Mapping[str, float]], bool]] = {
    f"{PATIENCE} steps in a row had no signal: all advantages are 0, as where all rewards of a group are equal "
    "(critic/score, samples.jsonl)": lambda m: m.get("critic/advantages/max") == m.get("critic/advantages/min") == 0,
    f"{PATIENCE} steps in a row had a gradient of norm 0: the weights do not change": lambda m: (
        m.get("actor_train/grad_norm") == 0
    ),
    f"{PATIENCE} steps in a row had a gradient that is not finite: such optimiser steps are left out, and change no weight "
    "(actor_train/skipped_steps)": lambda m: not math.isfinite(m.get("actor_train/grad_norm", 0.0)),
}


class _InARow:
    """How often in a row each of some conditions has held."""

    def __init__(self, limits: Sequence[int]) -> None:
        self._limits, self._counts = limits, [0] * len(limits)

    def reached(self, index: int, holds: bool) -> bool:
        """Whether a condition has now held as often as its limit says; again only after it has ceased to hold."""
        self._counts[index] = self._counts[index] + 1 if holds else 0
        return self._counts[index] == self._limits[index]


class TrainingWarnings:
    """A problem that lasts for several steps in a row is reported once."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._in_a_row = _InARow([PATIENCE] * len(CHECKS))

    def observe_step(self, number: int, metrics: Mapping[str, float]) -> list[str]:
        """The warnings that are new with step `number`."""
        new = []
        for index, (text, holds) in enumerate(CHECKS.items()):
            if self._in_a_row.reached(index, holds(metrics)) and not any(text in warning for warning in self.warnings):
                new.append(f"step {number}: {text}")
        self.warnings += new
        return new


class Alarm(NamedTuple):
    step: int
    metric: str
    value: float | None
    """None: not a number."""
    action: str
    text: str


class Alarms:
    def __init__(self, rules: Sequence[AlarmConfig]) -> None:
        self._rules = list(rules)
        self._in_a_row = _InARow([rule.for_steps for rule in self._rules])
        self._seen = [False] * len(self._rules)
        self.given: list[Alarm] = []

    def take_over(self, before: Alarms, rows: Iterable[Mapping[str, Any]]) -> None:
        """The run continues after `rows`, the metrics that were not taken back. A value that is not a number is null there."""
        for row in rows:
            self.judge(row["step"], {name: math.nan if value is None else value for name, value in row.items()})
        self.given = [alarm for alarm in self.given if alarm in before.given]

    @property
    def stop(self) -> Alarm | None:
        """The alarm that ends the run."""
        return next((alarm for alarm in self.given if alarm.action == "stop"), None)

    @property
    def never_seen(self) -> list[str]:
        """The metrics that no step and no validation had, in the order of the rules."""
        return list(dict.fromkeys(rule.metric for rule, seen in zip(self._rules, self._seen, strict=True) if not seen))

    def judge(self, step: int, metrics: Mapping[str, Any]) -> list[Alarm]:
        """The alarms that are new with these metrics. A metric that is not among them keeps its count."""
        new = []
        for index, rule in enumerate(self._rules):
            if rule.metric not in metrics:
                continue
            self._seen[index] = True
            value = float(metrics[rule.metric])
            if self._in_a_row.reached(index, out_of_range(rule, value)):
                finite = value if math.isfinite(value) else None
                new.append(Alarm(step, rule.metric, finite, rule.action, _text(rule, step, value)))
        self.given += new
        return new


def out_of_range(rule: AlarmConfig, value: float) -> bool:
    within_above = rule.above is None or value <= rule.above
    within_below = rule.below is None or value >= rule.below
    return not (within_above and within_below)


def _text(rule: AlarmConfig, step: int, value: float) -> str:
    too_high = rule.above is not None and not value <= rule.above
    limit = f"above {rule.above:g}" if too_high else f"below {rule.below:g}"
    lasting = f", {rule.for_steps} times in a row" if rule.for_steps > 1 else ""
    return f"step {step}: {rule.metric} is {value:.4g}, {limit}{lasting}"
