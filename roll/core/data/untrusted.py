"""Reads files and values from untrusted sources: regular files only, up to a size limit, and only values that can be stored,
which means text that UTF-8 can encode, and a nesting that every later reader survives.

A FIFO without a writer, a terminal or a device would block the reader for ever; it is refused before anything is read. JSON can
spell half of a surrogate pair (`"\\ud800"`), which is no character: a reader accepts it, and the first write to a file fails.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from roll.core.errors import boundary

DEEPEST = 64
"""Levels of lists and mappings inside a value."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def open_regular(path: Path) -> BinaryIO:
    """Opens a file. Raises `OSError` if the path cannot be opened, and `ValueError` if it is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError(f"{path} is a {_kind(mode)}, not a regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int) -> bytes:
    """Reads a file. Raises the errors of `open_regular`, and `ValueError` for more than `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most:,} bytes")
    return content


def lines(file: BinaryIO, most: int) -> Iterator[bytes | None]:
    """Yields the lines without their ends; for a line of more than `most` bytes yields None and stops."""
    while piece := file.readline(most + 1):
        if len(piece) > most:
            yield None
            return
        yield from piece.splitlines()


def open_inside(folder: Path, name: str) -> BinaryIO:
    """Opens a file in a folder. Raises the errors of `open_regular`, and `ValueError` if a link or `..` leads out of it."""
    path = folder / name
    if path.resolve() != folder.resolve() / name:
        raise ValueError(f"{path} is a link, or lies elsewhere: it is not read")
    return open_regular(path)


def complaint(value: object) -> str:
    """Returns the fault of a value made of mappings, lists and scalars; empty if there is none. Does not recurse, so depth costs
    no stack."""
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str):
            if found := _SURROGATE.search(item):
                return f"has the lone surrogate \\u{ord(found[0]):04x} at character {found.start()}: half of a character"
        elif isinstance(item, Mapping | list | tuple):
            if depth >= DEEPEST:
                return f"is nested more than {DEEPEST} levels deep"
            inner = [*item.keys(), *item.values()] if isinstance(item, Mapping) else item
            waiting += [(each, depth + 1) for each in inner]
    return ""


def described(value: object) -> str:
    """Returns the value's type and text in one short line, even if its `__repr__` raises."""
    told = ""
    with boundary(lambda _: None):
        told = repr(value)
    text = f"{type(value).__name__} {told}".rstrip()
    return text if len(text) <= 100 else text[:97] + "..."


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFIFO: "FIFO",
        stat.S_IFDIR: "folder",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    return kinds.get(stat.S_IFMT(mode), "special file")
