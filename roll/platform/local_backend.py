"""Runs all workers in this process, and carries a worker in a process of its own."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from roll.core.configs.dotted_path import import_object
from roll.core.distributed.backend import Ref, WorkerSpec
from roll.core.distributed.devices import Inventory, detect
from roll.core.errors import contained
from roll.platform.garbage import collection_paused, spare_what_is_there
from roll.platform.ports import free_port

CLOSE_S = 60.0
"""Seconds to wait for a worker of this process to end."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerHost:
    """Carries one worker in its process and runs its methods as described above."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=spec.name)
        self._worker: Any = None

    async def start(self) -> None:
        with collection_paused():
            cls = import_object(self._spec.class_path)
        loop = asyncio.get_running_loop()
        self._worker = await loop.run_in_executor(self._thread, contained, partial(cls, **self._spec.kwargs))
        if hasattr(self._worker, "start"):
            await self.call("start")
        spare_what_is_there()

    async def call(self, method: str, *args: object) -> Any:
        bound = getattr(self._worker, method)
        if inspect.iscoroutinefunction(bound):
            return await bound(*args)
        return await asyncio.get_running_loop().run_in_executor(self._thread, contained, bound, *args)

    async def close(self) -> None:
        if self._worker is not None and hasattr(self._worker, "close"):
            await self.call("close")
        self._thread.shutdown(wait=False, cancel_futures=True)


class LocalHandle:
    killable = False

    def __init__(self, host: WorkerHost, name: str) -> None:
        self.name = name
        self._host = host

    async def call(self, method: str, *args: object) -> Any:
        return await self._host.call(method, *args)

    async def call_for_reference(self, method: str, *args: object) -> tuple[Ref, Any]:
        value, info = await self._host.call(method, *args)
        return value, info

    async def died(self) -> None:
        await asyncio.Event().wait()

    async def ping(self) -> None:
        """Returns immediately: the worker shares the driver's event loop."""

    def stacks(self) -> str:
        return ""

    async def memory(self) -> None:
        """It is the driver's."""

    def kill(self) -> None:
        raise RuntimeError(f"worker {self.name} shares this process and cannot be killed")

    async def close(self) -> None:
        await self._host.close()


class OneNode:
    """The answers of a back end whose workers are all in this process: a value is its own reference."""

    def reserve(self, devices: Collection[int], who: str) -> None:
        """Does nothing: devices of this machine are claimed by file."""

    def ask_nodes(self, devices: Collection[int], function: Callable[..., T], *args: object) -> dict[str, T]:
        return {}

    def check_nodes(self, devices: Collection[int]) -> None:
        """Does nothing: the only node is this one."""

    def node_address(self, node: int) -> str:
        return "127.0.0.1"

    def driver_address(self) -> str:
        return "127.0.0.1"

    async def put(self, value: object) -> Ref:
        return value

    def value(self, reference: Ref) -> Any:
        return reference


class LocalBackend(OneNode):
    """Runs all workers in this process, without Ray: for debuggers, fast tests, and single machines without Ray."""

    isolated = False

    def __init__(self) -> None:
        self._handles: list[LocalHandle] = []
        self._starting = asyncio.Lock()

    def devices(self, nodes: int, per_node: int | None) -> Inventory:
        return detect(nodes, per_node)

    def free_port(self, node: int) -> int:
        return free_port()

    async def start(self, spec: WorkerSpec) -> LocalHandle:
        host = WorkerHost(spec)
        # One at a time: while a model loads, transformers changes state of the whole process (default device, tied weights).
        async with self._starting:
            await host.start()
        handle = LocalHandle(host, spec.name)
        self._handles.append(handle)
        return handle

    async def shutdown(self) -> None:
        for handle in self._handles:
            try:
                await asyncio.wait_for(handle.close(), CLOSE_S)
            except TimeoutError:
                logger.warning("worker %s does not end: it still works on a call", handle.name)
        self._handles.clear()
