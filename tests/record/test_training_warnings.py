"""Alarms: given once when a metric has been out of range for long enough, whatever came before."""

import math
import random
from itertools import groupby

import pytest

from roll.configs.base import AlarmConfig
from roll.record.training_warnings import Alarms, TrainingWarnings, out_of_range

METRIC = "actor/ess"


def given_at(rule, values):
    """The positions, from 1, at which the alarm is given; None among the values is a row without the metric."""
    alarms = Alarms([rule])
    return [at for at, value in enumerate(values, 1) if alarms.judge(at, {} if value is None else {METRIC: value})]


def expected(rule, values):
    """By the definition: the `for_steps`-th row of every unbroken run of rows out of range."""
    rows = [(at, not (value <= rule.above if rule.above is not None else value >= rule.below))
            for at, value in enumerate(values, 1) if value is not None]  # fmt: skip
    runs = [[at for at, _ in run] for out, run in groupby(rows, key=lambda row: row[1]) if out]
    return [run[rule.for_steps - 1] for run in runs if len(run) >= rule.for_steps]


@pytest.mark.parametrize("seed", range(200))
def test_an_alarm_is_given_once_in_every_unbroken_run_of_values_out_of_range(seed):
    numbers = random.Random(seed)
    side = {"above": 0.5} if numbers.random() < 0.5 else {"below": 0.5}
    rule = AlarmConfig(metric=METRIC, for_steps=numbers.randint(1, 4), **side)
    values = numbers.choices([0.1, 0.5, 0.9, math.nan, math.inf, -math.inf, None], weights=[4, 1, 4, 1, 1, 1, 2], k=40)
    assert given_at(rule, values) == expected(rule, values)


def test_a_band_has_two_ends_and_nan_is_outside_of_every_range():
    band = AlarmConfig(metric=METRIC, above=2.0, below=1.0)
    assert [out_of_range(band, value) for value in (0.9, 1.0, 1.5, 2.0, 2.1, math.nan)] == [True, False, False, False, True, True]
    (alarm,) = Alarms([AlarmConfig(metric=METRIC, above=2.0)]).judge(3, {METRIC: math.nan})
    assert alarm.value is None and alarm.text == "step 3: actor/ess is nan, above 2"


def test_the_text_says_which_limit_and_for_how_long():
    alarms = Alarms([AlarmConfig(metric=METRIC, below=0.3, above=2.0, for_steps=2)])
    alarms.judge(1, {METRIC: 0.2})
    (alarm,) = alarms.judge(2, {METRIC: 0.1})
    assert alarm.text == "step 2: actor/ess is 0.1, below 0.3, 2 times in a row"


def test_only_stop_stops_and_what_was_never_there_is_known():
    rules = [
        AlarmConfig(metric=METRIC, above=0.0),
        AlarmConfig(metric="rewards/math/length", above=0.0),
        AlarmConfig(metric="actor/approxkl", above=1.0, action="stop"),
    ]
    alarms = Alarms(rules)
    alarms.judge(1, {METRIC: 1.0, "actor/approxkl": 1.0})
    assert alarms.stop is None and alarms.never_seen == ["rewards/math/length"]
    alarms.judge(2, {METRIC: 1.0, "actor/approxkl": 1.5})
    assert alarms.stop is not None and alarms.stop.step == 2
    assert [alarm.metric for alarm in alarms.given] == [METRIC, "actor/approxkl"]


TAUGHT = {"actor_train/grad_norm": 0.1, "critic/advantages/max": 1.0, "critic/advantages/min": -1.0}


def told(steps):
    warned = TrainingWarnings()
    return [warned.observe_step(number, metrics) for number, metrics in enumerate(steps, 1)], warned


def test_three_steps_without_signal_are_warned_of_once():
    nothing = {"actor_train/grad_norm": 0.0, "critic/advantages/max": 0.0, "critic/advantages/min": 0.0}
    new, warned = told([nothing] * 8 + [TAUGHT] + [nothing] * 8)
    assert [len(warnings) for warnings in new] == [0, 0, 2, *[0] * 14]
    assert any("all advantages are 0" in warning for warning in warned.warnings)
    assert any("norm 0" in warning for warning in warned.warnings)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_warned_of(norm):
    lost = TAUGHT | {"actor_train/grad_norm": norm}
    (text,) = told([lost] * 5)[1].warnings
    assert text.startswith("step 3: 3 steps in a row had a gradient that is not finite") and "skipped_steps" in text
    assert told([lost, lost, TAUGHT] * 3)[1].warnings == []


def test_steps_that_teach_between_them_are_no_reason_to_warn():
    nothing = {"actor_train/grad_norm": 0.0}
    assert told([nothing, nothing, TAUGHT] * 5)[1].warnings == []


def test_metrics_that_are_not_there_say_nothing():
    assert told([{}] * 9)[1].warnings == []
