"""`trace/trace-0001.json.gz`, ...: timeline of the whole run, for ui.perfetto.dev and chrome://tracing.

Trace Event Format, in microseconds since the run's first trace was made, without the time between an end and a resumption: a row
for each name with its states ("X" events), and a track for each group with its phases ("b" and "e" events with the group's id).
Every file is a trace by itself, of bounded size: a span that outlasts a file is whole in the one in which it ends. Only the
newest file is in memory, besides those that wait for the disk.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.distributed.clock import monotonic
from roll.core.record.journal import plain, write_atomically

FILE_EVENTS = 20_000
"""A file that has more is not continued: some three megabytes, compressed to about a tenth."""
TOGETHER = 256
"""Spans and tracks that are encoded together, which is cheaper."""
HEAD_BYTES = 4_096
"""Largest length of the first line."""
WAITING_FILES = 4
"""Full files that may wait to be written; more, on a disk that stays full, are forgotten."""


Event: TypeAlias = JsonObject
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class Span(NamedTuple):
    """Row `row` shows `name` during `[begin, end)`."""

    row: str
    name: str
    begin: float
    end: float
    args: JsonMapping


class Bar(NamedTuple):
    """A span in its row."""

    tid: int
    span: Span

    def events(self, zero: float) -> list[Event]:
        begin, end = _micros(self.span.begin - zero), _micros(self.span.end - zero)
        return [_event("X", self.span.name, self.tid, ts=begin, dur=round(end - begin, 1), args=plain(self.span.args))]


class Track(NamedTuple):
    """A group's phases, and when they began."""

    group_id: int
    phases: Sequence[tuple[str, float]]
    end: float
    facts: Mapping[str, object]

    def events(self, zero: float) -> list[Event]:
        def border(ph: str, name: str, at: float, **more: object) -> Event:
            return _event(ph, name, 0, cat="group", id=self.group_id, ts=_micros(at - zero), **more)

        ends = [*(begin for _, begin in self.phases[1:]), self.end]
        inner = [
            each
            for (phase, begin), end in zip(self.phases, ends, strict=True)
            for each in (border("b", phase, begin), border("e", phase, end))
        ]
        args = {"group_id": self.group_id, **plain(self.facts)}
        return [border("b", "group", self.phases[0][1], args=args), *inner, border("e", "group", self.end)]


class _Piece:
    """Some of a file's spans and tracks. They become events, and these text, when somebody asks for it: the thread that writes
    the file, and not the event loop."""

    def __init__(self, drawn: Sequence[Bar | Track], zero: float) -> None:
        self._drawn = drawn
        self._zero = zero

    @cached_property
    def text(self) -> str:
        """Returns the events as JSON, with commas between them."""
        text = _encoded([event for each in self._drawn for event in each.events(self._zero)])
        self._drawn = ()  # what could not be encoded stays, and is told at each attempt
        return text


class TraceFile(NamedTuple):
    path: Path
    rows: tuple[str, ...]
    pieces: Sequence[_Piece]
    forgotten: int
    until: float
    """Microseconds."""

    def write(self) -> None:
        """Raises `OSError`."""
        head = json.dumps({"displayTimeUnit": "ms", "otherData": {"forgotten_files": self.forgotten, "until": self.until}})
        names = [_event("M", "thread_name", tid, args={"name": row}) for tid, row in enumerate(self.rows)]
        texts = [*([_encoded(names)] if names else []), *(piece.text for piece in self.pieces)]
        text = head[:-1] + ', "traceEvents": [\n' + ",\n".join(texts) + "\n]}\n"
        self.path.parent.mkdir(exist_ok=True)
        write_atomically(self.path, gzip.compress(text.encode(), compresslevel=4))


class Trace:
    def __init__(self, folder: Path, clock: Callable[[], float] = monotonic, file_events: int = FILE_EVENTS) -> None:
        """Keeps the files in the folder and continues after them. `clock`: clock of the times given to the methods."""
        self._folder = folder
        self._clock = clock
        self._file_events = file_events
        self._rows: dict[str, int] = {}
        self._groups: dict[int, list[tuple[str, float]]] = {}
        """The phases of each live group, and when they began."""
        self._notes: dict[int, dict[str, object]] = {}
        self._fresh: list[Bar | Track] = []
        self._pieces: list[_Piece] = []
        self._events = 0
        """Number of events in the newest file."""
        self._number = 0
        self._path = self._next_path()
        self._zero = clock() - _until(self._named(self._number - 1)) / 1e6
        self.full: list[TraceFile] = []
        """Files that are not written yet, and will not change any more."""
        self._forgotten = 0
        self.listeners: list[Callable[[Bar | Track], None]] = []
        """Called with each span and track that is over; must be quick."""

    def add(self, span: Span) -> None:
        self._add(self._bar(span), 1)

    @contextmanager
    def during(self, row: str, name: str, **args: object) -> Iterator[None]:
        """Records a span from now to the end of the block, unless the block raises."""
        begin = self._clock()
        yield
        self.add(Span(row, name, begin, self._clock(), args))

    def enter_phase(self, group_id: int, phase: str) -> None:
        """Begins a phase; the group's track begins with its first phase."""
        self._groups.setdefault(group_id, []).append((phase, self._clock()))

    def note(self, group_id: int, **facts: object) -> None:
        """Adds facts about a group that has a track, to be shown with its terminal status."""
        if group_id in self._groups:
            self._notes.setdefault(group_id, {}).update(facts)

    def end_group(self, group_id: int, facts: Mapping[str, object]) -> None:
        """The group has ended; `facts` about it are shown with it. One of which this process has done nothing has no
        track here."""
        if phases := self._groups.pop(group_id, None):
            facts = {**facts, **self._notes.pop(group_id, {})}
            self._add(Track(group_id, phases, self._clock(), facts), 2 * len(phases) + 2)

    def files(self, open_spans: Iterable[Span] = ()) -> list[TraceFile]:
        """Returns the full files and the newest in its present state, with live groups and `open_spans` drawn up to now."""
        self._seal()
        now = self._clock()
        live = [Track(group_id, tuple(phases), now, {"status": "live"}) for group_id, phases in self._groups.items()]
        return [*self.full, self._file([*(self._bar(span) for span in open_spans), *live])]

    def written(self, files: Sequence[TraceFile]) -> None:
        """Forgets full files that are on disk."""
        self.full = [file for file in self.full if file not in files]

    def _add(self, drawn: Bar | Track, events: int) -> None:
        for listen in self.listeners:
            listen(drawn)
        self._fresh.append(drawn)
        self._events += events
        if len(self._fresh) >= TOGETHER or self._events >= self._file_events:
            self._seal()

    def _seal(self) -> None:
        if self._fresh:
            self._pieces.append(_Piece(self._fresh, self._zero))
            self._fresh = []
        if self._events < self._file_events:
            return
        if len(self.full) == WAITING_FILES:
            self._forgotten += 1
            del self.full[0]
        self.full.append(self._file())
        self._pieces, self._events, self._path = [], 0, self._next_path()

    def _file(self, drawn: Sequence[Bar | Track] = ()) -> TraceFile:
        """Returns the newest file, with `drawn` added."""
        besides = [_Piece(drawn, self._zero)] if drawn else []
        until = _micros(self._clock() - self._zero)
        return TraceFile(self._path, tuple(self._rows), [*self._pieces, *besides], self._forgotten, until)

    def _bar(self, span: Span) -> Bar:
        return Bar(self._rows.setdefault(span.row, len(self._rows)), span)

    def _next_path(self) -> Path:
        while True:
            self._number += 1
            path = self._named(self._number)
            if not path.exists():  # or the run that is resumed wrote it
                return path

    def _named(self, number: int) -> Path:
        return self._folder / f"trace-{number:04}.json.gz"


def _until(path: Path) -> float:
    """Returns the time at which the trace in the file ended, as its first line says; 0 where no file says it."""
    with suppress(OSError, EOFError, zlib.error, ValueError, LookupError, TypeError), gzip.open(path) as file:
        return float(json.loads(file.readline(HEAD_BYTES) + b"]}")["otherData"]["until"])
    return 0.0


def _micros(seconds: float) -> float:
    return round(1e6 * seconds, 1)


def _event(ph: str, name: str, tid: int, **more: object) -> Event:
    return {"ph": ph, "name": name, "pid": 0, "tid": tid, **more}


def _encoded(events: Sequence[Event]) -> str:
    """Returns the events as JSON, without the brackets of a list."""
    return _ENCODER.encode(events)[1:-1]
