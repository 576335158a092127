"""Lanes of a run: its trace by rows, at the detail that a picture of some width can show."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roll.core.data.untrusted import open_inside
from roll.view.journal import from_json, number, shown, text, whole

LARGEST_FILE = 64 << 20
"""Bytes of one trace file, unpacked; `roll.core.record.trace` ends one far below."""
MOST_SPANS = 2_000_000
"""Spans of one run, about 150 MB; older ones are left out."""
KINDS = 64
"""Kinds of a row that are told apart where they are too short to be drawn alone."""


class Spans(NamedTuple):
    """Columns: beginnings and ends in seconds, names, and arguments of some spans."""

    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    names: list[str]
    args: dict[int, dict[str, float | str]]


@dataclass(slots=True)
class Stretch:
    """Drawn part of a lane, from one moment to another: a span, or several that are too short to be drawn alone."""

    begin: float
    end: float
    what: str
    """The name of the span, or the kind that took most of the time."""
    count: int
    args: dict[str, float | str] | None
    """Arguments of a span that is alone."""

    def plain(self) -> list[object]:
        """Returns it as the page reads it."""
        return [self.begin, self.end, self.what, self.count, self.args]


class Lane:
    """The spans of one row, by their beginnings."""

    def __init__(self, name: str, parts: Sequence[Spans]) -> None:
        begin, names, firsts = np.concatenate([part.begin for part in parts]), [], 0
        order = np.argsort(begin, kind="stable")
        self.name = name
        self.begin, self.end = begin[order], np.concatenate([part.end for part in parts])[order]
        args: dict[int, dict[str, float | str]] = {}
        for part in parts:
            args |= {firsts + i: known for i, known in part.args.items()}
            names += part.names
            firsts += len(part.names)
        self.names = [names[i] for i in order]
        self.args = {at: args[int(i)] for at, i in enumerate(order) if int(i) in args} if args else {}
        kinds: dict[str, int] = {}
        known_kinds = {name: min(kinds.setdefault(kind_of(name), len(kinds)), KINDS - 1) for name in dict.fromkeys(names)}
        self._kind = np.array([known_kinds[name] for name in self.names], dtype=np.int64)
        self.kinds = list(kinds)[:KINDS]

    def drawn(self, begin: float, end: float, width: int) -> list[Stretch]:
        """Returns the spans between two times: those wider than a column one by one; the others as the kind that took most of
        each column."""
        column = (end - begin) / width
        seen = (self.begin < end) & (self.end >= begin)
        wide = np.flatnonzero(seen & (self.end - self.begin >= column))
        short = np.flatnonzero(seen & (self.end - self.begin < column))
        found = [
            Stretch(float(self.begin[i]), float(self.end[i]), self.names[i], 1, self.args.get(int(i))) for i in wide[: 4 * width]
        ]
        if len(short):
            found += self._columns(short, begin, column, width)
        return sorted(found, key=lambda one: one.begin)

    def shares(self, begin: float, end: float) -> dict[str, float]:
        """Returns the seconds of each kind between two times."""
        inside = np.clip(np.minimum(self.end, end) - np.maximum(self.begin, begin), 0, None)
        seconds = np.bincount(self._kind, weights=inside, minlength=len(self.kinds))
        return {kind: float(seconds[i]) for i, kind in enumerate(self.kinds) if seconds[i] > 0}

    def _columns(self, short: NDArray[np.int64], begin: float, column: float, width: int) -> list[Stretch]:
        middle = (self.begin[short] + self.end[short]) / 2
        place = np.clip(((middle - begin) / column).astype(np.int64), 0, width - 1)
        kinds = len(self.kinds)
        took = np.maximum(self.end[short] - self.begin[short], 1e-9)
        weights = np.bincount(place * kinds + self._kind[short], weights=took, minlength=width * kinds).reshape(width, kinds)
        counts = np.bincount(place, minlength=width)
        main = weights.argmax(axis=1)
        last = np.full(width, -1, dtype=np.int64)
        last[place] = short
        found: list[Stretch] = []
        for i in np.flatnonzero(counts):
            start, stop, count = begin + i * column, begin + (i + 1) * column, int(counts[i])
            what = self.names[int(last[i])] if count == 1 else self.kinds[int(main[i])]
            if found and found[-1].what == what and count > 1 and abs(found[-1].end - start) < column / 1e3:
                found[-1].end, found[-1].count = stop, found[-1].count + count
            else:
                found.append(Stretch(start, stop, what, count, self.args.get(int(last[i])) if count == 1 else None))
        return found


class Lanes:
    """The trace files of a run, each read once, and again when it has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, tuple[tuple[int, int], ParsedTrace]] = {}
        self._rows: list[Lane] | None = None
        self.problem = ""

    def look(self) -> bool:
        """Returns True if anything has changed."""
        paths = sorted((self._folder / "trace").glob("trace-*.json.gz"))
        changed = False
        for path in paths:
            try:
                stat = path.stat()
                stamp = stat.st_mtime_ns, stat.st_size
                if path.name not in self._files or self._files[path.name][0] != stamp:
                    with open_inside(self._folder, f"trace/{path.name}") as file, gzip.open(file) as unpacked:
                        contents = unpacked.read(LARGEST_FILE + 1)
                    self._files[path.name] = stamp, parsed(contents)
                    changed = True
            except (OSError, ValueError, EOFError, zlib.error) as error:
                self.problem = f"{path.name}: {error}"
        if gone := self._files.keys() - {path.name for path in paths}:
            self._files = {name: file for name, file in self._files.items() if name not in gone}
        if changed or gone:
            self._rows = None
        return changed or bool(gone)

    @property
    def rows(self) -> list[Lane]:
        if self._rows is None:
            kept: list[ParsedTrace] = []
            room = MOST_SPANS
            for _, (_, file) in sorted(self._files.items(), reverse=True):
                if (room := room - sum(len(found.names) for found in file.spans.values())) >= 0:
                    kept.insert(0, file)
            parts: dict[str, list[Spans]] = {}
            for file in kept:
                for name, found in file.spans.items():
                    parts.setdefault(name, []).append(found)
            self._rows = [Lane(name, found) for name, found in parts.items()]
        return self._rows

    def borders(self) -> tuple[float, float]:
        """Returns the first and the last moment, in seconds."""
        ends = [(float(row.begin[0]), float(row.end.max())) for row in self.rows]
        return (min(begin for begin, _ in ends), max(end for _, end in ends)) if ends else (0.0, 0.0)

    def phases(self, group_id: int) -> list[tuple[str, float]]:
        """Returns the events of a group, with their times."""
        return next((found for _, file in list(self._files.values()) if (found := file.phases.get(group_id))), [])

    def picture(self, begin: float | None, end: float | None, width: int) -> dict[str, object]:
        first, last = self.borders()
        start, stop = max(first, first if begin is None else begin), min(last, last if end is None else end)
        stop = max(stop, start + 1e-6)
        width = max(10, min(width, 4000))
        rows = [
            {
                "name": row.name,
                "spans": [each.plain() for each in row.drawn(start, stop, width)],
                "seconds": row.shares(start, stop),
            }
            for row in self.rows
        ]
        return {"from": start, "to": stop, "first": first, "last": last, "rows": rows, "problem": self.problem}


class ParsedTrace(NamedTuple):
    spans: dict[str, Spans]
    """By row."""
    phases: dict[int, list[tuple[str, float]]]
    """Beginnings of each group's phases: name and time."""


def parsed(contents: bytes) -> ParsedTrace:
    """Raises `ValueError` if it is no trace."""
    if len(contents) > LARGEST_FILE:
        raise ValueError(f"more than {LARGEST_FILE:,} bytes")
    found = from_json(contents)
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list):
        raise ValueError("not a trace")
    rows: defaultdict[int | None, list[tuple[float, float, str, object]]] = defaultdict(list)
    names: dict[int | None, str] = {}
    phases: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    for event in events:
        if not isinstance(event, dict):
            continue
        kind, at, args = event.get("ph"), number(event.get("ts")), event.get("args")
        if kind == "X" and at is not None and (lasts := number(event.get("dur"))) is not None:
            rows[whole(event.get("tid"))].append((at / 1e6, (at + lasts) / 1e6, text(event.get("name")), args))
        elif kind == "M" and isinstance(args, dict):
            names[whole(event.get("tid"))] = shown(args.get("name"))
        elif kind == "b" and at is not None and isinstance(event.get("id"), int) and event.get("name") != "group":
            phases[event["id"]].append((shown(event.get("name")), at / 1e6))
    drawn = {names[row]: spans for row, spans in rows.items() if row in names}
    return ParsedTrace({row: _columns(found) for row, found in drawn.items()}, phases)


def _columns(spans: Sequence[tuple[float, float, str, object]]) -> Spans:
    begin, end, said, known = zip(*spans, strict=True)
    args = {i: _known(one) for i, one in enumerate(known) if one and isinstance(one, dict)}
    names = {name: intern(shown(name)) for name in set(said)}
    return Spans(np.array(begin), np.array(end), [names[name] for name in said], args)


def _known(args: dict[str, object]) -> dict[str, float | str]:
    return {shown(name): shown(value) if (figure := number(value)) is None else figure for name, value in args.items()}


def kind_of(name: str) -> str:
    """Returns a name without its numbers: `step 12` and `step 13` are of one kind."""
    return re.sub(r"\d+", "#", name)
