"""Reads numbers returned by users' code, and decides which rewards are equal.

Both follow from one fact: training computes in float32. A number outside its range is refused at once, and rewards that float32
cannot distinguish count as equal everywhere.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any

from roll.core.data.untrusted import described
from roll.core.errors import boundary

LARGEST = 1e32
"""The sum of a million such numbers is still finite in float32."""


def read_number(value: Any) -> float:
    """Converts a number of Python, NumPy or torch, or any other value that converts to float; text is refused. Raises only
    `ValueError`, whose message states the expected value."""
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
    """Returns the value if its type is a number, as in JSON; None for everything else, true and false included."""
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
    """True if all have the same value in float32, so that comparing them gives no signal: 0.3 and 0.1 + 0.2 are equal."""
    return len({*array("f", rewards)}) == 1
