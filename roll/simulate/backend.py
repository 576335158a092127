"""A back end whose workers are scripted: each is as apart from the others as a process, and can die, and be far away.

A call that its caller gives up goes on in its worker, as in a process. A worker that dies loses its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.devices import Inventory
from roll.core.errors import WorkerDied
from roll.core.pipeline.roles import of_trainer
from roll.platform.local_backend import OneNode
from roll.simulate.costs import Costs
from roll.simulate.shared_devices import Part

Make = Callable[[WorkerSpec, Part], object]
"""Makes the worker of a specification, with its part of its devices."""
WHOLE = frozenset({"receive_bucket", "activate_weights"})
"""Calls whose measured seconds are those of the call."""


class SimulatedHandle:
    killable = True

    def __init__(self, name: str, worker: Any, links: Links, call_s: float, part: Part) -> None:
        self.name = name
        self._part = part
        self._message_s = call_s / 2
        self.worker = worker
        self._links = links
        self._dead = asyncio.get_running_loop().create_future()
        self._open: dict[asyncio.Future[Any], asyncio.Task[Any]] = {}
        """The answer that a caller waits for, and the task that computes it."""

    async def call(self, method: str, *args: object) -> Any:
        if self._dead.done():
            await asyncio.sleep(0)  # a process that is gone is not found out about in no time
            raise WorkerDied(f"worker {self.name} died")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        work = asyncio.ensure_future(self._work(answer, method, args))
        self._open[answer] = work
        work.add_done_callback(lambda _: self._open.pop(answer, None))
        return await answer

    async def call_for_reference(self, method: str, *args: object) -> tuple[Any, Any]:
        value, info = await self.call(method, *args)
        return value, info

    async def died(self) -> None:
        await asyncio.shield(self._dead)

    async def ping(self) -> None:
        if self._dead.done():
            raise WorkerDied(f"worker {self.name} died")

    def stacks(self) -> str:
        return ""

    async def memory(self) -> None:
        """Does nothing: a scripted worker has no memory of its own."""

    def kill(self) -> None:
        if self._dead.done():
            return
        self._dead.set_result(None)
        self._part.leave()
        for answer, work in list(self._open.items()):
            work.cancel()
            if not answer.done():
                answer.set_exception(WorkerDied(f"worker {self.name} died"))
                answer.exception()  # the caller hears of it; one that has gone does not

    async def close(self) -> None:
        self.kill()

    async def _work(self, answer: asyncio.Future[Any], method: str, args: tuple[object, ...]) -> None:
        message_s = 0.0 if method in WHOLE else self._message_s
        try:
            await self._links.pass_one(message_s)
            result = await self._answered(method, args)
            await self._links.pass_one(message_s)
        except asyncio.CancelledError:
            return  # it has died
        except Exception as error:  # boundary: what the worker raises is its caller's
            if not answer.done():
                answer.set_exception(error)
                answer.exception()
            return
        if not answer.done():
            answer.set_result(result)

    async def _answered(self, method: str, args: tuple[object, ...]) -> Any:
        return await getattr(self.worker, method)(*args)


class Links:
    """Links between the driver and the workers."""

    def __init__(self, driver_s: float) -> None:
        """`driver_s`: the driver's seconds for each message; it handles one after the other."""
        self._driver_s = driver_s
        self._free_at = 0.0
        """The time at which the driver has handled all messages so far."""

    async def pass_one(self, message_s: float = 0.0) -> None:
        """`message_s`: the message's own seconds, besides the driver's."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + self._driver_s
        if seconds := message_s + self._free_at - now:
            await asyncio.sleep(seconds)


class SimulatedBackend(OneNode):
    isolated = True
    handle: ClassVar[type[SimulatedHandle]] = SimulatedHandle

    def __init__(self, inventory: Inventory, costs: Costs, make: Make) -> None:
        self._inventory = inventory
        self._costs = costs
        self._make = make
        self.links = Links(costs.message_s)
        self.workers: dict[str, SimulatedHandle] = {}
        """The newest worker of each name."""
        self._parts: dict[int, list[Part]] = {}
        """Parts of each device."""

    def devices(self, nodes: int, per_node: int | None) -> Inventory:
        return self._inventory

    def free_port(self, node: int) -> int:
        return 1  # nothing listens in a simulation

    async def start(self, spec: WorkerSpec) -> SimulatedHandle:
        await asyncio.sleep(self._costs.start_s)
        await self.links.pass_one()
        part = self.part(spec)
        worker = self._make(spec, part)
        call_s = 0.0 if of_trainer(spec.name.rpartition("-")[0]) else self._costs.call_s
        handle = self.workers[spec.name] = self.handle(spec.name, worker, self.links, call_s, part)
        return handle

    def part(self, spec: WorkerSpec) -> Part:
        return Part(spec.placement.devices, self._parts, self._costs.overlap_speed)

    async def shutdown(self) -> None:
        for handle in self.workers.values():
            handle.kill()
