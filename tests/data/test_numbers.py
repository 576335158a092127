"""Numbers that users' code gives: whatever is wrong with one, it is a `ValueError` that says what it must be."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from roll.core.data.numbers import LARGEST, are_equal, plain_number, read_number
from roll.core.groups.filters import mean_filter


class Fails:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __float__(self) -> float:
        raise self.error

    def __repr__(self) -> str:
        raise self.error


GOOD = [(1, 1.0), (True, 1.0), (Fraction(1, 4), 0.25), (Decimal("0.5"), 0.5), (np.float32(0.5), 0.5), (torch.tensor(2), 2.0)]


@pytest.mark.parametrize(("value", "number"), GOOD)
def test_what_converts_to_a_number_is_one(value: Any, number: float) -> None:
    assert read_number(value) == number and type(read_number(value)) is float


@pytest.mark.parametrize(
    ("value", "must"),
    [
        ("1", "be a number, not str '1'"),
        (None, "be a number, not NoneType None"),
        (torch.tensor([1.0, 2.0]), "be a number, not Tensor"),
        (math.nan, "be finite, not nan"),
        (-math.inf, "be finite, not -inf"),
        (int("9" * 400), "be at most 1e.32 in size, not int 999"),
        pytest.param(10**5000, "be at most 1e.32 in size, not int$", id="longer than Python prints"),
        (Fraction(10**400, 3), "be at most 1e.32 in size, not Fraction"),
        (Decimal("1e999"), "be finite, not inf"),
        (1e39, "be at most 1e.32 in size, not 1e.39"),
        *((Fails(error()), "be (a number|at most 1e.32 in size), not Fails") for error in (ZeroDivisionError, OverflowError)),
        *((Fails(error()), "be a number, not Fails") for error in (RecursionError, StopIteration, SystemExit)),
    ],
)
def test_whatever_is_wrong_is_said(value: Any, must: str) -> None:
    with pytest.raises(ValueError, match=f"^must {must}"):
        read_number(value)


def test_a_plain_number_is_one_by_its_type() -> None:
    numbers = [3, 0.5, np.float32(0.5), torch.tensor(1.5), np.array([2.0])]
    assert [plain_number(value) for value in numbers] == [3.0, 0.5, 0.5, 1.5, 2.0]
    others = [True, np.bool_(True), "1", None, [1], math.nan, 10**400, 2 * LARGEST, Fails(ValueError()), torch.tensor([1.0, 2.0])]
    assert {plain_number(value) for value in others} == {None}


def test_rewards_that_float32_cannot_distinguish_are_equal() -> None:
    assert are_equal([0.3, 0.1 + 0.2]) and are_equal([1e9, 1e9 + 1]) and are_equal([0.0, -0.0])
    assert not are_equal([0.3, 0.30001]) and not are_equal([0.0, 1e-30])


def test_a_mean_that_rounding_keeps_from_the_threshold_has_reached_it() -> None:
    assert mean_filter(None, 1.0)([0.7 + 0.2 + 0.1] * 8) == "filter_mean_high"
    assert mean_filter(0.3, None)([0.1 + 0.2] * 8) == "filter_mean_low"
    assert mean_filter(0.3, 1.0)([0.31, 0.999]) is None
