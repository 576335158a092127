"""What an episode has earned, from what was said and from the folder that the program worked in."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

DEAREST, TASKS = 3, 4


def shop(trace: dict[str, Any], folder: Path) -> dict[str, Any]:
    """1 for the right sum, with which the program ended; else a tenth for each of the prices and for a sum that was looked up."""
    rng = random.Random(trace["seed"] % TASKS)
    prices = {item: rng.randint(1, DEAREST) for item in ("apple", "pear")}
    file = folder / "answer.txt"
    right = file.is_file() and file.read_text(encoding="utf-8").strip() == str(sum(prices.values()))
    told = "".join(str(message) for each in trace["conversations"] for message in each["messages"])
    looked_up = [f"The {item} costs {price}." in told for item, price in prices.items()]
    added = bool(re.search(rf"The sum is {sum(prices.values())}\.", told))
    return {"reward": 1.0 if right else 0.1 * (sum(looked_up) + added), "success": right, "looked_up": sum(looked_up)}


def mended(trace: dict[str, Any], folder: Path) -> dict[str, Any]:
    """1 for the right program that was handed in, half for one that was not."""
    file = folder / "repository" / "till.py"
    right = file.is_file() and "return one + other" in file.read_text(encoding="utf-8")
    end = folder / "answer.txt"
    handed_in = end.is_file() and end.read_text(encoding="utf-8") == "Submitted"
    return {"reward": (right + (right and handed_in)) / 2, "success": right and handed_in, "handed_in": handed_in}
