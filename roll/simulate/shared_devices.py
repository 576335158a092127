"""Two roles that compute on one device at the same time (`sharing: overlap`): each at a part of the speed that it has alone.

Roles of the training half take turns with each other, so no device computes for more than the engines and one other role. A
worker of several devices is as fast as the slowest of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial


class Part:
    """A worker's part of its devices."""

    def __init__(self, devices: Sequence[int], on: dict[int, list[Part]], overlap_speed: float) -> None:
        """`on`: the parts of each device, of which this becomes one. `overlap_speed`: beside another that computes."""
        self._devices, self._on, self._overlap_speed = devices, on, overlap_speed
        self._work: set[object] = set()
        """The work under way."""
        self.speed = 1.0
        self.told: dict[object, Callable[[], None]] = {}
        """Hear of it when the speed has changed."""
        for device in devices:
            on.setdefault(device, []).append(self)
        self._renew()

    def computes(self, work: object, does: bool = True) -> None:
        """Begins or ends `work`, on which other workers of the devices depend."""
        before = bool(self._work)
        (self._work.add if does else self._work.discard)(work)
        if bool(self._work) != before:
            for other in self._others():
                other._renew()

    async def work(self, seconds: float) -> None:
        """Takes so long as `seconds` of work alone take here."""
        if seconds <= 0:
            return await asyncio.sleep(0)
        loop, job = asyncio.get_running_loop(), object()
        self.computes(job)
        try:
            while True:
                began, speed, done = loop.time(), self.speed, loop.create_future()
                self.told[job] = partial(_settle, done, False)
                timer = loop.call_later(seconds / speed, _settle, done, True)
                try:
                    if await done:
                        return
                finally:
                    timer.cancel()
                seconds = max(0.0, seconds - (loop.time() - began) * speed)
        finally:
            self.told.pop(job, None)
            self.computes(job, False)

    def leave(self) -> None:
        """The worker is gone, and takes nothing from others any more."""
        for device in self._devices:
            if self in self._on[device]:
                self._on[device].remove(self)
                for other in self._on[device]:
                    other._renew()

    def _others(self) -> Iterator[Part]:
        return (part for device in self._devices for part in self._on[device] if part is not self)

    def _renew(self) -> None:
        speed = self._overlap_speed if any(other._work for other in self._others()) else 1.0
        if speed != self.speed:
            self.speed = speed
            for tell in [*self.told.values()]:
                tell()


def _settle(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)
