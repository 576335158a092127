"""The interface of a backend, which runs workers in this process (`LocalBackend`) or as Ray actors (`RayBackend`).

A worker is a plain class. Its coroutine methods may run many at a time; its ordinary methods run one after another on the
worker's own thread, so a worker needs no locks and torch keeps its per-thread settings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from roll.core.distributed.devices import Inventory, Placement
from roll.core.distributed.machine import ProcessMemory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker to start: `class_path` ("package.module.Class") with `kwargs`, named `name` in messages, at `placement`."""

    name: str
    class_path: str
    placement: Placement
    kwargs: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the worker's process begins with, if it has one."""


class WorkerHandle(Protocol):
    name: str
    killable: bool
    """True if it has a process of its own."""

    async def call(self, method: str, *args: object) -> Any:
        """Returns the method's result. Raises the method's error, or `WorkerDied`."""

    async def call_for_reference(self, method: str, *args: object) -> tuple[Ref, Any]:
        """Calls a method that returns (value, info); leaves the value where it was made and returns (reference, info). The
        reference is passed to other workers' methods, which get the value."""

    async def died(self) -> None:
        """Returns only when the worker's process is gone. Raises `BackendLost`."""

    async def ping(self) -> None:
        """Returns soon if the worker's process runs and its event loop turns, however busy its thread is."""

    def stacks(self) -> str:
        """Returns stacks of the worker's threads and tasks, even if it hangs; empty if it shares this process. Takes seconds: for
        a thread, not for the event loop."""

    async def memory(self) -> ProcessMemory | None:
        """Returns the memory of the worker's process and its children; None without a process of its own, or if unreadable."""

    def kill(self) -> None:
        """Ends the worker's process immediately, even if it is busy; it may be gone already."""

    async def close(self) -> None: ...


Ref = Any
"""A result that stays where it was made until a worker asks for it: an object of Ray's store, or the value itself."""


class Backend(Protocol):
    isolated: bool
    """True if every worker has a process, and so its own view of the devices and one rank of a process group."""

    def devices(self, nodes: int, per_node: int | None) -> Inventory:
        """Returns the devices of `nodes` nodes, `per_node` of each or all. Called before workers start; raises `ConfigError`."""

    def reserve(self, devices: Collection[int], who: str) -> None:
        """Reserves the devices for the run, which others know as `who`, until it ends. Called once, after `devices`; raises
        `ConfigError` if others hold them."""

    def ask_nodes(self, devices: Collection[int], function: Callable[..., T], *args: object) -> dict[str, T]:
        """Returns the function's result on each other node with some of these devices, by the node's name and address."""

    def check_nodes(self, devices: Collection[int]) -> None:
        """Raises `NodeLost` if a node that has some of these is gone, and no other has taken its place."""

    def node_address(self, node: int) -> str:
        """The address at which other nodes reach this node."""

    def free_port(self, node: int) -> int:
        """A port of this node at which no process listens."""

    def driver_address(self) -> str:
        """The address at which all nodes reach the driver's node."""

    async def start(self, spec: WorkerSpec) -> WorkerHandle: ...

    async def put(self, value: object) -> Ref:
        """Returns a reference to a value of this process, stored once for all the workers that it is passed to."""

    def value(self, reference: Ref) -> Any:
        """Returns the value of a reference; it may have to come from another node. Blocks; may be called by any thread."""

    async def shutdown(self) -> None: ...
