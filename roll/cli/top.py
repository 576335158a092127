"""`roll top [FOLDER | DATABASE ...]`: one screen for all runs of some folders: step, verdict, staleness, idle, best, warnings."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from roll.core.configs.redact import redact_text, visible
from roll.core.configs.sizes import compact, duration
from roll.reports.display import LABEL, STYLES
from roll.view.overview import Overview

STATES = {"running": "green", "failed": "bold red", "crashed": "bold red", "stopped": "yellow", "silent": "yellow"}
MOST_LINES = 5
"""Warnings below the table."""
WIDE = 180
"""Characters of a line, where the output is no terminal."""
CUT = ("run", "verdict")
"""Columns that are shortened where a screen is narrow."""
HEAD = ("run", "state", "step", "left", "verdict", "staleness", "idle", "best", "warnings")


def main(arguments: Sequence[str]) -> int:
    """Returns 0, or 2 if there is nothing to read."""
    parser = argparse.ArgumentParser(prog="roll top", description="All runs on one screen. Ctrl-C ends it.")
    what = "folders of runs (output), or databases of groups: sqlite:///..., postgresql+psycopg://..."
    parser.add_argument("where", nargs="*", default=["output"], metavar="WHERE", help=what)
    parser.add_argument("--once", action="store_true", help="print it once; so it is where the output is no terminal")
    parser.add_argument("--json", action="store_true", help="the same as data, once")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between two looks (2)")
    options = parser.parse_args(arguments)
    databases = [each for each in options.where if "://" in each]
    folders = [Path(each) for each in options.where if "://" not in each]
    for folder in folders:
        if not folder.is_dir():
            print(f"error: {visible(str(folder))}: there is no such folder; name one that holds runs", file=sys.stderr)
            return 2
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    overview, console = Overview(folders), Console(highlight=False, width=None if narrow else WIDE)
    try:
        if options.json:
            print(json.dumps(_rows(overview, databases), indent=2))
        elif options.once or not console.is_terminal:
            console.print(screen(_rows(overview, databases)))
        else:
            _watch(overview, databases, max(options.every, 0.1), console)
    except (OSError, ValueError, LookupError) as error:
        print(f"error: {visible(redact_text(str(error)))}", file=sys.stderr)
        return 2
    return 0


def _watch(overview: Overview, databases: Sequence[str], every: float, console: Console) -> None:
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(_rows(overview, databases), most=max(console.height - MOST_LINES - 6, 3)), refresh=True)
            time.sleep(every)


def _rows(overview: Overview, databases: Sequence[str]) -> list[dict[str, Any]]:
    return [*map(_of_database, databases), *overview.rows()]


def _of_database(address: str) -> dict[str, Any]:
    from roll.cli.show import of_database

    found = of_database(address, None)
    silent = [one["name"] for one in (*found["trainers"], *found["explorers"]) if one["state"] in ("silent", "lost")]
    lags = [one["lag"] for one in found["explorers"] if one["lag"] is not None]
    return {
        "name": visible(found["run"]), "folder": visible(found["folder"]), "state": found["status"], "reason": found["reason"],
        "step": found["steps"], "max_steps": found["max_steps"], "left_s": None, "bound": found["bound"],
        "staleness": sum(lags) / len(lags) if lags else None, "idle": {}, "reward": None, "validation": None, "verdict": None,
        "best": None, "explorers": found["explorers"], "warnings": [f"{visible(name)} is silent" for name in silent],
        "warned": len(silent), "written_s_ago": 0.0,
    }  # fmt: skip


def screen(rows: Sequence[Mapping[str, Any]], most: int | None = None) -> RenderableType:
    """`most`: rows that have room, of one line each; None: all, with the whole verdict."""
    table = Table(box=None, padding=(0, 1), header_style=LABEL, expand=False)
    cells = [[*_cells(row)] for row in rows[:most]]
    for place, name in enumerate(HEAD):
        whole = max(len(name), *(len(each[place]) for each in cells), 0)
        table.add_column(
            name,
            overflow="ellipsis",
            min_width=len(name) if name in CUT else whole,
            no_wrap=name != "verdict" or most is not None,
            justify="right" if name == "warnings" else "left",
        )
    for each in cells:
        table.add_row(*each)
    running = sum(row["state"] == "running" for row in rows)
    head = Text(f"{len(rows)} runs, {running} running, {time.strftime('%H:%M:%S')}", style=LABEL)
    told = [(row["name"], warning) for row in rows if row["state"] in ("running", "silent") for warning in row["warnings"]]
    lines = [Text(f"{name}: {warning}", style="yellow", no_wrap=True, overflow="ellipsis") for name, warning in told[:MOST_LINES]]
    hidden = len(rows) - len(rows[:most])
    more = [Text(f"and {hidden} more", style=LABEL)] if hidden else []
    return Group(head, table, *more, *lines)


def _cells(row: Mapping[str, Any]) -> Iterator[Text]:
    verdict, best, idle = row["verdict"], row["best"], row["idle"]
    yield Text(row["name"])
    yield Text(row["state"], style=STATES.get(row["state"], ""))
    yield Text(f"{'–' if row['step'] is None else row['step']}/{'–' if row['max_steps'] is None else row['max_steps']}")
    yield Text("" if row["left_s"] is None else duration(row["left_s"]))
    yield Text(f"{verdict['kind']}: {verdict['text']}" if verdict else "", style=STYLES.get(verdict and verdict["level"], ""))
    yield Text("" if row["staleness"] is None else f"{row['staleness']:.2f}/{row['bound']}")
    halves = {"train": idle.get("actor_train"), "rollout": idle.get("actor_infer")}
    yield Text(" ".join(f"{name} {share:.0%}" for name, share in halves.items() if share is not None))
    yield Text(f"{compact(best['value'])} at {best['step']}" if best else "")
    yield Text(str(row["warned"] or ""), style="yellow")
