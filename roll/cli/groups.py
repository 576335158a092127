"""`roll show RUN groups`: the groups in the database of a run, one line per group; with `--export` their samples, too, as JSON
Lines or Parquet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roll.configs.redact import visible
from roll.data.sample import Sample, SampleGroup, VersionSpan
from roll.record.run_identity import groups_address

STATES = ("in_flight", "buffered", "trained", "dropped")
COLUMNS = {
    "group": "id", "state": "state", "explorer": "member", "prompt": "prompt_uid", "started under": "start_version",
    "samples": "samples", "tokens": "tokens", "reward": "reward", "step": "step", "lag": "lag", "reason": "reason",
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Returns 0, or 2 if there is nothing to read."""
    parser = argparse.ArgumentParser(prog="roll show", description="The groups in the database of a run.")
    parser.add_argument("run", type=Path, help="the folder of a run: <output_dir>/<exp_name>")
    parser.add_argument("view", choices=["groups"], help="this view of it")
    parser.add_argument("--state", choices=STATES, help="only those in this state")
    parser.add_argument("--last", type=int, default=20, metavar="N", help="the N newest (20); 0: all")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write them to FILE, with samples: .parquet, else JSON Lines")
    parser.add_argument("--json", action="store_true", help="a JSON object per group")
    options = parser.parse_args(arguments)
    try:
        address = groups_address(options.run)
        if address is None:
            raise ValueError("its groups lie in no database: groups.jsonl and samples.jsonl have them")
        rows = read(address, options.state, options.last, with_samples=options.export is not None)
        if options.export is not None:
            print(f"{export(rows, options.export):,} groups written to {visible(str(options.export))}")
        elif options.json:
            print("\n".join(json.dumps(row) for row in rows))
        else:
            print("\n".join(table(list(rows))))
    except ModuleNotFoundError as error:
        print(f"error: {visible(str(options.export))} needs {error.name}: pip install 'roll[data]'", file=sys.stderr)
        return 2
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"error: {visible(str(options.run))}: {visible(str(error))}", file=sys.stderr)
        return 2
    return 0


def read(address: str, state: str | None, last: int, with_samples: bool) -> Iterator[dict[str, Any]]:
    """The newest groups, oldest first. Samples that were deleted, because a checkpoint has what they taught, or are damaged, are
    None."""
    from sqlalchemy import select

    from roll.rollout.sql.database import reading
    from roll.rollout.sql.rows import PackingError, unpack_group
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


def export(rows: Iterator[dict[str, Any]], path: Path) -> int:
    """Writes the groups as they are read, and returns how many there were."""
    if path.suffix.lower() == ".parquet":
        return _to_parquet(rows, path)
    with path.open("w", encoding="utf-8") as file:
        return sum(file.write(json.dumps(row) + "\n") > 0 for row in rows)


def _to_parquet(groups: Iterator[dict[str, Any]], path: Path) -> int:
    """One row per sample; a group without samples has one. Columns of the group, then of the sample."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    numbers = {"group", "started under", "samples", "tokens", "step", "lag"}
    types = {name: pa.int64() if name in numbers else pa.float64() if name == "reward" else pa.string() for name in COLUMNS}
    span = pa.struct([(name, pa.int64()) for name in VersionSpan._fields])
    types |= {"sample": pa.int64(), "sample_reward": pa.float64(), "finish_reason": pa.string(), "prompt_text": pa.string()}
    types |= {"response_text": pa.string(), "prompt_ids": pa.list_(pa.int32()), "response_ids": pa.list_(pa.int32())}
    types |= {"behaviour_logprobs": pa.list_(pa.float64()), "loss_mask": pa.list_(pa.bool_()), "versions": pa.list_(span)}
    schema, count = pa.schema(list(types.items())), 0
    with ParquetWriter(path, schema) as writer:
        for row in groups:
            count += 1
            content = row.pop("content")
            samples = SampleGroup.from_json(content).samples if content is not None else []
            table = [row | _sample(sample) for sample in samples] or [row]
            writer.write_table(pa.Table.from_pylist(table, schema=schema))
    return count


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "sample": sample.index,
        "sample_reward": sample.reward,
        "finish_reason": sample.finish_reason,
        "prompt_text": sample.prompt.text,
        "response_text": sample.response_text,
        "prompt_ids": sample.prompt.input_ids,
        "response_ids": sample.response_ids,
        "behaviour_logprobs": sample.behaviour_logprobs,
        "loss_mask": sample.loss_mask,
        "versions": [span._asdict() for span in sample.versions],
    }


def table(rows: Sequence[dict[str, object]]) -> list[str]:
    if not rows:
        return ["no such group"]
    cells = [[_shown(row[name]) for name in COLUMNS] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(COLUMNS)]
    lines = [list(COLUMNS), *cells]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else visible(str(value))
