"""A Ray cluster that others started, which the driver joined (`RAY_ADDRESS`), and which lives on without it; reservations of a
run in it, beside others: their nodes and order.

Ray tries to reach a control process (`gcs_server`) that is gone for a minute, and then ends the driver on the spot. So the driver
itself checks whether the process can be reached, and gives it up before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.job_config import JobConfig
from ray.util.placement_group import NODE_ID_LABEL_KEY, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from roll.core.configs.problems import ConfigError, Problem
from roll.core.distributed.devices import Inventory
from roll.core.distributed.machine import given_threads
from roll.core.errors import BackendLost, NodeLost, boundary
from roll.platform.child import same_imports

CPU, GPU = "CPU", "GPU"
"""Ray's names of the reserved resources."""
SETTLE_S = 2.0
"""Time for Ray to place bundles that fit."""
MOVE_S = 3.0
"""Time for Ray to move bundles off a node of whose loss it knows."""
OTHER_NODE_S = 180.0
"""Limit for a task on another node, whose process starts first: on a busy machine that takes more than a minute."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class RayNode:
    address: str
    id: str
    accelerators: int
    cpus: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.name not in ("", self.address) else self.address


def live_nodes(listed: Sequence[Mapping[str, Any]], own: str) -> list[RayNode]:
    """Returns the driver's node (the id `own`) first, the others by address."""
    found = []
    for node in listed:
        if node["Alive"]:
            has = node["Resources"]
            count = int(has.get("GPU", 0))
            where, name = str(node["NodeManagerAddress"]), str(node.get("NodeManagerHostname", ""))
            found.append(RayNode(where, str(node["NodeID"]), count, int(has.get("CPU", 1)), name))
    return sorted(found, key=lambda node: (node.id != own, node))


def without_devices(chosen: Sequence[RayNode], number: int, live: Sequence[RayNode]) -> RayNode:
    """Returns the node for a worker without devices: one after another of the nodes of which the run has devices; if that is gone
    the next that is not, or else the driver's."""
    there, first = {node.id for node in live}, number % len(chosen)
    turned = [*chosen[first:], *chosen[:first]]
    return next((node for node in turned if node.id in there), live[0])


def cluster_inventory(nodes: Sequence[RayNode], count: int, per_node: int | None) -> Inventory:
    """Returns the devices of a run of `count` nodes with `per_node` devices each (None: as many as the first `count` all have),
    and the CPUs that go with them. A cluster without accelerators has CPU slots, each an equal part of its node. Raises
    `ConfigError` if there are too few nodes; on accelerators a head without them, say, is none."""
    kind: Literal["cuda", "cpu"] = "cuda" if any(node.accelerators for node in nodes) else "cpu"
    fit = [node for node in nodes if kind == "cpu" or node.accelerators >= (per_node or 1)]
    if len(fit) < count:
        what = "live nodes" if kind == "cpu" else f"live nodes with {per_node or 1} accelerators or more"
        message, fix = f"the Ray cluster has {len(fit)} {what}", "wait for the others, or fewer"
        raise ConfigError([Problem("num_nodes", count, message, fix)])
    if kind == "cpu":
        cpus = max(1, min(node.cpus for node in fit[:count]))
        return Inventory(kind, count, per_node or max(2, cpus), cpus)
    devices = per_node or min(node.accelerators for node in fit[:count])
    return Inventory(kind, count, devices, max(1, min(node.cpus * devices // node.accelerators for node in fit[:count])))


class _Unextended(list[str]):
    def extend(self, _: object) -> None:
        """Ignores Ray's additions."""


def own_path_first() -> JobConfig:
    """Returns the configuration of a job whose workers find modules by their PYTHONPATH. Ray would look first where the command
    was given, and a clone of ROLL has a package of this one's name there."""
    job = JobConfig()
    job._py_driver_sys_path = _Unextended()
    return job


def joined_inventory(count: int, per_node: int | None, within_s: float) -> Inventory:
    """Returns `cluster_inventory`, when so many nodes are there. Raises `ConfigError` if they have not joined by then."""
    began, told = time.monotonic(), False
    while True:
        try:
            found = cluster_inventory(now_live(), count, per_node)
            return replace(found, threads=given_threads()) if found.kind == "cpu" else found
        except ConfigError as error:
            if time.monotonic() - began > within_s:
                raise
            if not told:
                told = True
                logger.warning("waits up to %g s for nodes: %s", within_s, error)
        time.sleep(min(1.0, within_s))


def bundle(devices: int, inventory: Inventory) -> dict[str, float]:
    """Returns Ray's resources for so many devices of a node."""
    if inventory.kind == "cuda":
        return {GPU: devices}
    return {CPU: round(devices * inventory.cpus_per_node / inventory.per_node, 4)}


def more_room(sizes: Sequence[int], inventory: Inventory) -> str:
    """Returns advice that leaves devices to others. `sizes`: the devices that the run uses of each node."""
    if inventory.kind == "cuda":
        return "fewer devices in device_mapping" if sum(sizes) > 1 else "another node, or devices that other runs leave"
    slots = inventory.per_node
    part = f"{'its only one' if slots == 1 else f'{max(sizes)} of {slots}'}"
    return (
        f"num_gpus_per_node: {2 * slots} or more (cluster.gpu_per_node in a file of Trinity-RFT) in the files of all processes "
        f"that share the nodes: a node without GPUs is divided into so many slots, now {slots}, and this run takes {part}"
    )


def bundles_of_nodes(sizes: Sequence[int], where: Sequence[int]) -> list[int]:
    """Returns the bundle that each node of the run has, if Ray has placed bundle i, of `sizes[i]` devices, on live node
    `where[i]`: among equals, the first node of the run is the first of the live ones."""
    bundles = sorted(range(len(sizes)), key=lambda each: (sizes[each], where[each]))
    nodes = sorted(range(len(sizes)), key=lambda each: (sizes[each], each))
    return [each for _, each in sorted(zip(nodes, bundles, strict=True))]


def holders(groups: Iterable[Mapping[str, Any]], nodes: Sequence[RayNode], resource: str) -> list[str]:
    """Lists the holders of a resource with amounts and nodes, of the groups that `placement_group_table` lists."""
    addresses, said = {node.id: node.address for node in nodes}, []
    for group in groups:
        places = group["bundles_to_node_id"].items() if group["state"] == "CREATED" else ()
        held = [(group["bundles"][each].get(resource, 0), addresses.get(node, "a lost node")) for each, node in places]
        if taken := ", ".join(f"{amount:g} on {address}" for amount, address in held if amount):
            said.append(f"{group['name'] or 'a placement group without a name'} holds {taken}")
    return said


def task_on(node: str | PlacementGroupSchedulingStrategy, function: Callable[..., object], gpus: int = 0) -> Any:
    """Returns the function as a task of Ray on that node, or in a bundle, of which it has so many GPUs."""
    there = NodeAffinitySchedulingStrategy(node, soft=False) if isinstance(node, str) else node
    task: Any = ray.remote(function)
    return task.options(num_cpus=0, num_gpus=gpus, scheduling_strategy=there, runtime_env={"env_vars": same_imports()})


def now_live() -> list[RayNode]:
    return live_nodes(ray.nodes(), ray.get_runtime_context().get_node_id())


class Reservation:
    """The devices that a run holds: a placement group with a bundle for each of its nodes. Ray gives it up with the driver,
    whatever ends that, and places the bundle of a lost node on another that has as much free.

    Workers are placed by node and number of the device, not into bundles: roles share devices, and one that starts while its node
    is being lost must fail there rather than begin elsewhere with the facts of that node."""

    def __init__(self, devices: Collection[int], inventory: Inventory, who: str, within_s: float) -> None:
        """`who`: the run's description for others. Raises `ConfigError` if not all is free within so many seconds."""
        self._number_of = {device: device // inventory.per_node for device in sorted({*devices})}
        self._used = {number: [*same] for number, same in groupby(self._number_of, self._number_of.__getitem__)}
        sizes = [len(used) for used in self._used.values()]
        self._group = _reserved([bundle(size, inventory) for size in sizes], who, within_s, more_room(sizes, inventory))
        live = {node.id: node for node in now_live()}
        where = [[*live].index(node) for _, node in sorted(self._places().items())]
        self._bundles = dict(zip(self._used, bundles_of_nodes(sizes, where), strict=True))
        self._has_gpus = inventory.kind == "cuda"
        self._names: dict[int, str] = {}
        self.nodes: dict[int, RayNode] = {}
        """Nodes by number, as last asked for."""
        self._lost = set[int]()
        for number, at in self._bundles.items():
            self._take(number, [*live.values()][where[at]])

    def node(self, number: int) -> RayNode:
        """Returns the node of this number, or the one that has taken its place. Raises `NodeLost`."""
        node = self._live(number)
        if node is None and number not in self._lost:  # Ray needs a moment, once for each loss
            self._lost.add(number)
            ray.wait([self._group.ready()], timeout=MOVE_S)
            node = self._live(number)
        if node is None:
            gone = self.nodes[number].address
            raise NodeLost(f"node {number} of the run, {gone}, is gone, and the cluster has no other for it")
        if node != self.nodes[number]:
            self._take(number, node)
        self._lost.discard(number)
        return node

    def nodes_of(self, devices: Collection[int]) -> list[RayNode]:
        """Returns the nodes of these reserved devices, each once. Raises `NodeLost`."""
        return [self.node(number) for number in sorted({self._number_of[device] for device in devices})]

    def visible(self, devices: Sequence[int]) -> str:
        """Returns CUDA_VISIBLE_DEVICES for a worker on these."""
        return ",".join(self._names[device] for device in devices)

    def _places(self) -> dict[int, str]:
        found: dict[int, str] = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        return found

    def _live(self, number: int) -> RayNode | None:
        place = self._places()[self._bundles[number]]
        return next((node for node in now_live() if node.id == place), None)

    def _take(self, number: int, node: RayNode) -> None:
        used = self._used[number]
        if self._has_gpus:
            there = PlacementGroupSchedulingStrategy(self._group, self._bundles[number])
            names = ray.get(task_on(there, _own_gpus, len(used)).remote(), timeout=OTHER_NODE_S)
            self._names |= zip(used, sorted(names, key=lambda name: (len(name), name)), strict=True)
        self.nodes[number] = node


def _own_gpus() -> list[str]:
    names: list[str] = ray.get_runtime_context().get_accelerator_ids()[GPU]
    return names


def _reserved(bundles: list[dict[str, float]], who: str, within_s: float, more_room: str) -> Any:
    """Returns the placement group; the driver's node is in it if that has room. Raises `ConfigError`."""
    own, resource = now_live()[0], next(iter(bundles[0]))
    if (own.accelerators if resource == GPU else own.cpus) >= bundles[0][resource]:
        first = [{NODE_ID_LABEL_KEY: own.id}, *({} for _ in bundles[1:])]
        group = placement_group(bundles, "STRICT_SPREAD", who, bundle_label_selector=first)
        if ray.wait([group.ready()], timeout=SETTLE_S)[0]:
            return group
        remove_placement_group(group)
    group = placement_group(bundles, "STRICT_SPREAD", who)
    if not ray.wait([group.ready()], timeout=SETTLE_S)[0]:
        missing = _missing(bundles, resource)
        logger.warning("waits up to %g s for devices: %s; what would help: %s", within_s, missing, more_room)
        if not ray.wait([group.ready()], timeout=within_s)[0]:
            fix = f"{more_room}; or a longer device_timeout, to wait for others to end or for nodes to join"
            raise ConfigError([Problem("device_timeout", within_s, _missing(bundles, resource), fix)])
    return group


def _missing(bundles: Sequence[Mapping[str, float]], resource: str) -> str:
    counts = Counter(each[resource] for each in bundles)
    needs = ", ".join(f"{size:g} {resource} on {f'each of {n} nodes' if n > 1 else 'a node'}" for size, n in counts.items())
    have, free = (of.get(resource, 0) for of in (ray.cluster_resources(), ray.available_resources()))
    held = "; ".join(holders(ray.util.placement_group_table().values(), now_live(), resource))
    return f"the run needs {needs}, and {free:g} of {have:g} are free in the Ray cluster: {held or 'see ray status'}"


STOPPED = "the run has ended its part in Ray"
LOOK_S = 3.0
LOST_S = 30.0
"""More than the restart of a control process takes, and less than Ray's minute by the time that ending a run takes."""


class JoinedRay:
    def __init__(self, address: str) -> None:
        self._address = address
        self._control = ""
        self._lost: BackendLost | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Raises `RuntimeError`, which names a fix."""
        # `ray start` makes a cluster ask for the token where there is one; a driver sends it only if it is told to.
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        advice = "is it <head>:6379 of a cluster that runs (ray status), with the same Ray and Python, and its token?"
        told = f"Ray at RAY_ADDRESS={self._address} cannot be joined"
        with boundary(RuntimeError, told, say=lambda error: f"{' '.join(str(error).split())[:300]}; {advice}"):
            ray.init(address=self._address, configure_logging=False, job_config=own_path_first())
        self._control = ray.get_runtime_context().gcs_address

    def why_lost(self) -> BackendLost | None:
        return self._lost

    async def lost(self) -> None:
        """Returns when `why_lost` has an answer."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        await asyncio.wait({self._watching})

    async def reached(self) -> None:
        """Returns when the control process can be reached: Ray's questions would block the event loop until then, and so the
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
