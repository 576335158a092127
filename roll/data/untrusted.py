"""What somebody else named or wrote: only regular files are read, and never more of them than is meant; only values are taken
that may be stored, which means text that UTF-8 can hold, and a nesting that every later reader survives.

A FIFO without a writer, a terminal or a device would hold up the reader for ever; it is refused before anything is read. JSON can
spell half of a surrogate pair (`"\\ud800"`), which is no character: it is read without complaint, and breaks the first file that
it is written to.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from roll.errors import boundary

DEEPEST = 64
"""Levels of lists and mappings inside a value."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def open_regular(path: Path) -> BinaryIO:
    """Raises `OSError` where the path cannot be opened, and `ValueError` where it is something other than a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError(f"{path} is a {_kind(mode)}, not a regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int) -> bytes:
    """The content. Raises as `open_regular`, and `ValueError` for more than `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most:,} bytes")
    return content


def lines(file: BinaryIO, most: int) -> Iterator[bytes | None]:
    """The lines without their ends; None, and then nothing, for one of more than `most` bytes."""
    while piece := file.readline(most + 1):
        if len(piece) > most:
            yield None
            return
        yield from piece.splitlines()


def open_inside(folder: Path, name: str) -> BinaryIO:
    """A file in a folder. Raises as `open_regular`, and `ValueError` where a link or `..` leads out of the folder."""
    path = folder / name
    if path.resolve() != folder.resolve() / name:
        raise ValueError(f"{path} is a link, or lies elsewhere: it is not read")
    return open_regular(path)


def complaint(value: object) -> str:
    """What is wrong with a value made of mappings, lists and scalars; empty if nothing is. Nothing here recurses, so depth costs
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
    """Its type and what it is, in one short line; its own `__repr__` may raise."""
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
