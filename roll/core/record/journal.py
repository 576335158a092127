"""Append-only journals of a run, one JSON object per line, that survive `kill -9` and can be wound back to a checkpoint.

Invariants: a file holds whole lines only, after any crash of its writer; a row that is cut away is kept in
`<name>.rolled-back.jsonl`; a journal that lost rows before a checkpoint, or has others, is not taken for the checkpoint's.

A `RotatedJournal` is continued in further files, of which the oldest go when all together would take too much room.
`samples.jsonl` is followed by `samples-000000067108864.jsonl` and so on: the number says how many bytes were written before. No
file is renamed or rewritten, so a reader can go on from a byte. A position is a byte of all files together; a checkpoint's digest
is that of the file which has the byte before the position.

`write_atomically` replaces other files as a whole: a reader, a killed writer and a full disk find the old contents or the new
ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.record.patient_file import PatientFile

logger = logging.getLogger(__name__)

PART_BYTES = 64 << 20
"""A file that has grown to this is not continued."""
FEWEST = 4
"""Files are so small that at least so many lie within the limit."""


def plain(value: Any) -> Any:
    """`value` as strict JSON can hold it: tensor and array scalars become numbers, NaN and infinities None."""
    kind = type(value)
    if kind is int or kind is str or kind is bool:  # most are
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_rows(path: Path) -> Iterator[JsonObject]:
    """The rows of a journal, which may be one that is being written: a last line without its end is left out.

    Raises `ValueError`, naming file and line, for a line that is no JSON object."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: expected an object, found {type(row).__name__}")
            yield row


def _line(row: Mapping[str, object]) -> bytes:
    """Readable UTF-8; where a text has a lone surrogate, which UTF-8 cannot hold, JSON's escapes."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, allow_nan=False).encode() + b"\n"


class JournalFile:
    """One journal, opened for appending. A line that a killed writer left half-written is removed on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rolled_back = path.with_name(f"{path.stem}.rolled-back{path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = PatientFile(path)
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
        self._hash: hashlib.blake2b | None = None
        """None until it is asked for."""
        self._hashed = 0
        """Bytes that the hash has seen: more than there are, once lines were cut or could not be written."""

    def append(self, *rows: JsonMapping) -> None:
        """Writes a line each, at once. Outlives this process unless the folder hangs, which holds up nobody here. Raises as
        `PatientFile`."""
        lines = b"".join(_line(plain(row)) for row in rows)
        self._file.append(lines)
        if self._hash is not None:
            self._hash.update(lines)
            self._hashed += len(lines)

    def position(self) -> int:
        """Returns the size in bytes, for a checkpoint, which is committed after `sync`."""
        return self._file.end

    def sync(self) -> None:
        """Everything up to `position()` is on disk when this returns, which may take long; any thread may call it."""
        self._file.settle()
        sync(self.path)
        sync(self.path.parent)

    def digest(self) -> str:
        """Returns the hash of everything up to `position()`, for a checkpoint, too."""
        if self._hash is None or self._hashed != self._file.end:
            self._file.settle()
            self._hash, self._hashed = _hash(self.path, self._file.end), self._file.end
        return self._hash.hexdigest()

    def rewind(self, position: int, digest: str | None = None) -> int:
        """Cuts the journal back to `position`, an earlier result of `position()`, with that of `digest()` if the checkpoint has
        it. Returns the number of rows cut.

        Raises `ValueError` if the file cannot have been that: it is shorter, has no line border there, or other rows before."""
        self._file.settle()
        check_prefix(self.path, position, digest)
        tail = self.path.read_bytes()[position:]
        self._put_aside(tail)
        self._file.truncate(position)
        return tail.count(b"\n")

    def retain(self, wanted: Callable[[JsonObject], bool]) -> int:
        """Retains the rows that are `wanted`, and removes all others, and lines that are no rows. Returns the number of lines
        removed."""
        self._file.settle()
        lines = self.path.read_bytes().splitlines(keepends=True)
        verdicts = [(row := _row(line)) is not None and wanted(row) for line in lines]
        cut = [line for line, good in zip(lines, verdicts, strict=True) if not good]
        if cut:
            self._put_aside(b"".join(cut))
            aside = self.path.with_name(f".{self.path.name}.new")
            with aside.open("wb") as file:
                file.writelines(line for line, good in zip(lines, verdicts, strict=True) if good)
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            os.replace(aside, self.path)
            sync(self.path.parent)
            self._file = PatientFile(self.path)
        return len(cut)

    def rows(self) -> Iterator[JsonObject]:
        self._file.settle()
        return read_rows(self.path)

    def close(self) -> None:
        self._file.close()

    def _put_aside(self, lines: bytes) -> None:
        """Copies rows aside before they are cut: a crash between the two leaves rows in both files, never in none."""
        if lines:
            with self.rolled_back.open("ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            sync(self.path.parent)


def check_prefix(path: Path, position: int, digest: str | None = None) -> None:
    """Raises `ValueError` if the journal cannot have had `position()` and `digest()` of a checkpoint: it is shorter, has no line
    border there, or other rows before."""
    size = path.stat().st_size if path.exists() else 0
    if position > size:
        raise ValueError(f"{path} has {size} bytes, the checkpoint recorded {position}: rows were lost")
    if not position:
        return
    with path.open("rb") as file:
        file.seek(position - 1)
        if file.read(1) != b"\n":
            raise ValueError(f"{path} has no line border at byte {position}: not the file of this checkpoint")
    if digest is not None and _hash(path, position).hexdigest() != digest:
        raise ValueError(f"{path}: rows before the checkpoint (byte {position}) were changed or lost")


def _row(line: bytes) -> JsonObject | None:
    """None if the line holds no JSON object."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def sync(path: Path) -> None:
    """The contents of a file, or the names in a folder, are on disk: a file only is when the folder that names it is, too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hash(path: Path, size: int) -> hashlib.blake2b:
    """Returns the hash of the first `size` bytes."""
    found = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while size and (block := file.read(min(size, 1 << 20))):
            found.update(block)
            size -= len(block)
    return found


class JournalPart(NamedTuple):
    start: int
    """Bytes that were written before it."""
    path: Path


def journal_parts(path: Path) -> list[JournalPart]:
    """The files of the journal that are there, the oldest first. `path`: that of the first one, which may be gone."""
    numbered = re.compile(rf"{re.escape(path.stem)}-(\d+){re.escape(path.suffix)}")
    found = [JournalPart(int(known[1]), each) for each in path.parent.iterdir() if (known := numbered.fullmatch(each.name))]
    return sorted([*found, *([JournalPart(0, path)] if path.exists() else [])])


def part_before(path: Path, position: int) -> JournalPart | None:
    """The file that has the byte before a position; None if it went, being one of the oldest."""
    return max((part for part in journal_parts(path) if part.start < max(position, 1)), default=None)


class RotatedJournal:
    def __init__(self, path: Path, most_bytes: int, part_bytes: int = PART_BYTES) -> None:
        """`most_bytes`: limit of all files together; 0: no limit."""
        self._path = path
        self._most = most_bytes
        self._part_bytes = min(part_bytes, most_bytes // FEWEST) if most_bytes else part_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        found = journal_parts(path)
        while len(found) > 1 and not found[-1].path.stat().st_size:  # its writer was killed before the first row
            found.pop().path.unlink()
        self._open(found[-1] if found else JournalPart(0, path))

    def append(self, rows: Sequence[JsonMapping]) -> None:
        """Writes the rows into one file. Raises as `JournalFile.append`."""
        if not rows:
            return  # no file without a row: a position is of the file before it
        if self._journal.position() >= self._part_bytes:
            self._begin_next()
        self._journal.append(*rows)

    def position(self) -> int:
        """Returns the number of bytes ever written, for a checkpoint, which is committed after `sync`."""
        return self._start + self._journal.position()

    def sync(self) -> None:
        """Syncs as `JournalFile.sync`; a file removed meanwhile, being one of the oldest, need not be on disk."""
        self._journal.sync()
        for part in journal_parts(self._path):
            with contextlib.suppress(FileNotFoundError):
                sync(part.path)
        sync(self._path.parent)

    def digest(self) -> str:
        """Returns the hash of the newest file, for a checkpoint, too."""
        return self._journal.digest()

    def rewind(self, position: int, digest: str | None = None) -> int:
        """Rewinds as `JournalFile.rewind`; if the file of the position has gone, all that is left came after it. A file that was
        changed, or has lost rows, is put aside with those that follow: the run needs none of them."""
        part = part_before(self._path, position)
        later = [each for each in journal_parts(self._path) if part is None or each > part]
        self._journal.close()
        if part is not None:
            try:
                check_prefix(part.path, position - part.start, digest)
            except ValueError as error:
                logger.warning("%s; the run goes on without, they are in %s.rolled-back.jsonl", error, part.path.stem)
                later, part = [part, *later], None
        cut = sum(map(_put_aside, later))
        self._open(part or JournalPart(position, self._named(position)))
        return cut + (self._journal.rewind(position - part.start) if part is not None else 0)

    def after(self, position: int) -> Iterator[JsonObject]:
        """Returns the rows behind a position."""
        for part in journal_parts(self._path):
            with part.path.open("rb") as file:
                file.seek(max(0, position - part.start))
                yield from filter(None, map(_row, file))

    def close(self) -> None:
        self._journal.close()

    def _open(self, part: JournalPart) -> None:
        self._start, self._journal = part.start, JournalFile(part.path)

    def _named(self, start: int) -> Path:
        return self._path.with_stem(f"{self._path.stem}-{start:015}")

    def _begin_next(self) -> None:
        following = JournalPart(self.position(), self._named(self.position()))
        before = self._journal
        self._open(following)
        before.close()
        if self._most:
            found = journal_parts(self._path)
            while len(found) > 1 and following.start - found[0].start + self._part_bytes > self._most:
                found.pop(0).path.unlink()


def _put_aside(part: JournalPart) -> int:
    journal = JournalFile(part.path)
    cut = journal.rewind(0)
    journal.close()
    part.path.unlink()
    return cut


def write_atomically(path: Path, contents: bytes) -> None:
    """Replaces a file as a whole. Raises `OSError`, naming the file, whose old contents then remain."""
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_bytes(contents)
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
