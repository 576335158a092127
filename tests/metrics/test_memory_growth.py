"""A leak is told from noise, from a jump and from caches that fill."""

import math
import random

import pytest

from roll.metrics.memory_growth import BLOCKS, DAY_S, MOST_POINTS, REACH, Growth, MemoryReadings, alarm

EVERY_S = 10.0
HOUR = 360
"""Readings."""


def readings(count, mb):
    found = MemoryReadings()
    for number in range(count):
        found.add(number * EVERY_S, mb(number))
    return found


def noise(seed, mb=50.0):
    chance = random.Random(seed)
    return lambda: chance.gauss(0.0, mb)


@pytest.mark.parametrize("seed", range(20))
def test_flat_memory_with_noise_never_grows(seed):
    """At any moment of two hours: memory goes up and down by 50 MB with every reading, and in waves as files are written."""
    more, found = noise(seed), MemoryReadings()
    for number in range(2 * HOUR):
        found.add(number * EVERY_S, 4000 + more() + 100 * math.sin(number / 9))
        assert found.growth is None, number


@pytest.mark.parametrize("mb_per_hour", [20, 300, 10_000])
def test_a_steady_leak_is_measured_within_the_noise(mb_per_hour):
    more = noise(1, mb=mb_per_hour / 100)
    growth = readings(3 * HOUR, lambda n: 4000 + mb_per_hour * n / HOUR + more()).growth
    assert growth is not None
    assert 3600 * growth.mb_per_s == pytest.approx(mb_per_hour, rel=0.1)
    assert growth.watched_s == pytest.approx(2 * 3600, rel=0.1)


@pytest.mark.parametrize("at", [0.35, 0.4, 0.5, 0.6, 0.65, 0.75, 0.9, 0.99])
def test_a_jump_is_no_growth(at):
    assert readings(2 * HOUR, lambda n: 4000 + 3000 * (n > at * 2 * HOUR)).growth is None


def test_a_jump_is_no_growth_at_any_moment_after_it():
    found = MemoryReadings()
    for number in range(4 * HOUR):
        found.add(number * EVERY_S, 4000 + 3000 * (number > 100))
        assert found.growth is None, number


def test_caches_that_fill_and_then_rest_are_no_growth():
    assert readings(4 * HOUR, lambda n: 4000 + 2000 * (1 - math.exp(-n / (HOUR / 6)))).growth is None
    assert readings(4 * HOUR, lambda n: 4000 + 10 * min(n, 1.2 * HOUR)).growth is None


def test_a_few_readings_say_nothing():
    assert readings(5 * BLOCKS, lambda n: 4000.0 + n).growth is None


def test_a_process_is_read_for_weeks_in_little_memory():
    found = readings(20_000, lambda n: 4000 + 0.01 * n)
    assert len(found._points) < MOST_POINTS and len(found._next) < 20_000 / MOST_POINTS
    growth = found.growth
    assert growth is not None and growth.mb_per_s == pytest.approx(0.001, rel=1e-6)


LEAK = Growth(mb_per_s=0.5, watched_s=7200.0)


def test_the_alarm_names_process_slope_and_time():
    name, text = alarm({"actor_train-0": LEAK, "driver": Growth(0.1, 7200.0)}, 6000.0, DAY_S, step_s=20.0)
    assert name == "actor_train-0"
    assert text == (
        "the memory of actor_train-0 (and that of 1 more) has been growing for 120 min, by 1800 MB/h, 10 MB a step: "
        "the machine's free 6000 MB will be full in 2.8 h"
    )


def test_no_alarm_if_the_run_ends_before_or_a_day_is_enough_or_the_line_is_short():
    full_s = 6000.0 / LEAK.mb_per_s
    assert alarm({"driver": LEAK}, 6000.0, full_s + 1, 1.0)
    assert alarm({"driver": LEAK}, 6000.0, full_s - 1, 1.0) is None
    assert alarm({"driver": LEAK}, 0.5 * (DAY_S + 1), math.inf, 1.0) is None
    assert alarm({"driver": Growth(0.5, full_s / REACH - 1)}, 6000.0, math.inf, 1.0) is None
    assert alarm({}, 6000.0, math.inf, 1.0) is None
