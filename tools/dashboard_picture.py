"""Draws `examples/monitoring/dashboard.json` from the answers of a Prometheus to its own queries: the picture of
`docs_roll/operating.md`, on a machine that has no Grafana. Panels stand where the file puts them; a failure that a run has not
had is an empty panel.

python tools/dashboard_picture.py --prometheus http://127.0.0.1:9090 --run RUN --minutes 10 --output docs_roll/ui/dashboard.png
"""

from __future__ import annotations

import argparse
import io
import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from PIL import Image

DASHBOARD = Path(__file__).parents[1] / "examples/monitoring/dashboard.json"
COLUMNS, INCHES, POINTS = 24, (0.5, 0.29), 200
"""Of the grid; width and height of one of its cells; points of a curve."""
GAP = 3
"""Points without a value from which on a curve is broken: nothing was served."""
COLOURS = 48
STYLE: Any = {
    **{"font.size": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#8a8f98"},
    **{"axes.titlesize": 8, "axes.titlelocation": "left", "axes.grid": True, "grid.alpha": 0.3, "lines.linewidth": 1.0},
}


class Curve(NamedTuple):
    name: str
    times: list[float]
    """Minutes from the beginning."""
    values: list[float]


class Server:
    def __init__(self, address: str, run: str, minutes: float) -> None:
        self._address, self._run, self._seconds, self._end = address, run, 60 * minutes, time.time()

    def curves(self, target: Mapping[str, Any]) -> Iterator[Curve]:
        """The answers to a query of the dashboard, named as its legend says. Raises `OSError`."""
        query = target["expr"].replace("$run", self._run)
        begin = self._end - self._seconds
        asked = {"query": query, "start": begin, "end": self._end, "step": self._seconds / POINTS}
        with urllib.request.urlopen(f"{self._address}/api/v1/query_range?{urllib.parse.urlencode(asked)}", timeout=30) as answer:
            found = json.loads(answer.read())["data"]["result"]
        for each in found:
            labels = each["metric"]
            name = target["legendFormat"]
            for label in re.findall(r"\{\{(\w+)\}\}", name):
                name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
            yield self._curve(name.strip(), [(float(at) - begin, float(value)) for at, value in each["values"]])

    def _curve(self, name: str, points: Sequence[tuple[float, float]]) -> Curve:
        times, values, gap = list[float](), list[float](), GAP * self._seconds / POINTS
        for at, value in points:
            if times and at - 60 * times[-1] > gap:
                times.append(at / 60)
                values.append(nan)
            times.append(at / 60)
            values.append(value)
        return Curve(name, times, values)


def written(unit: str | None, value: float) -> str:
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "bytes":
        return f"{value / 2**30:.1f} GiB"
    return f"{value:.3g}{' s' if unit == 's' else ''}" if value < 1000 else f"{value:,.0f}{' s' if unit == 's' else ''}"


def draw(axes: Axes, panel: Mapping[str, Any], curves: list[Curve]) -> None:
    axes.set_title(panel["title"])
    unit = panel["fieldConfig"]["defaults"].get("unit")
    if panel["type"] == "stat":
        axes.axis("off")
        said = "\n".join(f"{each.name}  {written(unit, each.values[-1])}" for each in curves) or "no data"
        axes.text(0.0, 0.35, said, fontsize=9, va="center", transform=axes.transAxes)
        return
    for each in curves:
        axes.plot(each.times, each.values, label=each.name)
    axes.set_xlabel("minutes", fontsize=5, labelpad=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(unit, value)))
    if curves:
        axes.legend(fontsize=5, loc="best", framealpha=0.6, ncols=1 + len(curves) // 7)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


def picture(dashboard: Mapping[str, Any], server: Server, output: Path) -> None:
    """Raises `OSError`."""
    panels = dashboard["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    plt.rcParams.update(STYLE)
    figure = plt.figure(figsize=(COLUMNS * INCHES[0], rows * INCHES[1]))
    for panel in panels:
        place = panel["gridPos"]
        left, bottom = (place["x"] + 1.2) / COLUMNS, 1 - (place["y"] + place["h"] - 1.0) / rows
        axes = figure.add_axes((left, bottom, (place["w"] - 1.6) / COLUMNS, (place["h"] - 2.2) / rows))
        draw(axes, panel, [curve for target in panel["targets"] for curve in server.curves(target)])
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=75)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(output, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--run", default=".*", help="its name, or a regular expression")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    picture(json.loads(DASHBOARD.read_text()), Server(args.prometheus, args.run, args.minutes), args.output)


if __name__ == "__main__":
    main()
