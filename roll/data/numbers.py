"""Reads the numbers that users' code gives, and says which rewards training takes for equal.

Both follow from one fact: training computes in float32. What it cannot hold is refused where it is given, and rewards that it
cannot distinguish are equal wherever that is asked.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any

from roll.data.untrusted import described
from roll.errors import boundary

LARGEST = 1e32
"""The sum of a million such numbers is still finite in float32."""


def read_number(value: Any) -> float:
    """Takes a number of Python's, NumPy's or torch's, and whatever else converts to one; a text does not. Raises `ValueError`
    alone, which says what it must be instead."""
    if isinstance(value, str | bytes | bytearray):
        raise ValueError(f"must be a number, not {described(value)}")
    try:
        with boundary(ValueError):
            number = float(value)
    except ValueError as error:
        large = isinstance(error.__cause__, OverflowError)
        wanted = f"be at most {LARGEST:g} in size" if large else "be a number"
        raise ValueError(f"must {wanted}, not {described(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"must be finite, not {number}")
    if abs(number) > LARGEST:
        raise ValueError(f"must be at most {LARGEST:g} in size, not {number:g}")
    return number


def plain_number(value: Any) -> float | None:
    """Takes what is a number by its type, as in JSON; true and false are none. None for all else."""
    if hasattr(value, "item"):
        with boundary(lambda _: None):  # an array of several has none
            value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return read_number(value)
    except ValueError:
        return None


def are_equal(rewards: Iterable[float]) -> bool:
    """True if all have one value in float32, so that comparing them says nothing: 0.3 and 0.1 + 0.2 have."""
    return len({*array("f", rewards)}) == 1
