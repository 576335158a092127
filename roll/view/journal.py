"""A journal of a run, which may still be written to: its rows are taken once each, from where the last look ended.

Invariant: the rows taken are those of the file. A file that was cut, replaced or went is read again from its
beginning; a last line without its end waits for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from roll.core.configs.redact import visible
from roll.core.data.untrusted import open_inside

LONGEST_LINE = 32 << 20
"""Bytes. A longer one is left out, and never in memory."""
LARGEST = sys.float_info.max
LARGEST_WHOLE = 1 << 53
_REMEMBERED = 64
"""Bytes before the place that was reached, by which another file is told from this one."""

Row = dict[str, object]


class Place(NamedTuple):
    """Place of a row in its file."""

    start: int
    size: int


class Journal:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.name = name
        self.damaged = 0
        """Lines that are no JSON object, or too long."""
        self.reached = 0
        """Bytes that were read."""
        self._file_id = 0
        self._last = b""

    def take(self, row: Row, place: Place) -> None:
        """A row is new."""
        raise NotImplementedError

    def forget(self) -> None:
        """No row that was taken counts any more."""
        raise NotImplementedError

    def look(self) -> bool:
        """Takes the rows that are new. Returns True if anything has changed. Raises `OSError` or `ValueError` for an unreadable
        file."""
        try:
            file = open_inside(self._folder, self.name)
        except FileNotFoundError:
            return self._restart()
        with file:
            changed = False if self._goes_on(file) else self._restart()
            self._file_id = os.fstat(file.fileno()).st_ino
            before = self.reached
            self._take_lines(file)
        return changed or self.reached > before

    def row_at(self, place: Place) -> Row:
        """Raises `ValueError` if the file has no such row any more."""
        with open_inside(self._folder, self.name) as file:
            file.seek(place.start)
            row = _parsed(file.read(place.size))
        if row is None:
            raise ValueError(f"{self.name} was rewritten")
        return row

    def _take_lines(self, file: BinaryIO) -> None:
        file.seek(self.reached)
        while line := file.readline(LONGEST_LINE):
            size, whole = len(line), line.endswith(b"\n")
            while not whole and (more := file.readline(LONGEST_LINE)):
                line, size, whole = b"", size + len(more), more.endswith(b"\n")
            if not whole:
                break
            if (row := _parsed(line)) is None:
                self.damaged += 1
            else:
                self.take(row, Place(self.reached, size))
            self.reached += size
        file.seek(max(0, self.reached - _REMEMBERED))
        self._last = file.read(min(self.reached, _REMEMBERED))

    def _goes_on(self, file: BinaryIO) -> bool:
        """Returns True if the file still begins with the part that was read."""
        found = os.fstat(file.fileno())
        if self.reached and (found.st_ino != self._file_id or found.st_size < self.reached):
            return False
        file.seek(self.reached - len(self._last))
        return file.read(len(self._last)) == self._last

    def _restart(self) -> bool:
        known, self.reached, self.damaged, self._last = self.reached > 0, 0, 0, b""
        if known:
            self.forget()
        return known


def number(value: Any) -> float | None:
    """Returns a finite number, or None."""
    kind = type(value)  # what JSON holds has no subclasses; asked of each of millions of values
    return value if (kind is float or kind is int) and -LARGEST <= value <= LARGEST else None


def whole(value: object) -> int | None:
    return value if type(value) is int and -LARGEST_WHOLE < value < LARGEST_WHOLE else None


def mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def list_of(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def shown(value: object) -> str:
    """Returns a short text or name, as a page or a terminal shows it."""
    return visible(text(value))


def text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def from_json(contents: bytes) -> object:
    """Decodes JSON as Python writes it, four times as fast as Python reads it. Raises `ValueError` or `RecursionError`."""
    try:
        return msgspec.json.decode(contents)
    except (msgspec.MsgspecError, UnicodeError):  # NaN, infinities, halves of surrogates, or no JSON at all
        return json.loads(contents)


def _parsed(line: bytes) -> Row | None:
    try:
        row = from_json(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
