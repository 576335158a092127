"""A Ray cluster that others started, which the driver joined (`RAY_ADDRESS`), and which lives on without it; the nodes of it that
a run uses, and in which order.

Ray tries to reach a control process (`gcs_server`) that is gone for a minute, and then ends the driver on the spot. So the driver
itself looks whether the process can be reached, and gives it up before.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.configs.problems import ConfigError, Problem
from roll.distributed.child import same_imports
from roll.distributed.devices import Inventory
from roll.errors import BackendLost, boundary


@dataclass(frozen=True, slots=True, order=True)
class RayNode:
    address: str
    id: str
    accelerators: int
    cpus: int


def live_nodes(listed: Sequence[Mapping[str, Any]], own: str) -> list[RayNode]:
    """The driver's node (the id `own`) first, the others by address."""
    found = []
    for node in listed:
        if node["Alive"]:
            has = node["Resources"]
            count = int(has.get("GPU", 0))
            found.append(RayNode(str(node["NodeManagerAddress"]), str(node["NodeID"]), count, int(has.get("CPU", 1))))
    return sorted(found, key=lambda node: (node.id != own, node))


def run_nodes(nodes: Sequence[RayNode], kind: str, count: int, per_node: int) -> list[RayNode]:
    """The first `count` nodes that have `per_node` devices: on accelerators a head without them, say, is no node of the run.
    `ConfigError` if there are fewer."""
    fit = [node for node in nodes if kind == "cpu" or node.accelerators >= per_node]
    if len(fit) < count:
        what = "live nodes" if kind == "cpu" else f"live nodes with {per_node} accelerators or more"
        message, fix = f"the Ray cluster has {len(fit)} {what}", "wait for the others, or fewer"
        raise ConfigError([Problem("num_nodes", count, message, fix)])
    return fit[:count]


def with_devices(chosen: Sequence[RayNode], number: int, live: Sequence[RayNode], kind: str, per_node: int) -> RayNode | None:
    """The node that has the devices of node `number`: the one that was chosen for it or, if that is gone, a live one that is no
    node of the run and has as many. None if there is none."""
    if any(node.id == chosen[number].id for node in live):
        return chosen[number]
    taken = {node.id for node in chosen}
    return next((node for node in live if node.id not in taken and (kind == "cpu" or node.accelerators >= per_node)), None)


def without_devices(chosen: Sequence[RayNode], number: int, live: Sequence[RayNode]) -> RayNode:
    """Where a worker goes that needs no device: to node `number`, or if that is gone to the next of the run that is not. One of
    them is always there, the driver's."""
    there = {node.id for node in live}
    turned = [*chosen[number:], *chosen[:number]]
    return next((node for node in turned if node.id in there), live[0])


def cluster_inventory(nodes: Sequence[RayNode], count: int, per_node: int | None) -> Inventory:
    """The devices of a run of `count` nodes with `per_node` devices each (None: as many as all of them have). A cluster without
    accelerators has CPU slots."""
    kind: Literal["cuda", "cpu"] = "cuda" if any(node.accelerators for node in nodes) else "cpu"
    chosen = run_nodes(nodes, kind, count, per_node or 1)
    cpus = max(1, min(node.cpus for node in chosen))
    least = min(node.accelerators for node in chosen) if kind == "cuda" else max(2, cpus)
    return Inventory(kind, count, per_node or least, cpus)


def task_on(node: str, function: Callable[..., object]) -> Any:
    """The function as a task of Ray on that node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task: Any = ray.remote(function)
    return task.options(num_cpus=0, scheduling_strategy=there, runtime_env={"env_vars": same_imports()})


STOPPED = "the run has ended its part in Ray"
LOOK_S = 3.0
LOST_S = 30.0
"""More than a control process that is restarted takes, and less than Ray's minute by what ending a run takes."""


class JoinedRay:
    def __init__(self, address: str) -> None:
        self._address = address
        self._control = ""
        self._lost: BackendLost | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Raises `RuntimeError`, which says what to do."""
        # `ray start` makes a cluster ask for the token where there is one; a driver sends it only if it is told to.
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        advice = "is it <head>:6379 of a cluster that runs (ray status), with the same Ray and Python, and its token?"
        told = f"Ray at RAY_ADDRESS={self._address} cannot be joined"
        with boundary(RuntimeError, told, say=lambda error: f"{' '.join(str(error).split())[:300]}; {advice}"):
            ray.init(address=self._address, configure_logging=False)
        self._control = ray.get_runtime_context().gcs_address

    def why_lost(self) -> BackendLost | None:
        return self._lost

    async def lost(self) -> None:
        """Returns when `why_lost` has an answer."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        await asyncio.wait({self._watching})

    async def reached(self) -> None:
        """Returns when the control process can be reached: what Ray asks it would block the event loop until then, and so the
        watch over it. Raises `BackendLost`."""
        while self._lost is not None or not await _answers(self._control):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.lost(), LOOK_S)
            if self._lost is not None:
                raise self._lost

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._lost = self._lost or BackendLost(STOPPED)
        ray.shutdown()

    async def _watch(self) -> None:
        answered = time.monotonic()
        while time.monotonic() - answered < LOST_S:
            await asyncio.sleep(LOOK_S)
            if await _answers(self._control):
                answered = time.monotonic()
        self._lost = BackendLost(
            f"Ray's control process at {self._control} (RAY_ADDRESS={self._address}) cannot be reached for {LOST_S:.0f} s: the "
            "cluster's head has ended, or the network to it"
        )


async def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        async with asyncio.timeout(LOOK_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        return True
    return False
