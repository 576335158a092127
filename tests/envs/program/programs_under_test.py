"""Rewards of programs, named by dotted path."""

import math
import time


def length(trace, folder):
    """Of the last answer; and what is needed to see what a reward gets."""
    last = trace["conversations"][-1]["messages"][-1]
    file = folder / "said.txt"
    return {
        "reward": len(last["content"]),
        "success": trace["end"] == "terminated",
        "calls": trace["calls"],
        "seed": trace["seed"],
        "written": file.is_file(),
    }


async def later(trace, folder):
    return 0.5


def wrong(trace, folder):
    return math.nan


def failing(trace, folder):
    raise KeyError("no such thing")


def hanging(trace, folder):
    time.sleep(5)
    return 1.0


def one_argument(trace):
    return 1.0
