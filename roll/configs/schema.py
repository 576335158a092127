"""The tree of keys that a configuration class allows: for nearest-name advice and for the reference page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints


@cache
def hints(cls: object) -> dict[str, Any]:
    """Resolved type of each field."""
    return get_type_hints(cls)


def walk(cls: Any, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """Dotted path, field and type of every key in the order of declaration; `<name>` stands for the user's own name.

    The path of a field precedes those of the block below it."""
    for item in fields(cls):
        hint, path = hints(cls)[item.name], prefix + item.name
        yield path, item, hint
        for member in (hint, *get_args(hint)):
            if is_dataclass(member):
                inner = f"{path}.<name>." if get_origin(hint) is dict else f"{path}."
                yield from walk(member, inner)


def count_keys(cls: object, mapping: Mapping[str, object]) -> int:
    """How many keys of `mapping` have a field of `cls` and a value of their own; blocks count by what is in them."""
    count = 0
    for name in hints(cls).keys() & mapping.keys():
        hint, value = hints(cls)[name], mapping[name]
        block = next((member for member in (hint, *get_args(hint)) if is_dataclass(member)), None)
        if block is None or not isinstance(value, Mapping):
            count += 1
        else:
            entries = value.values() if get_origin(hint) is dict else [value]
            count += sum(count_keys(block, entry) for entry in entries if isinstance(entry, Mapping))
    return count
