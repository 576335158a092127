"""What is told of a long reading while it goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
EVERY_S = 10.0


def announced(rows: Iterable[T], what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """The same rows; a line on standard error every `EVERY_S` seconds, as long as they last, and behind the last if that took
    so long."""
    begin = told = clock()
    count = 0
    for count, row in enumerate(rows, start=1):
        yield row
        if (now := clock()) - told >= EVERY_S:
            print(f"{what}: {count:,} read in {now - begin:.0f} s", file=sys.stderr, flush=True)
            told = now
    if told > begin:
        print(f"{what}: all {count:,} read in {clock() - begin:.0f} s", file=sys.stderr, flush=True)
