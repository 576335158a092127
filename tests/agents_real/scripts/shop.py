"""The task of all programs but one, and its tools: prices that the model must look up, and their sum.

`ROLL_SEED` draws the prices; without it they are those of seed 0, so that each program runs against any model server as well.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

GOODS = ("apple", "pear")
DEAREST = 3
TASKS = 4
QUESTION = (
    "How much do an apple and a pear cost together? "
    "Look up both prices, add them with the tool add, and answer with the number alone."
)
MODEL = os.environ.get("MODEL", "policy")


def prices(seed: int) -> dict[str, int]:
    rng = random.Random(seed % TASKS)
    return {item: rng.randint(1, DEAREST) for item in GOODS}


def price(item: str) -> str:
    """The price of one piece.

    Args:
        item: apple or pear.
    """
    found = prices(int(os.environ.get("ROLL_SEED", "0"))).get(item)
    return f"The {item} costs {found}." if found else f"There is no {item}."


def add(one: int, other: int) -> str:
    """Adds two numbers.

    Args:
        one: The first number.
        other: The second number.
    """
    return f"The sum is {one + other}."


def answered(text: object) -> None:
    Path("answer.txt").write_text(str(text).strip(), encoding="utf-8")
