"""The table of `docs_roll/cluster.md` from the records that the tests on hosts have left (`ROLL_HOSTS_RECORD`).

ROLL_HOSTS_RECORD=docs_roll/hosts.jsonl make test-hosts; python tools/hosts_table.py
"""

from __future__ import annotations

import json
from pathlib import Path

RECORDS = Path(__file__).parents[1] / "docs_roll/hosts.jsonl"
HEAD = "| what was done | longest time without a step | groups trained, dropped, lost |\n|---|---|---|\n"


def table(records: Path = RECORDS) -> str:
    """Of each thing that was done the last record."""
    rows = {row["what"]: row for row in map(json.loads, records.read_text().splitlines())}
    return HEAD + "".join(_line(row) for row in rows.values())


def _line(row: dict) -> str:
    groups = row["groups"]
    dropped = sum(groups["dropped"].values())
    lost = groups["admitted"] - groups["trained"] - groups["buffered"] - groups["in_flight"] - dropped
    return f"| {row['what']} | {row['stop_s']:.1f} s | {groups['trained']}, {dropped}, {lost} |\n"


if __name__ == "__main__":
    print(table(), end="")
