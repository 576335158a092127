"""`trace/trace-0001.json.gz`, ...: who did what when, the whole run long, for ui.perfetto.dev and chrome://tracing.

Trace Event Format, in microseconds since the trace was made: a row for each name with what it did ("X" events), and a track for
each group with its phases ("b" and "e" events with the group's id). Every file is a trace by itself, of bounded size: what lasts
longer than a file is whole in the one in which it ends. Only the events of the newest file are in memory.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from roll.distributed.clock import monotonic
from roll.record.journal import plain, write_atomically

FILE_BYTES = 4_000_000
"""A file that has grown beyond this is not continued. It is compressed to about a tenth."""
TOGETHER = 256
"""Events that are encoded together."""
WAITING_FILES = 4
"""Full files that may wait to be written; more, on a disk that stays full, are forgotten."""


Event: TypeAlias = dict[str, Any]
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class Span(NamedTuple):
    """Row `row` shows `name` during `[begin, end)`."""

    row: str
    name: str
    begin: float
    end: float
    args: Mapping[str, Any]


class TraceFile(NamedTuple):
    path: Path
    events: Sequence[str]
    """Events as JSON, one or several together, with commas between them."""
    forgotten: int

    def write(self) -> None:
        """Raises `OSError`."""
        head = json.dumps({"displayTimeUnit": "ms", "otherData": {"forgotten_files": self.forgotten}})
        text = head[:-1] + ', "traceEvents": [\n' + ",\n".join(self.events) + "\n]}\n"
        self.path.parent.mkdir(exist_ok=True)
        write_atomically(self.path, gzip.compress(text.encode(), compresslevel=4))


class Trace:
    def __init__(self, folder: Path, clock: Callable[[], float] = monotonic, file_bytes: int = FILE_BYTES) -> None:
        """What lies in the folder stays. `clock`: that of the times which the methods are given."""
        self._folder = folder
        self._clock = clock
        self._zero = clock()
        self._file_bytes = file_bytes
        self._rows: dict[str, int] = {}
        self._groups: dict[int, list[tuple[str, float]]] = {}
        """The phases of each live group, and when they began."""
        self._fresh: list[Event] = []
        self._events: list[str] = []
        self._size = 0
        self._number = 0
        self._path = self._next_path()
        self.full: list[TraceFile] = []
        """Files that are not written yet, and will not change any more."""
        self._forgotten = 0

    def add(self, span: Span) -> None:
        self._add(self._drawn(span))

    @contextmanager
    def during(self, row: str, name: str, **args: object) -> Iterator[None]:
        """A span from now to the end of the block, unless the block raises."""
        begin = self._clock()
        yield
        self.add(Span(row, name, begin, self._clock(), args))

    def enter_phase(self, group_id: int, phase: str) -> None:
        """The group's track begins with its first phase."""
        self._groups.setdefault(group_id, []).append((phase, self._clock()))

    def end_group(self, group_id: int, facts: Mapping[str, object]) -> None:
        """The group has met its fate; `facts` about it are shown with it. One of which this process has done nothing has no
        track here."""
        if phases := self._groups.pop(group_id, None):
            self._add(self._track(group_id, phases, facts))

    def files(self, open_spans: Iterable[Span] = ()) -> list[TraceFile]:
        """Those that are full, and the newest as it is now, with live groups and `open_spans` drawn up to now."""
        self._encode()
        drawn = [event for span in open_spans for event in self._drawn(span)]
        for group_id, phases in self._groups.items():
            drawn += self._track(group_id, phases, {"fate": "live"})
        return [*self.full, TraceFile(self._path, self._texts(drawn), self._forgotten)]

    def written(self, files: Sequence[TraceFile]) -> None:
        """These are on disk."""
        self.full = [file for file in self.full if file not in files]

    def _add(self, events: Sequence[Event]) -> None:
        self._fresh += events
        if len(self._fresh) >= TOGETHER:
            self._encode()

    def _encode(self) -> None:
        """Events are cheaper to encode together."""
        if self._fresh:
            self._events.append(_encoded(self._fresh))
            self._size += len(self._events[-1])
            self._fresh = []
        if self._size < self._file_bytes:
            return
        if len(self.full) == WAITING_FILES:
            self._forgotten += 1
            del self.full[0]
        self.full.append(TraceFile(self._path, self._texts(), self._forgotten))
        self._events, self._size, self._path = [], 0, self._next_path()

    def _next_path(self) -> Path:
        while True:
            self._number += 1
            path = self._folder / f"trace-{self._number:04}.json.gz"
            if not path.exists():  # or the run that is resumed wrote it
                return path

    def _texts(self, drawn: Sequence[Event] = ()) -> list[str]:
        names = [_event("M", "thread_name", tid, args={"name": row}) for row, tid in self._rows.items()]
        return [*([_encoded(names)] if names else []), *self._events, *([_encoded(drawn)] if drawn else [])]

    def _drawn(self, span: Span) -> list[Event]:
        tid = self._rows.setdefault(span.row, len(self._rows))
        begin, end = self._micros(span.begin), self._micros(span.end)
        return [_event("X", span.name, tid, ts=begin, dur=round(end - begin, 1), args=plain(span.args))]

    def _track(self, group_id: int, phases: Sequence[tuple[str, float]], facts: Mapping[str, object]) -> list[Event]:
        def border(ph: str, name: str, at: float, **more: object) -> Event:
            return _event(ph, name, 0, cat="group", id=group_id, ts=self._micros(at), **more)

        now = self._clock()
        ends = [*(begin for _, begin in phases[1:]), now]
        inner = [
            each
            for (phase, begin), end in zip(phases, ends, strict=True)
            for each in (border("b", phase, begin), border("e", phase, end))
        ]
        args = {"group_id": group_id, **plain(facts)}
        return [border("b", "group", phases[0][1], args=args), *inner, border("e", "group", now)]

    def _micros(self, at: float) -> float:
        return round(1e6 * (at - self._zero), 1)


def _event(ph: str, name: str, tid: int, **more: object) -> Event:
    return {"ph": ph, "name": name, "pid": 0, "tid": tid, **more}


def _encoded(events: Sequence[Event]) -> str:
    """The events as JSON, without the brackets of a list."""
    return _ENCODER.encode(events)[1:-1]
