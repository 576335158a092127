"""Values as JSON between processes that do not trust each other: only data of Python's own types crosses as such.

Whatever else an object is, it stays where it is, and a handle crosses. A reader builds nothing but the types of this file, so
that what comes from a solution can be compared by the reader's rules, not by the solution's `__eq__`.
"""

from __future__ import annotations

import builtins
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

from roll.graders.sandbox.library_values import LIBRARIES, NAMES, from_library, to_library

Export = Callable[[Any], Any]
"""Object -> its handle, in JSON."""
Import = Callable[[Any], Any]
"""Handle -> the stand-in for the object here."""

BASES: tuple[Any, ...] = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
"""Bases by which an object of a derived class is compared: a named tuple, a numeral of an enumeration."""
KINDS = (*BASES, bytearray, deque, OrderedDict, Counter, Decimal, Fraction, datetime, date, time, timedelta, range)
_HOMES = ("builtins", "decimal", "fractions", "datetime", "uuid", "pathlib", "re")
_SMALL = 1 << 53
_LISTS: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_VIEW_OF: dict[str, Callable[[Any], Any]] = {
    "dict_keys": lambda items: dict.fromkeys(items).keys(),
    "dict_values": lambda items: dict(enumerate(items)).values(),
    "dict_items": lambda items: dict(items).items(),
}
_TEXTS: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (hex, lambda text: int(text, 16)),  # decimal digits would take quadratic time
    "float": (str, float),
    "complex": (str, complex),
    "bytes": (bytes.hex, bytes.fromhex),
    "bytearray": (bytearray.hex, bytearray.fromhex),
    "Decimal": (str, Decimal),
    "Fraction": (lambda value: f"{value.numerator:x}/{value.denominator:x}", lambda text: _fraction(text)),
    "datetime": (datetime.isoformat, datetime.fromisoformat),
    "date": (date.isoformat, date.fromisoformat),
    "UUID": (lambda value: value.hex, UUID),
    "PosixPath": (str, Path),
    "Pattern": (lambda value: f"{value.flags} {value.pattern}", lambda text: _pattern(text)),
    "time": (time.isoformat, time.fromisoformat),
    "timedelta": (lambda value: f"{value.days} {value.seconds} {value.microseconds}", lambda text: _timedelta(text)),
}


def to_json(value: Any, export: Export) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str or (kind is int and -_SMALL < value < _SMALL):
        return value
    if kind is float and abs(value) < float("inf"):
        return value
    if kind is list:
        return [to_json(each, export) for each in value]
    name = kind.__name__
    if kind is deque:
        return {name: [[to_json(each, export) for each in value], value.maxlen]}
    if kind is defaultdict:
        return {"defaultdict": [to_json(value.default_factory, export), to_json(dict(value), export)]}
    if kind in _VIEWS:
        return {name: to_json(list(value), export)}
    if value is ...:
        return {"ellipsis": 0}
    if _LISTS.get(name) is kind:
        return {name: [to_json(each, export) for each in value]}
    if name in _MAPPINGS and issubclass(kind, dict) and kind.__module__ in ("builtins", "collections"):
        return {name: [[to_json(key, export), to_json(each, export)] for key, each in dict.items(value)]}
    if kind.__module__ == "numpy" and hasattr(kind, "item") and name != "ndarray":
        return to_json(value.item(), export)  # a number of NumPy's is one
    if kind.__module__.partition(".")[0] in LIBRARIES:
        known = _of_library(value, export)
        if known is not None:
            return known
    if kind is slice or kind is range:
        return {name: [to_json(each, export) for each in (value.start, value.stop, value.step)]}
    if name in _TEXTS and (name != "Pattern" or isinstance(value.pattern, str)) and kind.__module__ in _HOMES:
        return {name: _TEXTS[name][0](value)}
    if kind is type and _is_builtin(value):
        return {"type": value.__name__}
    return {"handle": export(value)}


def _is_builtin(cls: Any) -> bool:
    if cls is type(None):
        return True
    known = cls.__module__ == "builtins" and vars(builtins).get(cls.__name__) is cls
    return known and not issubclass(cls, BaseException)


def _of_library(value: Any, export: Export) -> Any:
    try:
        return to_library(value, lambda inner: to_json(inner, export))
    except Exception:  # boundary: a value of such a type that is none
        return None


def from_json(value: Any, receive: Import) -> Any:
    """Raises `ValueError`, `TypeError` or `RecursionError` for values that `to_json` has not written."""
    if isinstance(value, list):
        return [from_json(each, receive) for each in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    if name == "deque":
        return deque((from_json(each, receive) for each in content[0]), content[1])
    if name == "defaultdict":
        return defaultdict(from_json(content[0], receive), from_json(content[1], receive))
    if name in _VIEW_OF:
        return _VIEW_OF[name](from_json(content, receive))
    if name == "ellipsis":
        return ...
    if name in _LISTS:
        return _LISTS[name](from_json(each, receive) for each in content)
    if name in _MAPPINGS:
        return _MAPPINGS[name]({from_json(key, receive): from_json(each, receive) for key, each in content})
    if name in _TEXTS:
        return _TEXTS[name][1](content)
    if name == "handle":
        return receive(content)
    if name == "type":
        return _type(content)
    if name in NAMES:
        return from_library(name, content, lambda inner: from_json(inner, receive))
    if name in ("slice", "range"):
        return {"slice": slice, "range": range}[name](*(from_json(each, receive) for each in content))
    raise ValueError(f"{name} is not a type of value")


def _type(name: str) -> type:
    found = type(None) if name == "NoneType" else vars(builtins).get(name)
    if not isinstance(found, type):
        raise ValueError(f"{name} is no type")
    return found


def _pattern(text: str) -> re.Pattern[str]:
    flags, _, pattern = text.partition(" ")
    return re.compile(pattern, int(flags))


def _fraction(text: str) -> Fraction:
    numerator, _, denominator = text.partition("/")
    return Fraction(int(numerator, 16), int(denominator, 16))


def _timedelta(text: str) -> timedelta:
    days, seconds, microseconds = map(int, text.split())
    return timedelta(days, seconds, microseconds)
