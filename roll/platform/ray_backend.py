"""Workers as Ray actors on explicit devices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray._private import utils as ray_utils
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.core.configs.problems import ConfigError, Problem
from roll.core.distributed.backend import Ref, WorkerHandle, WorkerSpec
from roll.core.distributed.devices import Inventory, Placement, detect
from roll.core.distributed.machine import ProcessMemory
from roll.core.errors import BackendLost, NodeLost, WorkerDied, boundary
from roll.platform import ray_nodes, stacks
from roll.platform.child import same_imports
from roll.platform.exchange import Calls
from roll.platform.ports import free_port
from roll.platform.process_setup import forwarded
from roll.platform.ray_actor import RayActor
from roll.platform.ray_instance import RayInstance
from roll.platform.ray_says import death, say_less
from roll.platform.visible_devices import only
from roll.platform.watchdog import Watchdog

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
CONCURRENT_CALLS = 10_000
"""Calls that one actor may have in progress. They are coroutines that wait for an engine or a reward: cheap."""
NODE_VERDICT_S = 30.0
"""Time for Ray to find that a node is gone: it was seen to take 17 to 24 s."""


class RayHandle:
    killable = True

    def __init__(self, actor: Any, name: str, life: RayInstance | ray_nodes.JoinedRay | None = None) -> None:
        """`life`: the Ray that the worker lives in, if this process has to notice its end."""
        self.name = name
        self._actor = actor
        self._exchange = actor.exchange
        self._calls = Calls(self)
        self._life = life
        self._process: tuple[str, int, int | None] | None = None
        """Node and process of the worker, once it runs, and the descriptor of its stacks."""

    def __reduce__(self) -> tuple[object, ...]:
        """Another worker may have the handle, which watches nothing there."""
        return RayHandle, (self._actor, self.name)

    @property
    def local_pid(self) -> int | None:
        """Process id of the worker; None until it runs, and if it runs on another node."""
        if self._process is None or self._process[0] != ray.get_runtime_context().get_node_id():
            return None
        return self._process[1]

    async def call(self, method: str, *args: Any) -> Any:
        if not any(isinstance(arg, ray.ObjectRef) for arg in args):
            return await self._calls.call(method, *args)
        self._calls.send()  # a reference that has to be waited for holds up no other call
        return await self._result(self._actor.call.remote(method, *args))

    async def exchange(self, message: bytes) -> bytes:
        answers: bytes = await self._result(self._exchange.remote(message))
        return answers

    async def start(self) -> None:
        started = asyncio.ensure_future(self._result(self._actor.start.remote()))
        await self._first(started)
        await started
        self._process = await self._result(self._actor.process.remote())

    async def call_for_reference(self, method: str, *args: Any) -> tuple[Ref, Any]:
        self._calls.send()
        reference, info = self._actor.call.options(num_returns=2).remote(method, *args)
        return reference, await self._result(info)

    async def died(self) -> None:
        await self._first(asyncio.ensure_future(self._wait_forever()))

    async def _first(self, event: asyncio.Future[object]) -> None:
        """Waits for the event, not longer than Ray lives. Raises `BackendLost`."""
        events = {event}
        if self._life is not None:
            events.add(asyncio.ensure_future(self._life.lost()))
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if (lost := self._why_lost()) is not None:
                raise lost
        finally:
            for pending in events:
                pending.cancel()

    async def _wait_forever(self) -> None:
        while True:
            try:
                await self._result(self._actor.wait_forever.remote())
            except (WorkerDied, BackendLost) as error:
                if not isinstance(error.__cause__, ActorUnavailableError):
                    return
            await asyncio.sleep(1.0)  # its connection is lost, it may live, and nothing tells of another connection

    async def ping(self) -> None:
        await self._result(self._actor.ping.remote())

    def stacks(self) -> str:
        node, pid, answers = self._process or ("", 0, None)
        if answers is None:
            return "(cannot be asked)"
        try:
            tasks = ray.get(self._actor.tasks.remote(), timeout=stacks.LIMIT_S)
        except RayError as error:
            tasks = f"(its event loop does not answer: {type(error).__name__})"
        try:
            if self.local_pid is not None:
                threads = stacks.of_process(pid, answers)
            else:  # the signal has to be sent where the worker is
                threads = ray.get(ray_nodes.task_on(node, stacks.of_process).remote(pid, answers), timeout=ray_nodes.OTHER_NODE_S)
        except RayError as error:
            threads = f"(its node does not answer: {type(error).__name__})"
        return f"{threads}\nasyncio tasks:\n{tasks}"

    async def memory(self) -> ProcessMemory | None:
        memory: ProcessMemory | None = await self._result(self._actor.memory.remote())
        return memory

    def kill(self) -> None:
        if self.local_pid is not None:
            # A stopped or spinning process does not react to Ray, only to the kernel's signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.local_pid, signal.SIGKILL)
        else:
            ray.kill(self._actor)

    async def close(self) -> None:
        await self._result(self._actor.close.remote())

    async def _result(self, reference: Any) -> Any:
        try:
            return await reference
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except RayError as error:
            if (lost := self._why_lost()) is not None:
                raise lost from error
            raise (death(self.name, error) if isinstance(error, RayActorError) else error) from error

    def _why_lost(self) -> BackendLost | None:
        return self._life.why_lost() if self._life is not None else None


class RayBackend:
    """Starts a Ray instance of its own on this machine, or joins the cluster that `RAY_ADDRESS` names, when first used."""

    isolated = True

    def __init__(
        self,
        inventory: Inventory | None = None,
        environment: Mapping[str, str] | None = None,
        watchdog: Watchdog | None = None,
        logs: Path | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """`inventory`: None until `devices` has found it. `environment`: variables that every worker's process begins with,
        besides those that its placement asks for. `watchdog`, `logs`: see `RayInstance`. `patience_s`: for nodes of a cluster to
        join, and for others to give up its devices (`device_timeout`)."""
        self._inventory = inventory
        self._given = dict(environment or {})
        self._patience_s = patience_s
        address = os.environ.get("RAY_ADDRESS", "local")
        self._private = address == "local"
        """Ray is this run's alone, on this machine: workers listen for each other on the loopback interface."""
        self._ray: RayInstance | ray_nodes.JoinedRay = (
            RayInstance(watchdog, logs) if self._private else ray_nodes.JoinedRay(address)
        )
        self._live: list[ray_nodes.RayNode] = []
        self._held: ray_nodes.Reservation | None = None
        """Reservation in a joined cluster."""

    def devices(self, nodes: int, per_node: int | None) -> Inventory:
        if self._private:
            if nodes > 1:
                one = f"device_mapping below {per_node}, the devices of one" if per_node else "1"
                fix = f"{one}; only with RAY_ADDRESS=<head>:6379 a run joins a Ray cluster"
                raise ConfigError([Problem("num_nodes", nodes, "the run has a Ray of its own on this machine", fix)])
            self._inventory = detect(nodes, per_node)
        else:
            try:
                self._connect()
            except RuntimeError as error:
                why, _, advice = str(error).partition("; ")
                raise ConfigError([Problem("RAY_ADDRESS", os.environ["RAY_ADDRESS"], why, advice)]) from error
            self._inventory = ray_nodes.joined_inventory(nodes, per_node, self._patience_s)
        return self._inventory

    def reserve(self, devices: Collection[int], who: str) -> None:
        if devices and not self._private:
            assert self._inventory is not None, "a reservation before devices"
            address, what, fix = os.environ["RAY_ADDRESS"], "devices cannot be reserved", "look at the cluster: ray status"
            with boundary(lambda why: ConfigError([Problem("RAY_ADDRESS", address, why, fix)]), what, (ConfigError,)):
                self._held = ray_nodes.Reservation(devices, self._inventory, who, self._patience_s)

    def ask_nodes(self, devices: Collection[int], function: Callable[..., T], *args: object) -> dict[str, T]:
        if self._held is None:
            return {}
        own = ray.get_runtime_context().get_node_id()
        nodes = [node for node in self._held.nodes_of(devices) if node.id != own]
        asked = [ray_nodes.task_on(node.id, function).remote(*args) for node in nodes]
        try:
            answers: list[T] = ray.get(asked, timeout=ray_nodes.OTHER_NODE_S)
        except GetTimeoutError:
            waiting = set(ray.wait(asked, num_returns=len(asked), timeout=0)[1])
            silent = " and ".join(str(node) for node, one in zip(nodes, asked, strict=True) if one in waiting)
            why = f"{silent} gave no answer within {ray_nodes.OTHER_NODE_S:.0f} s"
            fix = "look at the machine: a Ray worker has to start there"
            raise ConfigError([Problem("RAY_ADDRESS", os.environ["RAY_ADDRESS"], why, fix)]) from None
        return dict(zip(map(str, nodes), answers, strict=True))

    def check_nodes(self, devices: Collection[int]) -> None:
        if self._held is not None:
            self._held.nodes_of(devices)

    def _node(self, number: int) -> ray_nodes.RayNode:
        """Raises `NodeLost`."""
        self._connect()
        return self._live[number] if self._held is None else self._held.node(number)

    async def _is_gone(self, node: ray_nodes.RayNode) -> bool:
        """Returns True if the node of a worker that has just died is gone: Ray takes its time to know."""
        deadline = time.monotonic() + NODE_VERDICT_S
        while time.monotonic() < deadline and self._held is not None and node.id != ray.get_runtime_context().get_node_id():
            await self._ray.reached()
            if all(live.id != node.id for live in ray_nodes.now_live()):
                return True
            await asyncio.sleep(1.0)
        return False

    def _node_of(self, placement: Placement) -> ray_nodes.RayNode:
        if placement.devices or self._held is None:
            return self._node(placement.node)
        return ray_nodes.without_devices([*self._held.nodes.values()], placement.node, ray_nodes.now_live())

    def _connect(self) -> None:
        if self._live:
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        say_less()
        # Ray sets two handlers of SIGTERM: one of Python's, which exits with a traceback, and at last one of C++, which dumps its
        # stack. The first is kept from it, the second replaced by that of before.
        replaces, listener = ray_utils.set_sigterm_handler, signal.getsignal(signal.SIGTERM)
        ray_utils.set_sigterm_handler = lambda _: None
        try:
            self._ray.start()
        finally:
            ray_utils.set_sigterm_handler = replaces
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, listener)
        self._live = ray_nodes.now_live()

    def node_address(self, node: int) -> str:
        return LOOPBACK if self._private else self._node(node).address

    def free_port(self, node: int) -> int:
        if self._private or self._node(node).id == ray.get_runtime_context().get_node_id():
            return free_port()
        there = self._node(node)
        try:
            found: int = ray.get(ray_nodes.task_on(there.id, free_port).remote(), timeout=ray_nodes.OTHER_NODE_S)
        except RayError as error:  # it has gone since Ray was asked
            raise NodeLost(f"{there} names no free port ({type(error).__name__})") from error
        return found

    def driver_address(self) -> str:
        self._connect()
        return LOOPBACK if self._private else str(ray.util.get_node_ip_address())

    async def start(self, spec: WorkerSpec) -> WorkerHandle:
        while True:
            self._connect()
            await self._ray.reached()
            node = self._node_of(spec.placement)
            try:
                return await self._start(spec, node)
            except WorkerDied:
                if not await self._is_gone(node):
                    raise
                if spec.placement.devices:
                    self._node_of(spec.placement)
                    raise  # what the worker was told of its node is wrong elsewhere

    async def _start(self, spec: WorkerSpec, node: ray_nodes.RayNode) -> WorkerHandle:
        # The class has the worker's name, for Ray shows it in process titles and log lines.
        # The worker itself reserves nothing: the run holds its devices, and overlapping roles share one.
        actor_class: Any = ray.remote(type(spec.name, (RayActor,), {}))
        actor = actor_class.options(
            num_cpus=0,
            num_gpus=0,
            max_concurrency=CONCURRENT_CALLS,
            max_restarts=0,
            runtime_env={"env_vars": self._environment(spec.placement) | spec.environment},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote(spec, os.getcwd(), self._private)
        handle = RayHandle(actor, spec.name, self._ray)
        try:
            await handle.start()
        except BackendLost:
            raise
        except BaseException:  # a cancelled start, too: nothing else would end the worker
            ray.kill(actor)
            raise
        if isinstance(self._ray, RayInstance) and handle.local_pid is not None:
            self._ray.ends_with_driver([handle.local_pid])
        return handle

    async def put(self, value: object) -> Ref:
        return await asyncio.to_thread(ray.put, value)

    def value(self, reference: Ref) -> Any:
        return ray.get(reference)

    def _environment(self, placement: Placement) -> dict[str, str]:
        # A class that the driver could import (a user's reward worker, say) can be imported by its workers too.
        env = ({} if self._private else forwarded(os.environ)) | self._given | same_imports()
        env |= {"OMP_NUM_THREADS": str(placement.threads), "TOKENIZERS_PARALLELISM": "false"}
        if self._private and sys.platform == "linux":
            env["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        if self._inventory is not None and self._inventory.kind == "cuda":
            held = self._held
            env |= only(placement.local_devices) if held is None else {"CUDA_VISIBLE_DEVICES": held.visible(placement.devices)}
            env["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # workers reserve none of Ray's GPUs, and Ray would hide all
        return env

    async def shutdown(self) -> None:
        self._ray.stop()
