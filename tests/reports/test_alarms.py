"""Alarms: given once when a metric has been out of range for long enough, whatever came before."""

import json
import math
import random
from itertools import groupby
from types import SimpleNamespace

import pytest

from roll.core.configs.watching import AlarmConfig
from roll.core.record.run_progress import RunProgress
from roll.reports.alarms import Alarms, out_of_range

METRIC = "actor/ess"


@pytest.fixture
def alarms_of(tmp_path):
    def begun(*rules, printed=None):
        alarms = Alarms(rules, tmp_path, SimpleNamespace(note=(printed if printed is not None else []).append))
        alarms.on_run_begin(0, [])
        return alarms

    return begun


def given_at(alarms, values):
    """The positions, from 1, at which the alarm is given; None among the values is a row without the metric."""
    return [at for at, value in enumerate(values, 1) if alarms.judge(at, {} if value is None else {METRIC: value})]


def expected(rule, values):
    """By the definition: the `for_steps`-th row of every unbroken run of rows out of range."""
    rows = [(at, not (value <= rule.above if rule.above is not None else value >= rule.below))
            for at, value in enumerate(values, 1) if value is not None]  # fmt: skip
    runs = [[at for at, _ in run] for out, run in groupby(rows, key=lambda row: row[1]) if out]
    return [run[rule.for_steps - 1] for run in runs if len(run) >= rule.for_steps]


@pytest.mark.parametrize("seed", range(200))
def test_an_alarm_is_given_once_in_every_unbroken_run_of_values_out_of_range(alarms_of, seed):
    numbers = random.Random(seed)
    side = {"above": 0.5} if numbers.random() < 0.5 else {"below": 0.5}
    rule = AlarmConfig(metric=METRIC, for_steps=numbers.randint(1, 4), **side)
    values = numbers.choices([0.1, 0.5, 0.9, math.nan, math.inf, -math.inf, None], weights=[4, 1, 4, 1, 1, 1, 2], k=40)
    assert given_at(alarms_of(rule), values) == expected(rule, values)


def test_a_band_has_two_ends_and_nan_is_outside_of_every_range(alarms_of):
    band = AlarmConfig(metric=METRIC, above=2.0, below=1.0)
    assert [out_of_range(band, value) for value in (0.9, 1.0, 1.5, 2.0, 2.1, math.nan)] == [True, False, False, False, True, True]
    (alarm,) = alarms_of(AlarmConfig(metric=METRIC, above=2.0)).judge(3, {METRIC: math.nan})
    assert alarm.value is None and alarm.text == "step 3: actor/ess is nan, above 2"


def test_the_text_says_which_limit_and_for_how_long(alarms_of):
    alarms = alarms_of(AlarmConfig(metric=METRIC, below=0.3, above=2.0, for_steps=2))
    alarms.judge(1, {METRIC: 0.2})
    (alarm,) = alarms.judge(2, {METRIC: 0.1})
    assert alarm.text == "step 2: actor/ess is 0.1, below 0.3, 2 times in a row"


def test_only_stop_stops_and_what_was_never_there_is_known(alarms_of, tmp_path):
    rules = [
        AlarmConfig(metric=METRIC, above=0.0),
        AlarmConfig(metric="rewards/math/length", above=0.0),
        AlarmConfig(metric="actor/approxkl", above=1.0, action="stop"),
    ]
    printed = []
    alarms = alarms_of(*rules, printed=printed)
    alarms.on_step(1, {METRIC: 1.0, "actor/approxkl": 1.0})
    assert alarms._stops is None and alarms.never_seen == ["rewards/math/length"]
    alarms.on_step(2, {METRIC: 1.0, "actor/approxkl": 1.5})
    assert alarms._stops == ("alarm: step 2: actor/approxkl is 1.5, above 1", "stopped")
    assert [alarm.metric for alarm in alarms.given] == [METRIC, "actor/approxkl"]
    assert printed == [
        "alarm: step 1: actor/ess is 1, above 0",
        "alarm: step 2: actor/approxkl is 1.5, above 1: the run stops",
    ]
    summary = {"status": "stopped", "warnings": []}
    alarms.on_summary(summary, RunProgress(2, 2))
    assert summary["warnings"] == ["alarms: no step and no validation had rewards/math/length: nothing was watched"]
    assert summary["alarms"] == [json.loads(line) for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]


def test_alarms_of_steps_that_are_taken_back_are_taken_back(alarms_of, tmp_path):
    """Also a stop. What counts in a row goes on from the steps that stay."""
    rows = [{"step": 1, METRIC: None}, {"step": 2, METRIC: 1.0}]
    alarms = alarms_of(AlarmConfig(metric=METRIC, above=2.0), AlarmConfig(metric=METRIC, below=1.5, for_steps=2, action="stop"))
    for value in (math.nan, 1.0, 1.0):
        alarms.on_step(len(alarms.given) + 1, {METRIC: value})
    alarms.on_step(4, {METRIC: 3.0})
    assert [alarm.step for alarm in alarms.given] == [1, 2, 4] and alarms._stops is not None
    alarms.on_run_begin(2, rows)
    assert [alarm.step for alarm in alarms.given] == [1, 2] and alarms._stops is not None, "NaN is null in metrics.jsonl"
    alarms.on_run_begin(1, rows[:1])
    assert [alarm.step for alarm in alarms.given] == [1] and alarms._stops is None
    assert [json.loads(line)["step"] for line in (tmp_path / "alarms.jsonl").read_text().splitlines()] == [1]
    alarms.on_step(2, {METRIC: 1.0})
    assert [alarm.step for alarm in alarms.given] == [1, 2]
