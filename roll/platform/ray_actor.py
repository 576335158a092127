"""A worker's process in Ray."""

from __future__ import annotations

import asyncio
import os

import ray

from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.machine import ProcessMemory, process_memory
from roll.platform import stacks
from roll.platform.exchange import Callers
from roll.platform.local_backend import WorkerHost
from roll.platform.process_setup import use_network_of


class RayActor(WorkerHost):
    def __init__(self, spec: WorkerSpec, folder: str, private: bool) -> None:
        """`folder`: the driver's. A worker of a cluster begins where `ray start` was given, and a user's code may open files.
        `private`: all workers are on this machine."""
        if os.path.isdir(folder):
            os.chdir(folder)
        if not private:
            use_network_of(ray.util.get_node_ip_address())
        super().__init__(spec)
        self._callers = Callers(self)

    async def exchange(self, message: bytes) -> bytes:
        return await self._callers.exchange(message)

    async def process(self) -> tuple[str, int, int | None]:
        return ray.get_runtime_context().get_node_id(), os.getpid(), stacks.listen()

    async def tasks(self) -> str:
        return stacks.tasks(asyncio.get_running_loop())

    async def wait_forever(self) -> None:
        await asyncio.Event().wait()

    async def ping(self) -> None:
        """Answers as long as the process runs and no coroutine of its worker blocks the event loop that they share."""

    async def memory(self) -> ProcessMemory | None:
        return await asyncio.to_thread(process_memory, with_children=True)
