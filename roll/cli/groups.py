"""`roll groups <run>`: the groups in the database of a run, a line each; with `--export` their samples, too, as JSON Lines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roll.cli.status import groups_address
from roll.configs.visible import visible

STATES = ("in_flight", "buffered", "trained", "dropped")
COLUMNS = {
    "group": "id", "state": "state", "explorer": "member", "prompt": "prompt_uid", "started under": "start_version",
    "samples": "samples", "tokens": "tokens", "reward": "reward", "step": "step", "lag": "lag", "reason": "reason",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 if there is nothing to read."""
    parser = argparse.ArgumentParser(prog="roll groups", description="The groups in the database of a run.")
    parser.add_argument("run", type=Path, help="the folder of a run: <output_dir>/<exp_name>")
    parser.add_argument("--state", choices=STATES, help="only those in this state")
    parser.add_argument("--last", type=int, default=20, metavar="N", help="the N newest (20); 0: all")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write them to FILE as JSON Lines, samples included")
    options = parser.parse_args(arguments)
    try:
        address = groups_address(options.run)
        if address is None:
            raise ValueError("its groups lie in no database: groups.jsonl and samples.jsonl have them")
        rows = list(read(address, options.state, options.last, with_samples=options.export is not None))
        if options.export is not None:
            options.export.write_text("".join(json.dumps(row) + "\n" for row in rows))
            print(f"{len(rows):,} groups written to {visible(str(options.export))}")
        else:
            print("\n".join(table(rows)))
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"error: {visible(str(options.run))}: {visible(str(error))}", file=sys.stderr)
        return 2
    return 0


def read(address: str, state: str | None, last: int, with_samples: bool) -> Iterator[dict[str, Any]]:
    """The newest groups, oldest first. Samples that were deleted, because a checkpoint has what they taught, or are damaged, are
    None."""
    from sqlalchemy import select

    from roll.rollout.sql.database import reading
    from roll.rollout.sql.packing import PackingError, unpack_group
    from roll.rollout.sql.tables import groups, samples

    query = select(groups).order_by(groups.c.id.desc())
    query = query.where(groups.c.state == state) if state else query
    with reading(address) as connection:
        found = connection.execute(query.limit(last) if last else query).all()
        for row in reversed(found):
            values = {name: getattr(row, column) for name, column in COLUMNS.items()}
            if with_samples:
                stored = connection.execute(select(samples).where(samples.c.group_id == row.id)).first()
                try:
                    group = unpack_group(row.id, None if stored is None else (stored.data, stored.digest))
                    values["content"] = group.to_json()
                except PackingError as error:
                    values |= {"content": None, "why": str(error)}
            yield values


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["no such group"]
    cells = [[_shown(row[name]) for name in COLUMNS] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(COLUMNS)]
    lines = [list(COLUMNS), *cells]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else visible(str(value))


if __name__ == "__main__":
    sys.exit(main())
