"""Strict loading of a plain mapping into configuration dataclasses.

Every problem is collected before anything is raised; nothing is dropped, guessed or rewritten. `plain.to_mapping` is the inverse.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from roll.core.configs.fields import default_of, hints, range_problems, walk
from roll.core.configs.problems import MISSING_VALUE, ConfigError, Problem, did_you_mean
from roll.plan.rules.other_names import name_here

T = TypeVar("T")

# YAML 1.1 reads 1e-6 as text (it wants 1.0e-6); numbers written so are meant as numbers.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?\.?inf")
_SWITCHES = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
_SCALAR_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "text", types.NoneType: "null"}


def load_config(cls: type[T], mapping: Mapping[str, object]) -> T:
    """Loads an instance of the dataclass `cls`. Raises `ConfigError` with every problem found."""
    loader = _Loader(cls)
    config = loader.load(cls, mapping, "", None)
    if loader.problems:
        raise ConfigError(loader.problems)
    return cast(T, config)


@dataclass(slots=True)
class Leniency:
    """The values that lenient loading skipped, each as the problem that strict loading reports."""

    unknown: list[Problem] = field(default_factory=list)
    """Keys that no block has."""
    not_offered: list[Problem] = field(default_factory=list)
    """Texts outside a key's choices; the default replaces them."""


def load_lenient(cls: type[T], mapping: Mapping[str, Any]) -> tuple[T, Leniency]:
    """Loads like `load_config`, but skips and reports unknown keys and choices. Raises `ConfigError` for all other problems."""
    loader = _Loader(cls, Leniency())
    config = loader.load(cls, mapping, "", None)
    if loader.problems:
        raise ConfigError(loader.problems)
    return cast(T, config), cast(Leniency, loader.leniency)


class _Loader:
    def __init__(self, root: type[object], leniency: Leniency | None = None) -> None:
        self.root = root
        self.leniency = leniency
        self.problems: list[Problem] = []

    def load(self, cls: Any, mapping: Mapping[Any, Any], key: str, base: Any, others: Mapping[str, Any] | None = None) -> Any:
        """Merges `mapping` into `base` (None: the defaults of `cls`) and returns an instance of `cls`, or None if there are
        problems. `others`: the classes from which another key chose `cls`, by that key's values."""
        before = len(self.problems)
        known = {item.name: item for item in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in mapping.items():
            path = f"{key}.{name}" if key else str(name)
            if name not in known:
                of = ", ".join(choice for choice, each in (others or {}).items() if name in hints(each))
                own = name_here(path, known)
                here = f"here it is {own}" if own else f"remove it: an option of {of}" if of else ""
                problem = Problem(path, value, "unknown key", here or self.advice(str(name), value, list(known)))
                (self.leniency.unknown if self.leniency else self.problems).append(problem)
                continue
            found = len(self.problems)
            default = default_of(known[name]) if base is None else getattr(base, name)
            converted = self.convert(hints(cls)[name], value, path, default)
            if self.leniency and len(self.problems) > found and self._not_offered(hints(cls)[name], value, path):
                continue
            values[name] = converted
            if len(self.problems) == found:
                self.problems += range_problems(known[name], values[name], path)
        for name, item in known.items():
            path = f"{key}.{name}" if key else name
            if base is None and name not in mapping and default_of(item) is MISSING:
                self.problems.append(Problem(path, MISSING_VALUE, "is required", item.metadata["help"]))
            if "schema_by" in item.metadata and isinstance(values.get(name), dict):
                selector, schemas = item.metadata["schema_by"]
                chosen = values.get(selector, getattr(base or cls, selector))
                schema = schemas.get(chosen) if isinstance(chosen, str) else None
                if schema is not None:
                    checked = self.load(schema, values[name], path, None, schemas)
                    values[name] = {option: getattr(checked, option) for option in values[name] if hasattr(checked, option)}
        if len(self.problems) > before:
            return None
        return cls(**values) if base is None else replace(base, **values)

    def advice(self, name: str, value: object, known: list[str]) -> str:
        """Suggests a similar key of this block, or keys of that name in other blocks, if possible those that take the value."""
        if nearest := did_you_mean(name, known, cutoff=0.75):
            return nearest
        elsewhere = {path: hint for path, item, hint in walk(self.root) if item.name == name}
        taking = [path for path, hint in elsewhere.items() if _Loader(self.root).takes(hint, value)]
        if places := taking or [*elsewhere]:
            return f"it belongs to {' or '.join(place if '.' in place else f'the top level: {place}' for place in places)}"
        return did_you_mean(name, known, "remove it")

    def takes(self, hint: object, value: object) -> bool:
        self.convert(hint, value, "")
        return not self.problems

    def _not_offered(self, hint: object, value: object, path: str) -> bool:
        """Returns True if the last problem is a text outside the key's choices, and then moves it to the skipped ones."""
        own = isinstance(value, str) and self.problems[-1].key == path
        if own and any(isinstance(choice, str) for choice in _choices(hint)):
            cast(Leniency, self.leniency).not_offered.append(self.problems.pop())
            return True
        return False

    def convert(self, hint: object, value: object, key: str, default: object = None) -> Any:
        """Converts `value` to the type `hint`; a mapping is merged into `default` if that is a dataclass instance."""
        origin = get_origin(hint)
        if hint is Any:
            return value
        if isinstance(value, str) and "\0" in value:
            self.problems.append(Problem(key, value, "has a NUL character, which no name or path may have", "write it without"))
            return None
        if origin in (Union, types.UnionType):
            return self.convert_union(hint, value, key, default)
        if is_dataclass(hint) and isinstance(value, Mapping):
            return self.load(hint, value, key, default if is_dataclass(default) else None)
        if origin is Literal and any(type(value) is type(choice) and value == choice for choice in get_args(hint)):
            return value
        if origin is list and isinstance(value, (list, tuple)):
            return [self.convert(get_args(hint)[0], entry, f"{key}[{index}]") for index, entry in enumerate(value)]
        if origin is dict and isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return {name: self.convert(get_args(hint)[1], entry, f"{key}.{name}") for name, entry in value.items()}
        if hint is float and isinstance(value, str) and _NUMBER.fullmatch(value):
            return float(value.replace(".inf", "inf"))
        if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
        if (hint in _SCALAR_NAMES and type(value) is hint) or (origin is Callable and callable(value)):
            return value
        self.problems.append(Problem(key, value, f"must be {_describe(hint)}", _fix(hint, value, default)))
        return None

    def convert_union(self, hint: object, value: object, key: str, default: object) -> Any:
        """Converts by the union member with the shape of the value, so that nested problems keep their own key."""
        members = get_args(hint)
        shapes = (dict,) if isinstance(value, Mapping) else (list,) if isinstance(value, list) else ()
        shaped = [m for m in members if get_origin(m) in shapes or (dict in shapes and is_dataclass(m))]
        if len(shaped) == 1:
            return self.convert(shaped[0], value, key, default)
        # The value's own type first: text stays text where text is allowed.
        for member in sorted(members, key=lambda member: type(value) is not member):
            attempt = _Loader(self.root, self.leniency)
            converted = attempt.convert(member, value, key, default)
            if not attempt.problems:
                return converted
        self.problems.append(Problem(key, value, f"must be {_describe(hint)}", _fix(hint, value, default)))
        return None


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(member) for member in arguments)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(str, arguments))
    if origin is list:
        return f"a list (of {_describe(arguments[0])})"
    if origin is dict or is_dataclass(hint):
        return "a mapping"
    return "a function" if origin is Callable else _SCALAR_NAMES[hint]


def _fix(hint: object, value: object, default: object) -> str:
    if hint is int and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if int in (hint, *get_args(hint)) and isinstance(value, str) and "inf" not in value and _NUMBER.fullmatch(value):
        return f"write {float(value):.0f}, without quotes" if float(value).is_integer() else "a whole number"
    if bool in (hint, *get_args(hint)) and isinstance(value, str) and value.lower() in _SWITCHES:
        return f"write {_SWITCHES[value.lower()]}, without quotes"
    if str in (hint, *get_args(hint)) and isinstance(value, int | float):
        return f'write "{value}", in quotes'
    if get_origin(hint) is list and get_args(hint)[0] is str and isinstance(value, str):
        return f"write [{value}]"
    if isinstance(value, list) and str in (hint, *get_args(hint)) and all(isinstance(each, str) for each in value):
        return f"write {','.join(value) or 'null'}"
    if value is None and default is not None and default is not MISSING:
        return f"remove it to keep the default{'' if is_dataclass(default) else f', {default!r}'}"
    return did_you_mean(str(value), [choice for choice in _choices(hint) if isinstance(choice, str)])


def _choices(hint: object) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for member in get_args(hint) for choice in _choices(member)]
    return []
