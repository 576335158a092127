"""The clock of a run's driver: that of its event loop, so that a run on a loop with a time of its own goes by that time."""

from __future__ import annotations

import asyncio
import time


def monotonic() -> float:
    """Seconds of the event loop that runs in this thread; elsewhere those of the monotonic clock, which is asyncio's own."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
