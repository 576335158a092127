"""What counts as slower than noise."""

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # benchmarks are scripts: they import each other by name
from gate import limit, scatter


def test_scatter_is_that_of_ratios():
    figures = scatter([1.0, 2.0, 4.0])
    assert figures["speed"] == pytest.approx(2.0)
    assert figures["deviation"] == pytest.approx(math.log(2.0))


def test_what_scatters_little_may_still_be_a_tenth_slower():
    assert limit(scatter([2.0, 2.0, 2.0])) == pytest.approx(1.8)


def test_what_scatters_much_may_be_slower_by_three_deviations():
    speeds = [math.exp(each) for each in (-0.1, 0.0, 0.1)]
    assert limit(scatter(speeds)) == pytest.approx(math.exp(-0.3))
