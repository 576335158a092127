"""`roll check --flow`: the graph of a run, read off the stages, channels and devices that the run itself is made of, and its text
for Mermaid, which GitHub and many editors draw."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from roll.core.configs.ppo import PPOConfig
from roll.core.flow.custom_stage import CustomStage
from roll.core.flow.flow import Flow
from roll.core.flow.stage import AnyStage, Parallel, SourceStage
from roll.core.pipeline.state import new_admission
from roll.prepare.check import with_transport_here

TITLES = {"admit": "explorer", "lease": "trainer", "served": "validation"}
"""Title of the half that begins with this stage."""
WRITES = {"keep": "groups", "publish": "weights"}
READS = {"lease": "groups", "generate": "weights", "episodes": "weights", "served": "weights"}
"""Stages -> the store that they fill, or wait for: the halves are joined by no channel."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kind: Literal["source", "stage", "own", "store"]
    lines: tuple[str, ...]
    """Lines below the node's name."""
    lock: str = ""
    """The lock that it takes, if it shares devices with another role."""


@dataclass(frozen=True, slots=True)
class Edge:
    start: str
    end: str
    label: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    halves: Mapping[str, Sequence[Sequence[Node]]]
    """Title -> its places in their order; stages side by side share one."""
    stores: tuple[Node, ...]
    edges: tuple[Edge, ...]
    locks: tuple[str, ...]


def graph_of(flow: Flow, config: PPOConfig) -> Graph:
    halves = [list(half) for half in _halves(flow)]
    table = flow.devices.table
    devices = table.devices
    locks = _locks({role: used for role, used in devices.items() if role not in table.free})
    places = {TITLES[half[0].name]: [_place(stage, devices, locks) for stage in half] for half in halves}
    edges = [edge for half in halves for edge in _channels(half)]
    names = {node.name for half in places.values() for place in half for node in place}
    edges += [Edge(name, store) for name, store in WRITES.items() if name in names]
    edges += [Edge(store, name) for name, store in READS.items() if name in names]
    edges += [Edge("weights", stage.name) for stage in flow.stages if stage.role == "actor_log_prob"]
    if "admit" in names:
        edges.append(Edge("weights", "admit", "version served", dashed=True))
    told = tuple(f"{lock}: {' and '.join(roles)} take turns on {_devices(shared)}" for lock, roles, shared in locks)
    return Graph(places, _stores(config), tuple(edges), told)


def _halves(flow: Flow) -> Iterator[Iterator[AnyStage]]:
    """A stage without an input channel begins a half."""
    inner = {stage for each in flow.stages if isinstance(each, Parallel) for stage in each.stages}
    outer = [stage for stage in flow.stages if stage not in inner]
    begins = itertools.accumulate(stage.inputs is None for stage in outer)
    for _, half in itertools.groupby(zip(begins, outer, strict=True), key=lambda each: each[0]):
        yield (stage for _, stage in half)


_Lock = tuple[str, list[str], frozenset[int]]


def _locks(devices: Mapping[str, frozenset[int]]) -> list[_Lock]:
    """Devices that several roles use, with these roles."""
    users: dict[int, list[str]] = {}
    for role, used in devices.items():
        for device in used:
            users.setdefault(device, []).append(role)
    shared: dict[tuple[str, ...], set[int]] = {}
    for device, roles in users.items():
        if len(roles) > 1:
            shared.setdefault(tuple(roles), set()).add(device)
    return [(f"lock {number}", list(roles), frozenset(on)) for number, (roles, on) in enumerate(shared.items(), 1)]


def _place(stage: AnyStage, devices: Mapping[str, frozenset[int]], locks: Sequence[_Lock]) -> list[Node]:
    return [_node(each, devices, locks) for each in (stage.stages if isinstance(stage, Parallel) else [stage])]


def _node(stage: AnyStage, devices: Mapping[str, frozenset[int]], locks: Sequence[_Lock]) -> Node:
    role = stage.role
    kind: Literal["source", "own", "stage"] = "stage"
    kind = "source" if isinstance(stage, SourceStage) else "own" if isinstance(stage, CustomStage) else kind
    lines = [] if role is None else [f"{role} on {_devices(devices[role])}" if role in devices else role]
    lines += [f"{stage.lanes} at once"] if stage.lanes > 1 else []
    lines += ["your own"] if kind == "own" else []
    return Node(stage.name, kind, tuple(lines), ", ".join(lock for lock, roles, _ in locks if role in roles))


def _channels(half: Sequence[AnyStage]) -> Iterator[Edge]:
    """Yields an edge from each stage of a place to each of the next, with the capacity of the channel between the places."""
    for one, following in itertools.pairwise(half):
        assert one.outputs is not None and one.outputs is following.inputs
        starts = one.stages if isinstance(one, Parallel) else (one,)
        ends = following.stages if isinstance(following, Parallel) else (following,)
        for start, end in itertools.product(starts, ends):
            yield Edge(start.name, end.name, str(one.outputs.capacity))


def _stores(config: PPOConfig) -> tuple[Node, Node]:
    address = config.groups_address
    place = "in memory" if address is None else f"in {'SQLite' if address.startswith('sqlite') else 'PostgreSQL'}"
    bound = f"at most {new_admission(config, 0).most_live}"
    every = config.weight_push_interval
    pushed = "every step" if every == 1 else f"every {every} steps"
    transport = with_transport_here(config).model_update_transport
    return Node("groups", "store", (bound, place)), Node("weights", "store", (transport, pushed))


def _devices(devices: frozenset[int]) -> str:
    """Consecutive devices as a range."""
    runs = itertools.groupby(enumerate(sorted(devices)), key=lambda each: each[1] - each[0])
    parts = [[device for _, device in run] for _, run in runs]
    shown = ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
    return f"device{'s' if len(devices) > 1 else ''} {shown}"


_SHAPES = {"source": ('(["', '"])'), "stage": ('["', '"]'), "own": ('[["', '"]]'), "store": ('[("', '")]')}


def mermaid(graph: Graph) -> str:
    """Returns the text of the drawing."""
    return "\n".join(_drawn(graph)) + "\n"


def _drawn(graph: Graph) -> Iterator[str]:
    yield "flowchart LR"
    for title, half in graph.halves.items():
        yield f"  subgraph {title}"
        yield from (f"    {_shaped(node)}" for place in half for node in place)
        yield "  end"
    yield from (f"  {_shaped(node)}" for node in graph.stores)
    for edge in graph.edges:
        label = f"|{edge.label}|" if edge.label else ""
        yield f"  {_id(edge.start)} {'-.->' if edge.dashed else '-->'}{label} {_id(edge.end)}"
    locked = [_id(node.name) for half in graph.halves.values() for place in half for node in place if node.lock]
    if locked:
        yield from (f'  lock{number}["{text}"]' for number, text in enumerate(graph.locks, 1))
        yield "  classDef lock stroke-dasharray: 6 3"
        yield f"  class {','.join(locked)} lock"


def _shaped(node: Node) -> str:
    before, after = _SHAPES[node.kind]
    lines = [f"<b>{node.name}</b>", *node.lines, *([node.lock] if node.lock else [])]
    return f"{_id(node.name)}{before}{'<br/>'.join(lines)}{after}"


def _id(name: str) -> str:
    """Mermaid has words of its own, as `end`."""
    return f"s_{name}"
