"""The rows of a run: `roll show RUN samples`, questions to the model and its answers, the newest first or sorted, shortened or
whole; `roll show RUN groups`, the groups in its database, with `--export` their samples, too, as JSON Lines or Parquet."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from roll.cli.options import UNREADABLE, unreadable
from roll.core.configs.redact import visible
from roll.core.data.sample import Sample, SampleGroup, VersionSpan
from roll.core.record.run_identity import groups_address
from roll.view.content import turns
from roll.view.groups import GroupQuery, of_samples
from roll.view.journal import Row, mapping, number, shown, text, whole
from roll.view.run import RunReader
from roll.view.runs import check_run
from roll.view.samples import SORTS, KeptGroup, KeptRollout, RolloutQuery

T = TypeVar("T", int, float)
LABEL = 12
"""Columns of a label."""


def samples(arguments: Sequence[str]) -> int:
    """Returns 0, or 2 if there is nothing to read."""
    options = _samples_parser().parse_args(arguments)
    run = RunReader(options.run)
    try:
        low, high = number_range(options.step, int)
        chosen = GroupQuery(low, high, options.domain, options.status, options.reason, prompt=options.prompt, kept=True)
        newest_first = options.sort is None
        rollouts = RolloutQuery(
            options.sort or "step", options.descending or newest_first, options.last, *number_range(options.reward, float)
        )
        check_run(options.run)
        run.samples.look()
        found = rollouts.of([group for group in run.samples.groups.values() if chosen.has(of_samples(group))])
        for line in _rollouts(run, found, options):
            print(line)
    except (OSError, ValueError) as error:
        print(f"error: {visible(str(options.run))}: {visible(str(error))}", file=sys.stderr)
        return 2
    return 0


def _samples_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll show", description="What the model said, of samples.jsonl.")
    parser.add_argument("run", type=Path, help="the folder of a run: <output_dir>/<exp_name>")
    parser.add_argument("view", choices=["samples"], help="this view of it")
    parser.add_argument("--step", default="", metavar="N|A:B", help="only of this step, or of these; either end may be open")
    parser.add_argument("--reward", default="", metavar="X|A:B", help="only with this reward, or one in this range")
    parser.add_argument("--status", default="", help="trained, dropped or validation")
    parser.add_argument("--reason", default="", help="why the group was dropped")
    parser.add_argument("--domain", default="")
    parser.add_argument("--prompt", default="", metavar="PART", help="only prompts in whose name this occurs")
    parser.add_argument("--sort", choices=SORTS, help="smallest first; default: the newest first")
    parser.add_argument("--descending", action="store_true", help="largest first")
    parser.add_argument(
        "--last", type=int, default=20, metavar="N", help="N rollouts at most (20): the newest, or the first of --sort; 0: all"
    )
    parser.add_argument("--full", action="store_true", help="all texts whole, not their beginning")
    parser.add_argument("--requests", action="store_true", help="with what an agent's program sent for each turn, and was sent")
    parser.add_argument("--json", action="store_true", help="the rows of samples.jsonl as they are")
    return parser


def number_range(said: str, kind: Callable[[str], T]) -> tuple[T | None, T | None]:
    """`3`, `3:7`, `:7`, `3:`. Raises `ValueError`."""
    low, colon, high = said.partition(":")
    first = kind(low) if low else None
    return first, (kind(high) if high else None) if colon else first


def _rollouts(run: RunReader, found: Sequence[tuple[KeptGroup, KeptRollout]], options: argparse.Namespace) -> Iterator[str]:
    if not found:
        yield "no such rollout was written down"
    before: tuple[str, object] = ("", None)
    for group, kept in found:
        row = run.samples.row(group, kept)
        if options.json:
            yield json.dumps(row)
            continue
        if before != (group.key, row.get("prompt")):
            before = (group.key, row.get("prompt"))
            yield from _asked(group, row, options.full)
        yield from _said(kept, row, options.full, options.requests)


def _asked(group: KeptGroup, row: Row, full: bool) -> Iterator[str]:
    who = "validation" if group.group_id is None else f"group {group.group_id}"
    status = [] if group.status == "validation" else [group.status + (f" ({group.reason})" if group.reason else "")]
    yield ""
    yield ", ".join([f"step {group.step}", who, *status, f"prompt {group.uid}"])
    yield from _text("  prompt", row.get("prompt"), full)
    if row.get("ground_truth"):
        yield from _text("  reference", row.get("ground_truth"), full)


def _said(kept: KeptRollout, row: Row, full: bool, requests: bool) -> Iterator[str]:
    """A rollout: its figures, and its text, or its turns with the environment's observation before each."""
    parts, trajectory = mapping(row.get("reward_parts")), mapping(row.get("trajectory"))
    reward = "no reward" if kept.reward is None else f"reward {kept.reward:.4g}"
    made_of = ", ".join(f"{shown(name)} {figure:.4g}" for name, value in parts.items() if (figure := number(value)) is not None)
    ended = shown(trajectory.get("end") if trajectory else row.get("finish_reason"))
    success = [] if "success" not in trajectory else ["success" if trajectory["success"] is True else "no success"]
    figures = [reward + (f" ({made_of})" if made_of else ""), f"{kept.tokens:,} tokens", f"ended: {ended}", *success]
    yield f"  rollout {kept.member}: {', '.join(figures)}"
    first = whole(trajectory.get("first_turn")) or 0
    for i, turn in enumerate(turns(trajectory, exchanges=requests), first + 1):
        if i > 1:  # what the first one saw is the prompt
            yield from _text(f"    saw {i}", turn["observation"], full)
        yield from _text(f"    turn {i}", turn["action"], full)
        if sent := mapping(turn.get("exchange")):
            head = f"{sent['path']} {sent['repeats']}".rstrip()
            yield from _text("    sent", f"{head}\n{sent['request']}", full)
            yield from _text("    answered", sent["answer"], full)
    if not trajectory:
        yield from _text("    response", row.get("response"), full)


def _text(label: str, value: object, full: bool) -> Iterator[str]:
    """Behind its label: on one line as far as there is room, or whole."""
    said = visible(text(value), keep="\n\t")
    if full:
        first, *more = said.split("\n")
        yield f"{label:<{LABEL}}  {first}"
        yield from (" " * (LABEL + 2) + line for line in more)
        return
    room = max(20, shutil.get_terminal_size((160, 24)).columns - LABEL - 2)
    line = " ".join(said.split())
    yield f"{label:<{LABEL}}  {line if len(line) <= room else line[: room - 1] + '…'}"


STATES = ("in_flight", "buffered", "trained", "dropped")
COLUMNS = {
    "group": "id", "state": "state", "explorer": "member", "prompt": "prompt_uid", "started under": "start_version",
    "samples": "samples", "tokens": "tokens", "reward": "reward", "step": "step", "lag": "lag", "reason": "reason",
}  # fmt: skip


def groups(arguments: Sequence[str]) -> int:
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
    except UNREADABLE as error:
        return unreadable(error, options.run, options.export)
    return 0


def read(address: str, state: str | None, last: int, with_samples: bool) -> Iterator[dict[str, Any]]:
    """The newest groups, oldest first. Samples that were deleted, because a checkpoint has their effect, or are damaged, are
    None."""
    from sqlalchemy import select

    from roll.core.errors import PackingError
    from roll.topologies.sql.connecting import reading
    from roll.topologies.sql.rows import unpack_group
    from roll.topologies.sql.tables import groups, samples

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
        "prompt_ids": list(sample.prompt.input_ids),
        "response_ids": list(sample.response_ids),
        "behaviour_logprobs": list(sample.behaviour_logprobs),
        "loss_mask": None if sample.loss_mask is None else sample.policy_mask,
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
