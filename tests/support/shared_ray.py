"""One Ray for the tests that neither kill nor configure Ray: it starts with the first of them and serves the others, which would
wait some seconds each for one of their own."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import psutil

from roll.platform.ray_instance import RayInstance


class SharedRay(RayInstance):
    """In place of a `RayBackend`'s own: starts what is not there yet, and when it stops only its workers end."""

    _first: ClassVar[SharedRay | None] = None
    """The one that has started Ray."""

    def start(self) -> None:
        if SharedRay._first is None:
            super().start()
            SharedRay._first = self
        self._control = SharedRay._first._control

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if SharedRay._first is not None:
            for worker in {*psutil.Process(self._control["raylet"].pid).children()} - {*SharedRay._first._agents}:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()

    @staticmethod
    def end() -> None:
        first, SharedRay._first = SharedRay._first, None
        if first is not None:
            RayInstance.stop(first)
