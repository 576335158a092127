"""What an episode has earned, from what was said and from the folder that the program worked in."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

DEAREST, TASKS = 3, 4
NEEDED, MOST_WASTED = 3, 6
"""Uses of tools: two prices and a sum."""


def shop(trace: dict[str, Any], folder: Path) -> dict[str, Any]:
    """1 for the right sum, with which the program ended; else a tenth for each of the prices and for a sum that was looked up.
    Each use of a tool that was not needed costs 0.05: an answer that goes on, with more calls, where it should have ended would
    cost nothing otherwise, and be learned as readily as not."""
    rng = random.Random(trace["seed"] % TASKS)
    prices = {item: rng.randint(1, DEAREST) for item in ("apple", "pear")}
    file = folder / "answer.txt"
    right = file.is_file() and file.read_text(encoding="utf-8").strip() == str(sum(prices.values()))
    told = "".join(str(message) for each in trace["conversations"] for message in each["messages"])
    looked_up = [f"The {item} costs {price}." in told for item, price in prices.items()]
    added = bool(re.search(rf"The sum is {sum(prices.values())}\.", told))
    used = max(sum(map(_used, each["messages"])) for each in trace["conversations"])
    wasted = min(MOST_WASTED, max(0, used - NEEDED))
    earned = 1.0 if right else 0.1 * (sum(looked_up) + added)
    return {"reward": earned - 0.05 * wasted, "success": right, "looked_up": sum(looked_up), "wasted": wasted}


def _used(message: dict[str, Any]) -> bool:
    """A price, a sum or that there is none; handing over to another agent is another thing."""
    return message["role"] == "tool" and str(message["content"]).startswith("The")


def mended(trace: dict[str, Any], folder: Path) -> dict[str, Any]:
    """1 for the right program that was handed in, half for one that was not."""
    file = folder / "repository" / "till.py"
    right = file.is_file() and "return one + other" in file.read_text(encoding="utf-8")
    end = folder / "answer.txt"
    handed_in = end.is_file() and end.read_text(encoding="utf-8") == "Submitted"
    return {"reward": (right + (right and handed_in)) / 2, "success": right and handed_in, "handed_in": handed_in}
