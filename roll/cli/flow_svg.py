"""A graph as SVG: the explorer's half from left to right, what joins the halves below it, the trainer's half back to the left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from roll.cli.flow_graph import Edge, Graph, Node

WIDTH, HEIGHT, GAP, LINE, MARGIN = 168, 70, 46, 15, 24
"""Of a node, between two, of a line of text, around everything; in pixels."""
FILL = {"source": "#eef2f7", "stage": "#ffffff", "own": "#fff3d6", "store": "#e3f1e6"}
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" \
font-family="system-ui, sans-serif" font-size="11.5" fill="#1c2733">
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0 0 8 4 0 8z" fill="#5b6b7b"/></marker></defs>
<rect width="100%" height="100%" fill="#fafbfc"/>
"""


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node stands: its left upper corner."""

    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.y + HEIGHT / 2

    @property
    def centre(self) -> float:
        return self.x + WIDTH / 2


def svg(graph: Graph) -> str:
    boxes, width, height = _placed(graph)
    nodes = [node for half in graph.halves.values() for place in half for node in place] + list(graph.stores)
    parts = [_HEAD.format(width=width, height=height + LINE * (len(graph.locks) + 1))]
    parts += [_arrow(edge, boxes) for edge in graph.edges]
    parts += [_drawn(node, boxes[node.name]) for node in nodes]
    notes = ["A number at an arrow: items that wait there at most.", *graph.locks]
    parts += [_text(MARGIN, height + LINE * number - 8, note, "start") for number, note in enumerate(notes)]
    return "".join(parts) + "</svg>\n"


def _placed(graph: Graph) -> tuple[dict[str, Box], int, int]:
    halves = list(graph.halves.values())
    columns, rows = max(map(len, halves)), [max(map(len, half)) for half in halves]
    band = MARGIN + rows[0] * (HEIGHT + GAP)
    boxes: dict[str, Box] = {}
    for half, top in zip(halves, (MARGIN, band + HEIGHT + GAP), strict=False):
        boxes |= dict(_row(half, columns, top, backward=half[0][0].name == "lease"))
    for store, column in zip(graph.stores, (columns - 1, 1), strict=True):
        boxes[store.name] = Box(MARGIN + column * (WIDTH + GAP), band)
    height = band + HEIGHT + GAP + (rows[1] * (HEIGHT + GAP) if len(rows) > 1 else 0)
    return boxes, 2 * MARGIN + columns * (WIDTH + GAP) - GAP, height


def _row(half: Sequence[Sequence[Node]], columns: int, top: float, backward: bool) -> Iterator[tuple[str, Box]]:
    for number, place in enumerate(half):
        column = columns - 1 - number if backward else number
        for depth, node in enumerate(place):
            yield node.name, Box(MARGIN + column * (WIDTH + GAP), top + depth * (HEIGHT + GAP / 2))


def _arrow(edge: Edge, boxes: Mapping[str, Box]) -> str:
    one, other = boxes[edge.start], boxes[edge.end]
    if one.x == other.x:
        down = other.y > one.y
        start, end = one.y + (HEIGHT if down else 0), other.y + (0 if down else HEIGHT)
        path, label = f"M{one.centre} {start} V{end}", (one.centre + 6, (start + end) / 2 + 4)
    elif edge.label.isdigit():
        right = other.x > one.x
        start, end = one.x + (WIDTH if right else 0), other.x + (0 if right else WIDTH)
        path, label = f"M{start} {one.middle} L{end} {other.middle}", ((start + end) / 2 - 3, (one.middle + other.middle) / 2 - 5)
    else:
        down = other.y > one.y
        start, end = one.y + (HEIGHT if down else 0), other.y + (0 if down else HEIGHT)
        turn = end + (-GAP / 2 if down else GAP / 2)
        shift = -24 if edge.dashed else 0
        path, label = f"M{one.centre + shift} {start} V{turn} H{other.centre} V{end}", (other.centre + 6, turn + 14)
    style = ' stroke-dasharray="5 4"' if edge.dashed else ""
    drawn = f'<path d="{path}" fill="none" stroke="#5b6b7b" stroke-width="1.3" marker-end="url(#tip)"{style}/>\n'
    return drawn + (_text(*label, edge.label, "start") if edge.label else "")


def _drawn(node: Node, box: Box) -> str:
    lines = [*node.lines, *([node.lock] if node.lock else [])]
    border = ' stroke-dasharray="6 3"' if node.lock else ""
    round_ = HEIGHT / 2 if node.kind == "source" else 12 if node.kind == "store" else 4
    rect = f'<rect x="{box.x}" y="{box.y}" width="{WIDTH}" height="{HEIGHT}" rx="{round_}" fill="{FILL[node.kind]}" '
    rect += f'stroke="#31465a" stroke-width="1.3"{border}/>\n'
    first = box.middle - LINE * len(lines) / 2 + 4
    title = (
        f'<text x="{box.centre}" y="{first}" text-anchor="middle" font-weight="600" font-size="13">{escape(node.name)}</text>\n'
    )
    return rect + title + "".join(_text(box.centre, first + LINE * (n + 1), line, "middle") for n, line in enumerate(lines))


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{style}>{escape(text)}</text>\n'
