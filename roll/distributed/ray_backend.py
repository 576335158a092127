"""Workers as Ray actors on explicit devices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.distributed.backend import Ref, WorkerDied, WorkerHandle, WorkerHost, WorkerSpec
from roll.distributed.devices import Inventory, Placement, visible_devices

LOOPBACK = "127.0.0.1"
CONCURRENT_CALLS = 10_000
"""Calls that one actor may have in progress. They are coroutines that wait for an engine or a reward: cheap."""


class RayHandle:
    def __init__(self, actor: Any, name: str) -> None:
        self.name = name
        self._actor = actor
        self._process: tuple[str, int] | None = None
        """Node and process of the worker, once it runs."""

    async def call(self, method: str, *args: Any) -> Any:
        return await self._result(self._actor.call.remote(method, *args))

    async def start(self) -> None:
        await self._result(self._actor.start.remote())
        self._process = await self._result(self._actor.process.remote())

    async def keep(self, method: str, *args: Any) -> tuple[Ref, Any]:
        reference, info = self._actor.call.options(num_returns=2).remote(method, *args)
        return reference, await self._result(info)

    async def died(self) -> None:
        try:
            await self._result(self._actor.wait_forever.remote())
        except WorkerDied:
            return

    def kill(self) -> None:
        if self._process is not None and self._process[0] == ray.get_runtime_context().get_node_id():
            # A stopped or spinning process does not hear Ray, only the kernel.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process[1], signal.SIGKILL)
        else:
            ray.kill(self._actor)

    async def close(self) -> None:
        await self._result(self._actor.close.remote())

    async def _result(self, reference: Any) -> Any:
        try:
            return await reference
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except RayActorError as error:
            raise self._death(error) from error

    def _death(self, error: RayActorError) -> WorkerDied:
        lines = str(error).strip().splitlines()
        telling = [line.strip() for line in lines if "exit" in line.lower() or "kill" in line.lower()]
        detail = next(iter([*telling, *lines]), "")
        return WorkerDied(f"worker {self.name} died: {detail}")


class _Actor(WorkerHost):
    async def process(self) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), os.getpid()

    async def wait_forever(self) -> None:
        await asyncio.Event().wait()


class RayBackend:
    """Starts a Ray instance of its own on this machine, or joins the cluster that `RAY_ADDRESS` names, when first used."""

    isolated = True

    def __init__(self, inventory: Inventory, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables that every worker's process begins with, besides those that its placement asks for."""
        self._inventory = inventory
        self._given = dict(environment or {})
        self._private = os.environ.get("RAY_ADDRESS", "local") == "local"
        """Ray is this run's alone, on this machine: what workers open for each other is on the loopback interface."""
        self._nodes: list[str] = []
        self._addresses: list[str] = []

    def _connect(self) -> None:
        if self._nodes:
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        # Ray listens on all interfaces. From 2.60 on, a private instance serves only who has the token it made for this user.
        # It also takes SIGTERM over, for an exit on the spot; who listened before listens on.
        listener = signal.getsignal(signal.SIGTERM)
        address = "local" if self._private else os.environ["RAY_ADDRESS"]
        ray.init(address=address, include_dashboard=False if self._private else None, configure_logging=False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, listener)
        alive = sorted((node["NodeID"], node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"])
        self._nodes = [node_id for node_id, _ in alive]
        self._addresses = [str(node_address) for _, node_address in alive]
        if len(self._nodes) < self._inventory.nodes:
            found = f"num_nodes is {self._inventory.nodes}, but the Ray cluster has {len(self._nodes)} live nodes"
            alone = "; without RAY_ADDRESS=<head>:6379 a run has a Ray of its own on this machine" if self._private else ""
            raise ValueError(found + alone)

    def node_address(self, node: int) -> str:
        self._connect()
        return LOOPBACK if self._private else self._addresses[node]

    def driver_address(self) -> str:
        self._connect()
        return LOOPBACK if self._private else str(ray.util.get_node_ip_address())

    async def start(self, spec: WorkerSpec) -> WorkerHandle:
        self._connect()
        # The class has the worker's name, for Ray shows it in process titles and log lines.
        named = type(spec.name, (_Actor,), {})
        # No CPU or GPU is reserved: `device_mapping` alone says who is where, and overlapping roles share a device.
        actor_class: Any = ray.remote(named)
        actor = actor_class.options(
            num_cpus=0,
            num_gpus=0,
            max_concurrency=CONCURRENT_CALLS,
            max_restarts=0,
            runtime_env={"env_vars": self._environment(spec.placement)},
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._nodes[spec.placement.node], soft=False),
        ).remote(spec)
        handle = RayHandle(actor, spec.name)
        await handle.start()
        return handle

    def _environment(self, placement: Placement) -> dict[str, str]:
        # A class that the driver could import (a user's reward worker, say) can be imported by its workers too.
        importable = os.pathsep.join(map(os.path.abspath, sys.path))
        env = self._given | {
            "OMP_NUM_THREADS": str(placement.threads),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": importable,
        }
        if self._private and sys.platform == "linux":
            env["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        if self._inventory.kind == "cuda":
            # Of a cluster's nodes all devices are counted; of this machine those that the run may see.
            seen = os.environ.get("CUDA_VISIBLE_DEVICES") if self._private else None
            env["CUDA_VISIBLE_DEVICES"] = visible_devices(placement.local_devices, seen)
        return env

    async def shutdown(self) -> None:
        ray.shutdown()
