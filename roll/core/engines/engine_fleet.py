"""Keeps the inference engines alive, and brings policy versions to them.

An engine that dies, or does not answer a health check in time, is taken out immediately and killed; a new worker takes its place,
gets the weights of the oldest version that others serve, says that it serves them, and only then is served again. Its requests
went elsewhere. Engines that share devices with other roles start, load and flip when it is the engines' turn to have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.engines.fleet import EngineState, Fleet
from roll.core.engines.silent_engines import SilentEngines
from roll.core.engines.weight_sending import WeightSending
from roll.core.errors import LOST, EngineError, EngineSilent, NodeLost, WorkerDied, WorkersLost, WorkerStartError
from roll.core.groups.changes import Changes
from roll.core.weights.bucket import WeightManifest
from roll.core.weights.store import Broadcast, Buckets, WeightSource
from roll.core.workers.infer_interface import EngineStats, WeightUpdateMode

logger = logging.getLogger(__name__)

NODE_LOOK_S = 5.0
"""Seconds between two searches for a node for an engine that has lost its own."""


class Routing(Protocol):
    """Sends requests to the engines."""

    def close(self, engine: int) -> None:
        """Closes the engine to requests."""

    def doubt(self, engine: int) -> None:
        """Marks a silent engine: as `close`, and its requests are also sent to others."""

    def open(self, engine: int) -> None:
        """Opens the engine to requests again, perhaps as a new worker of its cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRules:
    mode: WeightUpdateMode
    restartable: bool
    """True if engines are processes of their own; with --local they are not, and a dead one ends the run."""
    health_interval_s: float
    health_timeout_s: float
    rolling: bool = False
    """True if weights flip engine by engine, so that generation never stops everywhere."""
    start_empty: bool = False
    """True if a new worker has random weights, not those of the folder that the run began with."""


class EngineFleet:
    """The inference engines of a run: keeps them alive, and brings versions to them.

    Args:
        store: offers versions to engines.
        fleet: the state of each engine.
        changes: notified when an engine goes or comes back.
        devices: has the engines sleep and wake.
        broadcast: sends versions to all engines; None: each engine pulls the buckets itself.
    """

    def __init__(
        self,
        engines: Cluster,
        store: WeightSource,
        fleet: Fleet,
        changes: Changes,
        devices: DeviceLocks,
        rules: FleetRules,
        broadcast: Broadcast | None = None,
    ) -> None:
        self.engines = engines
        self.fleet = fleet
        self.routing: list[Routing] = []
        """The routers that are notified when an engine is taken out of service, and when it is back (`send_by`)."""
        self._changes = changes
        self.recovered_s: list[float] = []
        """Seconds of each recovery, from the death to the first moment of service."""
        self.store = store
        self._rules, self.restartable = rules, rules.restartable
        self.broadcast = broadcast
        self._first_version = None if rules.start_empty else fleet.version
        """The version that a new worker starts with; None if it starts empty."""
        self._sending = WeightSending(engines, store, fleet, broadcast, self.report)
        self._weights = asyncio.Lock()
        """One exchange of weights at a time: an engine that comes up must not meet half an update."""
        self._down_since: dict[int, float] = {}
        self._unplaced: set[int] = set()  # engines whose nodes are gone
        self._devices = devices
        devices.on_turn(engines.role, self.sleep, self.wake)
        self.silent = SilentEngines(engines, fleet, self._doubt, self._bring, self._open, self._take_out)
        self.last_stats: list[EngineStats] = []
        """The last statistics that were read from the engines that served then."""

    async def supervise(self) -> None:
        """Runs as long as the run does; ends only by raising `WorkerDied` or `WorkersLost`."""
        if not self.restartable:
            await self.engines.watch()
        listener = self.silent.heard if len(self.engines) > 1 else None  # for one no other could stand in
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.engines.watch(self._replace, listener))
                group.create_task(self._check_health())
        finally:
            await self.silent.close()

    @property
    def alive(self) -> list[int]:
        """Returns the engines that have a worker, serving or being loaded."""
        states = (EngineState.SERVING, EngineState.LOADING)
        return [engine for engine, state in enumerate(self.fleet.states) if state in states]

    @property
    def shares_devices(self) -> bool:
        return self._devices.shared(self.engines.role)

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Gives the devices to the engines, awake, for the block."""
        return self._devices.hold(self.engines.role)

    async def load(self) -> None:
        """Brings engines that are not in service yet into it, with the fleet's version from the store. One that is lost over it
        is replaced by `supervise`."""

        async def load(engine: int) -> None:
            try:
                await self._load(engine)
            except LOST:
                if not self.restartable:
                    raise
                self._take_out(engine)

        async with self.turn(), self._weights:
            await asyncio.gather(
                *(load(engine) for engine, state in enumerate(self.fleet.states) if state is EngineState.LOADING)
            )

    def send_by(self, routing: Routing) -> None:
        """Adds a router of requests to the engines."""
        self.routing.append(routing)
        for engine, state in enumerate(self.fleet.states):
            if state is not EngineState.SERVING:
                routing.close(engine)

    def report(self, engine: int, error: Exception) -> None:
        """Reports that an engine is gone, or hangs. Raises the error if the engine cannot be replaced."""
        if not self.restartable:
            raise error
        # `_replace` watches an engine that is being replaced; reports of others about it are late news of its predecessor. Calls
        # to one that is silent end as if it had died when its connections are lost, and it may yet live.
        there = [EngineState.SERVING] if isinstance(error, WorkerDied) else [EngineState.SERVING, EngineState.SILENT]
        if self.fleet.states[engine] in there and not isinstance(error, EngineSilent):
            self._take_out(engine)

    async def send(self, version: int, engines: Collection[int]) -> None:
        """Brings the buckets of a version that lies in the store to those of the engines that serve, while they generate."""
        async with self._weights:
            await self._sending.send(version, engines)

    async def send_ahead(self, coming: Buckets, engines: Collection[int]) -> None:
        """Brings buckets to those of the engines that serve, as the trainer makes them. One that starts meanwhile does not wait
        for the trainer; of these engines none is to be sent, or flipped to, another version before this returns."""
        await self._sending.send_ahead(coming, engines)

    async def flip(self, version: int, engines: Collection[int]) -> list[float]:
        """Makes the version the one that these engines serve, and returns the pauses in seconds. An engine that is down is left
        out: it comes up with the oldest version that others serve."""
        manifest = self.store.manifest(version)
        async with self._weights:
            # An engine that came up between sending and flipping has not received the version yet.
            await self._sending.complete(version, engines)
            ready = [engine for engine in self.fleet.serving_of(engines) if self._sending.staged.get(engine) == version]
            if self._rules.rolling:
                pauses = [await self._roll(engine, manifest) for engine in ready]
            else:
                pauses = list(await asyncio.gather(*(self._activate(engine, manifest) for engine in ready)))
            return [pause for pause in pauses if pause is not None]

    async def sleep(self) -> None:
        """Frees the devices for other roles. An engine that is down comes back when it is the engines' turn again."""
        await self._on_all("sleep")

    async def wake(self) -> None:
        await self._on_all("wake")

    async def read_stats(self) -> None:
        """Reads the statistics of the engines that serve now."""
        with contextlib.suppress(EngineSilent):
            self.last_stats = list(await asyncio.gather(*(self.engines.call(engine, "stats") for engine in self.fleet.serving)))

    def _take_out(self, engine: int) -> None:
        self.fleet.died(engine)
        self._down_since[engine] = asyncio.get_running_loop().time()
        self._sending.staged.pop(engine, None)
        self._close(engine)
        self.engines.workers[engine].kill()

    async def _activate(self, engine: int, manifest: WeightManifest) -> float | None:
        if self.fleet.states[engine] is not EngineState.SERVING:  # the engine fell silent while others flipped
            return None
        try:
            pause: float = await self.engines.call(engine, "activate_weights", manifest, self._rules.mode)
        except LOST as error:
            self.report(engine, error)
            return None
        if self.fleet.states[engine] is not EngineState.SERVING:  # the engine was taken out while its answer was on its way
            return None
        self.fleet.loaded(engine, manifest.version)
        return pause

    async def _roll(self, engine: int, manifest: WeightManifest) -> float | None:
        self._close(engine)
        pause = await self._activate(engine, manifest)
        if pause is not None:
            self._open(engine)
        return pause

    def _close(self, engine: int) -> None:
        for routing in self.routing:
            routing.close(engine)
        self._changes.notify()

    def _doubt(self, engine: int) -> None:
        self._sending.staged.pop(engine, None)
        for routing in self.routing:
            routing.doubt(engine)
        self._changes.notify()

    def _open(self, engine: int) -> None:
        for routing in self.routing:
            routing.open(engine)
        self._changes.notify()

    async def _replace(self, engine: int) -> None:
        """Replaces an engine whose process is gone. Requests may wait for it, and other roles for their end: it joins these
        requests."""
        await self.silent.forget(engine)
        if self.fleet.states[engine] in (EngineState.SERVING, EngineState.SILENT):
            self._take_out(engine)
        while not await self._placed(engine):
            await asyncio.sleep(NODE_LOOK_S)
        if self.fleet.states[engine] is not EngineState.SERVING:  # it died meanwhile; the next call replaces it
            return
        self.recovered_s.append(asyncio.get_running_loop().time() - self._down_since.pop(engine))
        logger.warning("engine %d serves again, %.0f s after it was lost", engine, self.recovered_s[-1])
        self._open(engine)

    async def _placed(self, engine: int) -> bool:
        """True if the engine has a new worker. Without one the others serve on. Raises `WorkersLost` if there are no others."""
        try:
            async with self._devices.hold(self.engines.role, joins=True):
                await self._restart(engine)
        except NodeLost as lost:
            if self.fleet.lost:
                raise WorkersLost(f"no engine is left: {lost}") from lost
            if engine not in self._unplaced:
                self._unplaced.add(engine)
                logger.warning("%s: the other engines serve on without engine %d, until there is a node for it", lost, engine)
            return False
        self._unplaced.discard(engine)
        return True

    async def _restart(self, engine: int) -> None:
        reason: Exception = WorkerDied(f"worker {self.engines.workers[engine].name} died")
        while True:
            try:
                self.fleet.restart(engine)
            except WorkersLost as lost:
                raise WorkersLost(f"{lost}; the last time: {reason}") from reason
            try:
                await self.engines.restart(engine)
                self._changes.notify()
                self.fleet.started(engine)
                async with self._weights:
                    await self._load(engine)
                return
            except NodeLost:
                self.fleet.unplaced(engine)
                raise
            except (*LOST, WorkerStartError, TimeoutError) as error:
                reason = error
                logger.warning("engine %d did not come back: %s", engine, error)
                self.engines.workers[engine].kill()  # the process may live on, and would keep the device's memory
                self.fleet.died(engine)

    async def _bring(self, engine: int) -> None:
        async with self._devices.hold(self.engines.role, joins=True), self._weights:
            await self._load(engine)

    async def _load(self, engine: int) -> None:
        """Loads the fleet's version into a new worker. That version changes if the engine that had the oldest dies meanwhile."""
        loaded = self._first_version
        while True:
            if loaded != self.fleet.version:
                loaded = self.fleet.version
                manifest = await self._sending.pull(engine, loaded)
                await self.engines.call(engine, "activate_weights", manifest, self._rules.mode)
            stats = await self.engines.call(engine, "stats")
            if loaded == self.fleet.version:
                self.fleet.verified(engine, stats.version)
                return

    async def _on_all(self, method: str) -> None:
        async def call(engine: int) -> None:
            try:
                await self.engines.call(engine, method)
            except LOST as error:
                self.report(engine, error)

        await asyncio.gather(*map(call, self.alive))

    async def _check_health(self) -> None:
        while True:
            await asyncio.sleep(self._rules.health_interval_s)
            await asyncio.gather(*map(self._check, self.alive))

    async def _check(self, engine: int) -> None:
        worker = self.engines.workers[engine]
        try:
            await asyncio.wait_for(worker.call("stats"), self._rules.health_timeout_s)
        except TimeoutError:
            message = (
                f"engine {engine} did not answer a health check in {self._rules.health_timeout_s:g} s (engine_health_timeout_s)"
            )
            if self.fleet.states[engine] is EngineState.LOADING:
                worker.kill()  # the caller that loads the worker notices its death
            elif worker is self.engines.workers[engine]:
                self.report(engine, EngineError(message))
        except LOST as error:
            self.report(engine, error)
