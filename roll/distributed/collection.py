"""Python's garbage collector, and the half million objects that torch and transformers make when they are imported.

All of them stay. While they are made, looking among them for garbage takes a sixth of the time; later each full collection would
look at them for 0.3 s, in which a driver's event loop stands still.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def paused() -> Iterator[None]:
    """For imports."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@cache
def spare_what_is_there() -> None:
    """For a process that has begun: no collection looks any more at what it has made so far. Done once: garbage of later is not
    to be spared. (`gc.get_freeze_count` does not tell whether it was done: it counts what is spared, for 0.1 s.)"""
    gc.freeze()
