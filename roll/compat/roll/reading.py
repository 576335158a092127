"""One statement about a key that has the same name here and another meaning in ROLL, and how such statements look at a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

Path = tuple[str, ...]
Reads = Iterator[tuple[Path, Mapping[Path, Any]]]
"""A key as it was written, and the values to write, by their paths."""


@dataclass(frozen=True, slots=True)
class Reading:
    key: str
    """For the page; `<name>` is a name of the user's own."""
    values: str
    """The values or files that it is about, as text for the page."""
    note: str
    """ROLL's meaning."""
    reads: Callable[[Mapping[str, object]], Reads]
    pipelines: tuple[str, ...] = ("rlvr", "agentic")
    told: bool = False
    """As `Note.told`; without `compat`, that the key is not read so."""


def number(value: Any) -> float | None:
    """A finite number; YAML 1.1 reads 1e-1 as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if isfinite(read) else None


def whole(value: Any, default: int | None = None) -> int | None:
    return default if value is None else value if type(value) is int else None


def blocks(mapping: Mapping[str, object], name: str) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """The named blocks of a key."""
    entries = mapping.get(name)
    for each, block in entries.items() if isinstance(entries, Mapping) else ():
        if isinstance(each, str) and isinstance(block, Mapping):
            yield (name, each), block
