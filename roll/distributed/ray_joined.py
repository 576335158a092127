"""A Ray cluster that others started, which the driver joined (`RAY_ADDRESS`), and which lives on without it.

Ray tries to reach a control process (`gcs_server`) that is gone for a minute, and then ends the driver on the spot. So the driver
itself looks whether the process can be reached, and gives it up before.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

from roll.errors import BackendLost, boundary

LOOK_S = 3.0
LOST_S = 30.0
"""More than a control process that is restarted takes, and less than Ray's minute by what ending a run takes."""


class JoinedRay:
    def __init__(self, address: str) -> None:
        self._address = address
        self._control = ""
        self._lost: BackendLost | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Raises `RuntimeError`, which says what to do."""
        # `ray start` makes a cluster ask for the token where there is one; a driver sends it only if it is told to.
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        advice = "is it <head>:6379 of a cluster that runs (ray status), with the same Ray and Python, and its token?"
        told = f"Ray at RAY_ADDRESS={self._address} cannot be joined"
        with boundary(RuntimeError, told, say=lambda error: f"{' '.join(str(error).split())[:300]}; {advice}"):
            ray.init(address=self._address, configure_logging=False)
        self._control = ray.get_runtime_context().gcs_address

    def why_lost(self) -> BackendLost | None:
        return self._lost

    async def lost(self) -> None:
        """Returns when `why_lost` has an answer."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        await asyncio.wait({self._watching})

    async def reached(self) -> None:
        """Returns when the control process can be reached: what Ray asks it would block the event loop until then, and so the
        watch over it. Raises `BackendLost`."""
        while not await _answers(self._control):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.lost(), LOOK_S)
            if self._lost is not None:
                raise self._lost

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        ray.shutdown()

    async def _watch(self) -> None:
        answered = time.monotonic()
        while time.monotonic() - answered < LOST_S:
            await asyncio.sleep(LOOK_S)
            if await _answers(self._control):
                answered = time.monotonic()
        self._lost = BackendLost(
            f"Ray's control process at {self._control} (RAY_ADDRESS={self._address}) cannot be reached for {LOST_S:.0f} s: the "
            "cluster's head has ended, or the network to it"
        )


async def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        async with asyncio.timeout(LOOK_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        return True
    return False
