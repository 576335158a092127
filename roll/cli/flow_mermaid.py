"""A graph as Mermaid's text, which GitHub and many editors draw."""

from __future__ import annotations

from collections.abc import Iterator

from roll.cli.flow_graph import Graph, Node

_SHAPES = {"source": ('(["', '"])'), "stage": ('["', '"]'), "own": ('[["', '"]]'), "store": ('[("', '")]')}


def mermaid(graph: Graph) -> str:
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: Graph) -> Iterator[str]:
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
