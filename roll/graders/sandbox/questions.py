"""Tells what an object is and can, to those who have a proxy of it, and answers their questions about it.

A question is a special method without its underscores, or one of a few further names. Nothing here is believed by who asks.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import operator
import pickle
import types
import typing
from collections.abc import Callable
from typing import Any

Told = dict[str, Any]

_BINARY: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, name)
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "lshift", "rshift")
    },
    **{"and": operator.and_, "or": operator.or_, "xor": operator.xor, "divmod": divmod, "pow": pow},
}
IN_PLACE = tuple(f"i{name}" for name in _BINARY if name != "divmod")
ORDER = ("lt", "le", "gt", "ge")
UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(operator, name) for name in ("neg", "pos", "abs", "invert", "index")},
    **{
        "int": int,
        "float": float,
        "complex": complex,
        "bytes": bytes,
        "trunc": math.trunc,
        "floor": math.floor,
        "ceil": math.ceil,
    },
    **{"reversed": reversed, "next": next, "hash": hash, "bool": bool, "len": len, "str": str, "repr": repr, "iter": iter},
    "fspath": lambda this: this.__fspath__(),
    "enter": lambda this: type(this).__enter__(this),
    "aenter": lambda this: type(this).__aenter__(this),
    "anext": lambda this: type(this).__anext__(this),
    "aiter": lambda this: type(this).__aiter__(this),
}
FIRST = frozenset({*_BINARY, *IN_PLACE, *ORDER, "contains"})
"""Questions of an operator whose first operand is the object."""
REFLECTED = {f"r{name}": asked for name, asked in _BINARY.items()}
OPERATORS = FIRST | {*REFLECTED}
OTHERS = frozenset({"call", "getitem", "setitem", "delitem", "exit", "aexit", "format", "round", "await"})
QUESTIONS = OPERATORS | {*UNARY} | OTHERS
"""Questions that a class may answer; its proxy answers no others."""


def _signature(this: Any) -> list[Any] | None:
    try:
        parameters = inspect.signature(this).parameters.values()
    except (ValueError, TypeError):
        return None
    told = [[each.name, int(each.kind), *(_or_none(given) for given in (each.default, each.annotation))] for each in parameters]
    return [told, _or_none(inspect.signature(this).return_annotation)]


def _or_none(given: Any) -> list[Any]:
    return [] if given is inspect.Parameter.empty else [given]


def _subclass(this: Any, name: str, bases: tuple[Any, ...], members: dict[str, Any]) -> Any:
    """A class of the asker's that derives from classes here: what it defines is asked for there."""
    return types.new_class(name, bases, {}, lambda space: space.update({key: _member(*each) for key, each in members.items()}))


def _member(kind: str, value: Any) -> Any:
    if kind == "value":
        return value
    if kind == "property":
        return property(*(each and _function(each) for each in value))
    function = _function(value)
    return {"staticmethod": staticmethod, "classmethod": classmethod}.get(kind, lambda each: each)(function)


def _function(asked: Any) -> Any:
    return lambda *arguments, **named: asked(*arguments, **named)


METHODS: dict[str, Callable[..., Any]] = {
    **_BINARY,
    **{name: lambda this, other, asked=asked: asked(other, this) for name, asked in REFLECTED.items()},
    **{name: getattr(operator, name) for name in IN_PLACE},
    **{name: getattr(operator, name) for name in ORDER},
    **UNARY,
    "eq": operator.eq,
    "contains": operator.contains,
    "call": lambda this, *arguments, **named: this(*arguments, **named),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "exit": lambda this, *error: type(this).__exit__(this, *error),
    "aexit": lambda this, *error: type(this).__aexit__(this, *error),
    "format": format,
    "round": round,
    "vars": lambda this: dict(vars(this)),
    "dir": dir,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickled": lambda this, protocol: pickle.loads(pickle.dumps(this, protocol)),
    "type hints": typing.get_type_hints,
    "has instance": lambda this, instance: isinstance(instance, this),
    "has subclass": lambda this, other: issubclass(other, this),
    "signature": _signature,
    "subclass": _subclass,
    "method of": lambda this, name, *arguments, **named: getattr(this, name)(*arguments, **named),
    "make": lambda this, *arguments, **named: this(*arguments, **named),
}


def open_to_solutions(value: object, method: str, arguments: list[Any]) -> bool:
    """True if a solution may ask an object of the test's, so that it learns nothing of the test but what it was given."""
    if method in ("call", "signature"):
        return callable(value)
    if isinstance(value, type):
        return value.__module__ == "tests" and method == "getattr" and not str(arguments[0]).startswith("_")
    if method in ("iter", "next"):
        return hasattr(value, "__iter__")
    kind = type(value)
    theirs = kind.__module__ in ("tests", "unittest.mock", "io", "_io")
    if method == "getattr":
        return theirs and not str(arguments[0]).startswith(
            ("_", "func_", "gi_", "f_", "cr_", "assert", "mock_calls", "call_args")
        )
    if method == "setattr":
        return kind.__module__ == "tests" and not str(arguments[0]).startswith("_")
    return theirs and method in QUESTIONS | {"eq"}


def description(value: Any, export: Callable[[Any], Any]) -> Told:
    """`export`: from a value to its JSON."""
    if isinstance(value, type):
        return {"class": _of_class(value, export)}
    told: Told = {"of": export(type(value))}
    for kind in ("coroutine", "asyncgen", "generator"):
        if getattr(inspect, f"is{kind}")(value):
            told["kind"] = kind
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial) or inspect.isbuiltin(value):
        told["function"] = _of_function(value)
    return told


def _of_function(value: Any) -> Told:
    plain = {name: getattr(value, name, None) for name in ("__name__", "__qualname__", "__doc__", "__module__")}
    kinds = (
        "isfunction",
        "ismethod",
        "isbuiltin",
        "isgeneratorfunction",
        "iscoroutinefunction",
        "isasyncgenfunction",
        "isroutine",
    )
    code = getattr(value, "__code__", None)
    counted = (
        None if code is None else [code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, list(code.co_varnames)]
    )
    return {
        "names": {name: text for name, text in plain.items() if type(text) is str},
        "is": [kind for kind in kinds if getattr(inspect, kind)(value)],
        "code": counted,
    }


def _of_class(cls: Any, export: Callable[[Any], Any]) -> Told:
    own = [base for base in cls.__mro__[1:-1] if base in cls.__bases__ and base.__module__ in ("solution", "tests")]
    told = {
        "name": str(cls.__name__),
        "doc": cls.__doc__ if type(cls.__doc__) is str else None,
        "qualname": str(cls.__qualname__),
        "module": str(cls.__module__),
        "bases": [export(base) for base in own],
        "can": sorted(name for name in QUESTIONS if _can(cls, f"__{name}__")),
        "class can": sorted(
            name for name in ("iter", "len", "contains", "getitem") if _can(type(cls), f"__{name}__") or _generic(cls, name)
        ),
        "methods": [name for name, each in vars(cls).items() if isinstance(each, types.FunctionType)],
        "hashes": getattr(cls, "__hash__", None) is not None,
    }
    if issubclass(cls, BaseException):
        told["error"] = [each.__name__ for each in cls.__mro__]
    if dataclasses.is_dataclass(cls):
        told["fields"] = [each.name for each in dataclasses.fields(cls)]
    return told


def _generic(cls: type, name: str) -> bool:
    return name == "getitem" and hasattr(cls, "__class_getitem__")


def _can(cls: Any, name: str) -> bool:
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return found is not None and found not in (vars(object).get(name), vars(type).get(name))
