"""Declares configuration fields, each with a default, a one-sentence meaning and the range of its numbers; and walks the tree of
keys that the fields form.

Ranges are part of the field, so the loader, `check_config` and the reference page all read the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from roll.core.configs.problems import Problem

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a number. Values must be finite unless `infinite` is set; NaN never passes."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    infinite: bool = False

    def violation(self, value: float) -> str | None:
        """Returns the broken rule in words, or None."""
        if value != value or (value in (math.inf, -math.inf) and not self.infinite):
            return "must be a finite number"
        ok = (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )
        return None if ok else f"must be {self}"

    def __str__(self) -> str:
        limits = [(">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt)]
        return " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)


FINITE = Bounds()


def option(default: T, help: str, *, bounds: Bounds = FINITE, **metadata: Any) -> T:
    """Declares a field with a default. Mutable defaults are copied per instance.

    If the default is a dataclass instance, a mapping in the YAML is merged into it: omitted keys keep their default."""
    metadata |= {"help": help, "bounds": bounds}
    if isinstance(default, (dict, list)):
        return field(default_factory=partial(copy, default), metadata=metadata)
    return field(default=default, metadata=metadata)


def required(help: str, **metadata: Any) -> Any:
    """Declares a field that the user must give."""
    return field(metadata={"bounds": FINITE} | metadata | {"help": help})


def default_of(item: Field[object]) -> Any:
    """Returns the default value, or `MISSING`."""
    return item.default_factory() if item.default_factory is not MISSING else item.default


def range_problems(item: Field[object], value: object, key: str) -> Iterator[Problem]:
    """Yields problems for numbers of one field (also inside a list or a dict) out of its range."""
    bounds: Bounds = item.metadata["bounds"]
    numbers = {key: value}
    if isinstance(value, Mapping):
        numbers = {f"{key}.{name}": entry for name, entry in value.items()}
    elif isinstance(value, list):
        numbers = {f"{key}[{index}]": entry for index, entry in enumerate(value)}
    for path, number in numbers.items():
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            violation = bounds.violation(number)
            if violation is not None:
                yield Problem(path, number, violation)


def all_range_problems(config: Any, key: str = "") -> Iterator[Problem]:
    """Yields problems for out-of-range numbers anywhere in a configuration built in Python, not loaded."""
    for item in fields(config):
        value, path = getattr(config, item.name), f"{key}.{item.name}" if key else item.name
        children = {f".{name}": child for name, child in value.items()} if isinstance(value, dict) else {}
        if isinstance(value, list):
            children = {f"[{index}]": child for index, child in enumerate(value)}
        if is_dataclass(value):
            yield from all_range_problems(value, path)
        elif any(is_dataclass(child) for child in children.values()):
            for name, child in children.items():
                if is_dataclass(child):
                    yield from all_range_problems(child, f"{path}{name}")
        else:
            yield from range_problems(item, value, path)


@cache
def hints(cls: object) -> dict[str, Any]:
    """Returns the resolved type of each field."""
    return {name: hint for name, hint in get_type_hints(cls).items() if get_origin(hint) is not ClassVar}


def walk(cls: Any, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """Yields dotted path, field and type of every key in the order of declaration; `<name>` stands for the user's own name.

    The path of a field precedes those of the block below it."""
    for item in fields(cls):
        hint, path = hints(cls)[item.name], prefix + item.name
        yield path, item, hint
        for member in (hint, *get_args(hint)):
            if is_dataclass(member):
                inner = f"{path}.<name>." if get_origin(hint) is dict else f"{path}."
                yield from walk(member, inner)
