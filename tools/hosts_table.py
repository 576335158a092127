"""The tables of `docs_roll/cluster.md` from the records that the tests on hosts have left (`ROLL_HOSTS_RECORD`).

ROLL_HOSTS_RECORD=docs_roll/hosts.jsonl make test-hosts; python tools/hosts_table.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

RECORDS = Path(__file__).parents[1] / "docs_roll/hosts.jsonl"
Row = Mapping[str, Any]
SIZES = {
    "start": "{start_s} s",
    "step": "{step_s} s",
    "driver's processor for a group": "{ms_a_group} ms",
    "its sockets": "{sockets}",
    "its memory": "{memory_mb:,} MB",
    "longest time without a step when hosts lose their power": "{lost_stop_s} s ({lost})",
    "end": "{end_s} s",
}
"""Columns of what hosts cost by their number."""
LINKS = ("model", "link", "versions are", "bytes of one", "seconds on its way", "seconds of a step", "advised, with")


def tables(records: Path = RECORDS) -> list[str]:
    """What was done to hosts, the campaign, the links, the cost of many hosts: those that have rows. Of what was recorded
    twice the last counts."""
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    done = _last((row for row in rows if "what" in row), "what")
    seeds = _last((row for row in rows if "seed" in row), "seed")
    links = _last(({"model": "2.5 MB"} | row for row in rows if "rate" in row), "model", "anchor", "rate")
    sizes = _last((row for row in rows if "hosts" in row), "hosts")
    made = [
        ("| what was done | longest time without a step | groups trained, dropped, lost |", [_done(row) for row in done]),
        ("| what was done, at random | how often | longest time without a step: median, most |", _campaign(seeds)),
        (f"| {' | '.join(LINKS)} |", [_link(row) for row in links]),
        (f"| hosts | {' | '.join(SIZES)} |", [_size(row) for row in sizes]),
    ]
    return [f"{head}\n|{'---|' * (head.count('|') - 1)}\n" + "".join(lines) for head, lines in made if lines]


def _last(rows: Iterable[Row], *keys: str) -> list[Row]:
    return list({tuple(row[key] for key in keys): row for row in rows}.values())


def _done(row: Row) -> str:
    groups = row["groups"]
    dropped = sum(groups["dropped"].values())
    lost = groups["admitted"] - groups["trained"] - groups["buffered"] - groups["in_flight"] - dropped
    return f"| {row['what']} | {row['stop_s']:.1f} s | {groups['trained']}, {dropped}, {lost} |\n"


def _campaign(seeds: Iterable[Row]) -> list[str]:
    stops: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in seeds:
        for fault in row["faults"]:
            stops[row["layout"], fault["kind"]].append(fault["stop_s"])
    return [
        f"| {layout}: {kind} | {len(found)} | {median(found):.1f} s, {max(found):.1f} s |\n"
        for (layout, kind), found in sorted(stops.items())
    ]


def _link(row: Row) -> str:
    kind = "whole" if row["anchor"] == 1 else f"what changed, every {row['anchor']}th whole"
    told = f"{row['told_mb_s']:g} MB/s" if "told_mb_s" in row else ""
    seconds = f"{row['lag_s']:.2f} | {row['step_s']:.2f}"
    return f"| {row['model']} | {row['rate']}/s | {kind} | {row['bytes']:,} | {seconds} | {told} |\n"


def _size(row: Row) -> str:
    return f"| {row['hosts']} | {' | '.join(SIZES.values()).format(**row)} |\n"


if __name__ == "__main__":
    print("\n".join(tables()), end="")
