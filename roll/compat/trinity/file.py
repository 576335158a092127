"""Questions about a whole file of Trinity-RFT's, which several rules ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.translation import value_at

File = Mapping[str, Any]


def at(file: File, path: str, default: Any = None) -> Any:
    value = value_at(file, tuple(path.split(".")))
    return default if value is None else value


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def is_apart(value: Any, file: File) -> bool:
    """Whether explorer and trainer are processes of their own."""
    return file.get("mode") in ("explore", "train")


def tasks_of_a_batch(file: File) -> Any:
    """None: it cannot be said."""
    size = at(file, "algorithm.repeat_times", 1)
    return at(file, "buffer.batch_size") or (at(file, "buffer.train_batch_size", 0) // size if is_count(size) else None)
