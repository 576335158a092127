"""A worker that runs answers a ping soon, however busy it is. One that does not is stopped, stuck, or blocks its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from roll.distributed.backend import WorkerHandle

logger = logging.getLogger(__name__)

PARTS = 10
"""A deadline is waited for in so many parts: if the driver itself was asleep, one of them at most is counted."""
WARN_S = 10.0
"""A silence that is shorter is not worth a word."""


async def silence(worker: WorkerHandle, deadline_s: float) -> str:
    """Returns when the worker has not answered for `deadline_s`, with these words; 0 waits for ever. Warns each time that a tenth
    of the deadline (10 s at least) has passed."""
    part = deadline_s / PARTS
    while deadline_s:
        ping = asyncio.ensure_future(worker.ping())
        try:
            silent = 0.0
            warned = 0.0
            while not (await asyncio.wait({ping}, timeout=part))[0]:
                silent += part
                if silent >= deadline_s - part / 2:
                    return f"has not answered for {deadline_s:g} s (heartbeat_timeout): it was killed"
                if silent - warned >= max(WARN_S, part):
                    warned = silent
                    logger.warning("%s has not answered for %.0f s", worker.name, silent)
        finally:
            ping.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await ping  # the ping may have ended with the worker, which others notice
        await asyncio.sleep(min(WARN_S, part))
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
