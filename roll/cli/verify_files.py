"""Files of a run, read without trust: damage is reported, and left out of everything else."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from roll.core.record.journal import journal_parts, part_before
from roll.core.record.manifest import MANIFEST
from roll.core.record.run_identity import SQLITE, groups_address, read_identity

Row = dict[str, Any]

REUSED = "reused"
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""Errors of contents that no run has written."""
SHAPES: Mapping[str, Mapping[str, type]] = {
    "groups": {"group_id": int, "prompt_uid": str, "status": str, "reason": str, "step": int, "start_version": int},
    "metrics": {"step": int},
    "samples": {"step": int, "index": int, "status": str, "response_ids": list, "behaviour_logprobs": list, "versions": list},
    "buffer": {"group_id": int},
}
"""Required keys of a file's rows, with their types."""


@dataclass(frozen=True, slots=True)
class DatabaseContents:
    """Content of the run's SQLite database."""

    groups: dict[int, Row]
    reuses: set[tuple[int, int, int]]
    """Group, step, lag."""


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, read. A last line without its end is one that is being written, and is left out."""

    folder: Path
    ratio: float
    """The present `async_generation_ratio`: the limit of rollouts ahead."""
    max_reuse: int
    """Number of steps that may train a group now."""
    groups: list[Row]
    """The status of each group."""
    reuses: list[Row]
    """The further uses of trained groups."""
    samples: list[Path]
    """The files of samples."""
    metrics: list[Row]
    summary: Row | None
    """While the run runs, or if it was killed, its figures may be older than the journals (`as_of`)."""
    checkpoints: list[Path]
    database: DatabaseContents | None
    """None if there is none that can be read here."""
    damaged: list[str] = field(default_factory=list)
    """Damaged parts, a line each."""
    notes: list[str] = field(default_factory=list)
    """Parts that were not checked, with reasons."""

    @cached_property
    def inherited(self) -> Row:
        """Step and accounts of another run at the checkpoint that this run began with; zeros for a run that began by itself."""
        nothing = {"step": 0, "next_group_id": 0, "trained": 0, "dropped": {}, REUSED: 0}
        return nothing | dict((self.summary or {}).get("inherited") or {})

    @property
    def ended_inherited(self) -> int:
        return int(self.inherited["trained"] + sum(self.inherited["dropped"].values()))

    @property
    def resumed_from(self) -> int:
        """The step from which on the configuration is the present one."""
        return int((self.summary or {}).get("resumed_from_step", 0))

    @cached_property
    def bounds(self) -> dict[int, int]:
        """The largest lag that each step may train. Its ratio is in metrics.jsonl, and may have been another before: a rollout
        begun under ratio α is trained within ⌈α⌉ steps."""
        ratios = {row["step"]: row["scheduler/async_ratio"] for row in self.metrics if "scheduler/async_ratio" in row}
        bounds: dict[int, int] = {}
        for step in {row["step"] for row in self.uses} | ratios.keys():
            bound = math.ceil(ratios.get(step, self.ratio))
            if step > self.resumed_from:  # one that goes on synchronously trains what began before
                bound = max(bound, math.ceil(self.ratio))
            for later in range(step, step + bound + 1):
                bounds[later] = max(bound, bounds.get(later, 0))
        return bounds

    @property
    def trained(self) -> list[Row]:
        return [row for row in self.groups if row["status"] == "trained"]

    @property
    def uses(self) -> list[Row]:
        """Trained groups of all steps: a row for each group and step."""
        return self.trained + self.reuses

    @property
    def over(self) -> bool:
        """True if it has done all its steps: a run that a callback ended says why, and leaves groups that it can go on with."""
        return self.summary is not None and self.summary.get("status") == "finished" and not self.summary.get("reason")


def read_run(folder: Path) -> RunFiles:
    """Raises one of `DAMAGE`, `OSError` or `yaml.YAMLError` if the folder is no run's."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    damaged, notes = list[str](), list[str]()
    # A run that runs goes on meanwhile. What it writes last is read first: what that speaks of is found in what is read next.
    summary = _summary(folder / "summary.json", damaged)
    checkpoints = sorted((folder / "checkpoints").glob("step-*/manifest.json"))
    metrics, groups = (rows(folder / f"{name}.jsonl", name, damaged) for name in ("metrics", "groups"))
    return RunFiles(
        folder,
        config["async_generation_ratio"],
        config.get("max_reuse", 1),
        [row for row in groups if row["status"] != REUSED],
        [row for row in groups if row["status"] == REUSED],
        [part.path for part in journal_parts(folder / "samples.jsonl")],
        metrics,
        summary,
        checkpoints,
        _database(folder, damaged, notes),
        damaged,
        [*notes, *(_left(folder / "checkpoints") if (summary or {}).get("status") != "running" else ())],
    )


def _left(checkpoints: Path) -> Iterator[str]:
    """Yields remains of checkpoints whose writing or deletion was cut off by a kill."""
    for path in sorted(checkpoints.glob(".step-*")):
        yield f"checkpoints/{path.name} is what a kill has left of a checkpoint: the next start of the run removes it, or you may"
    for path in sorted(checkpoints.glob("step-*")):
        if path.is_dir() and not (path / MANIFEST).is_file():
            yield f"checkpoints/{path.name} has no {MANIFEST}: nothing resumes from it, and you may remove it"


def rows(path: Path, shape: str, damaged: list[str]) -> list[Row]:
    """Returns the rows that have the keys of `shape`; for each other one `damaged` gets a line."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            damaged.append(f"{path.name}, line {number}: not JSON ({type(error).__name__}: {error})")
            continue
        if wrong := _misfit(row, shape):
            damaged.append(f"{path.name}, line {number}: {wrong}")
        else:
            found.append(row)
    return found


def _misfit(row: Any, shape: str) -> str:
    """Returns why the row does not have this shape; empty if it has."""
    if not isinstance(row, dict):
        return f"a {type(row).__name__}, not an object"
    for key, kind in SHAPES[shape].items():
        if key not in row:
            return f"it lacks {key}"
        if not isinstance(row[key], kind) or isinstance(row[key], bool):
            return f"{key} is {_shown(row[key])}, not of type {kind.__name__}"
    if shape == "groups" and row["status"] != "dropped" and not isinstance(row.get("lag"), int):
        return f"lag is {_shown(row.get('lag'))}, not of type int"
    group_id = row.get("group_id")
    if shape == "samples" and not (group_id is None or isinstance(group_id, int)):
        return f"group_id is {_shown(group_id)}, not of type int"
    if shape == "samples" and not all(isinstance(span, list) and _are_counts(span[:3]) for span in row["versions"]):
        return f"versions is {_shown(row['versions'])}, not of spans [begin, end, version]"
    return ""


def _are_counts(values: list[Any]) -> bool:
    return len(values) == 3 and all(isinstance(value, int) for value in values)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _summary(path: Path, damaged: list[str]) -> Row | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
        if isinstance(found, dict):
            return found
        damaged.append(f"summary.json is a {type(found).__name__}, not an object")
    except (ValueError, RecursionError) as error:
        damaged.append(f"summary.json is not JSON ({type(error).__name__}: {error})")
    return None


def _database(folder: Path, damaged: list[str], notes: list[str]) -> DatabaseContents | None:
    try:
        identity, address = read_identity(folder), groups_address(folder)
    except ValueError as error:
        notes.append(f"its database was not looked into: {error}")
        return None
    if address is None or not address.startswith(SQLITE):
        return None
    path = Path(address.removeprefix(SQLITE))
    if not path.is_file():
        notes.append(f"its database was not looked into: there is no file {path}")
        return None
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=60)
        try:
            if (other := _other_run(connection, identity.id if identity is not None else "")) is not None:
                notes.append(f"its database was not looked into: {path} holds another run ({other})")
                return None
            return _stored(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        damaged.append(f"{path.name} cannot be read: {error}")
        return None


def _other_run(connection: sqlite3.Connection, own: str) -> str | None:
    theirs = connection.execute("SELECT run_id FROM runs").fetchone() if own else None
    return theirs[0] if theirs is not None and theirs[0] != own else None


def _stored(connection: sqlite3.Connection) -> DatabaseContents:
    columns = "id, prompt_uid, state, reason, step, start_version, lag"
    found = connection.execute(f"SELECT {columns} FROM groups").fetchall()
    reuses = set(connection.execute("SELECT group_id, step, lag FROM reuses"))
    names = ("prompt_uid", "status", "reason", "step", "start_version", "lag")
    return DatabaseContents({group_id: dict(zip(names, values, strict=True)) for group_id, *values in found}, reuses)


def prefix(path: Path, size: int) -> list[Row]:
    return [json.loads(line) for line in path.read_bytes()[:size].splitlines()]


def blake2b(path: Path, position: int) -> str | None:
    """Hashes the part of a journal with the byte before a position, up to there; None if it is gone, being one of the oldest."""
    part = part_before(path, position)
    if part is None and not journal_parts(path):
        raise FileNotFoundError(f"there is no {path.name}")
    return part and hashlib.blake2b(part.path.read_bytes()[: position - part.start], digest_size=32).hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
