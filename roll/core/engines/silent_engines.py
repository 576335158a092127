"""Engines that give no sign of life and may yet live, as behind a pulled cable or on a host that stands still.

One that is silent for `QUIET_S`, while another serves, holds up nobody: its requests are begun on others as well, no version
waits for it, and calls to it are given up. When it answers it loads the version of the others, and serves. Its heartbeat, or the
death of its process, decides whether it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from roll.core.distributed.cluster import Cluster
from roll.core.engines.fleet import EngineState, Fleet
from roll.core.errors import LOST, EngineSilent

logger = logging.getLogger(__name__)


class SilentEngines:
    def __init__(
        self,
        engines: Cluster,
        fleet: Fleet,
        doubt: Callable[[int], None],
        load: Callable[[int], Awaitable[None]],
        back: Callable[[int], None],
        lost: Callable[[int], None],
    ) -> None:
        """`doubt`: starts requests to the engine elsewhere. `load`: brings the version of the others to an engine that answers
        again, and `back` makes it serve. `lost`: called if it died meanwhile."""
        self._engines, self._fleet = engines, fleet
        self._doubt, self._load, self._back, self._lost = doubt, load, back, lost
        self._since: dict[int, float] = {}
        self._returning: dict[int, asyncio.Task[None]] = {}
        self.seconds: list[float] = []
        """Seconds of each silence that ended with an answer."""

    def heard(self, engine: int, silent: bool) -> None:
        """Called when the engine falls silent, or answers again."""
        state = self._fleet.states[engine]
        if silent and engine in self._returning:
            self._returning[engine].cancel()
        elif silent and state is EngineState.SERVING and len(self._fleet.serving) > 1:
            why = f"engine {engine} gives no sign of life: what it was asked is asked of others, too"
            logger.warning("%s", why)
            self._since[engine] = asyncio.get_running_loop().time()
            self._fleet.silenced(engine)
            self._doubt(engine)
            self._engines.give_up(engine, EngineSilent(why), but="generate")
        elif not silent and state is EngineState.SILENT:
            self._returning[engine] = asyncio.ensure_future(self._take_back(engine))

    async def forget(self, engine: int) -> None:
        """The engine's process is gone: returns when nothing waits for it."""
        if (returning := self._returning.get(engine)) is not None:
            returning.cancel()
            await asyncio.wait({returning})

    async def _take_back(self, engine: int) -> None:
        self._fleet.answered(engine)
        try:
            await self._load(engine)
            silent_s = asyncio.get_running_loop().time() - self._since[engine]
            self.seconds.append(silent_s)
            logger.warning("engine %d serves again, after a silence of %.0f s", engine, silent_s)
            self._back(engine)
        except LOST:
            self._lost(engine)
        finally:
            if self._fleet.states[engine] is EngineState.LOADING:
                self._fleet.silenced(engine)
            del self._returning[engine]

    async def close(self) -> None:
        for returning in list(self._returning.values()):
            returning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await returning
