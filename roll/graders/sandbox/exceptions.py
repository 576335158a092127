"""Exceptions that cross between processes: Python's own by name, others as classes of the same names that derive from them."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
from collections.abc import Callable
from typing import Any

_CAUGHT = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)
_KNOWN: dict[str, type[BaseException]] = {
    name: value for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, _CAUGHT)
}
_KNOWN |= {"CancelledError": asyncio.CancelledError, "FrozenInstanceError": dataclasses.FrozenInstanceError}
_own: dict[tuple[str, ...], Any] = {}


class OwnError(type):
    """The class of a solution's exceptions: one that the test makes is made over there."""

    roll_class: Any = None

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if cls.roll_class is None:
            return super().__call__(*arguments, **named)
        return cls.roll_class.roll_home.ask(cls.roll_class.roll_number, "make", *arguments, **named)


def error_class(types: list[str]) -> Any:
    """`types`: an exception's class over there and those that it derives from. The first if it is Python's own; else one of that
    name, the same at every call, that derives from the next."""
    if not types or types[0] in ("object", "BaseException"):
        return RuntimeError
    if types[0] in _KNOWN:
        return _KNOWN[types[0]]
    key = tuple(types)
    if key not in _own:
        base = error_class(types[1:])
        space = {"__str__": lambda self: self.__dict__.get("roll_text", ""), "__module__": "solution"}
        _own[key] = OwnError(types[0], (base,), space)
    return _own[key]


def class_for(types: list[str], proxy: Any) -> Any:
    """The class of an exception over there, whose proxy makes the test's."""
    cls = error_class([str(name) for name in types])
    if isinstance(cls, OwnError):
        cls.roll_class = proxy
    return cls


def register(cls: type[BaseException]) -> None:
    """An exception of the solution's own, which the test may raise where it is called."""
    _own.setdefault(tuple(each.__name__ for each in cls.__mro__), cls)


def told(error: BaseException, out: Callable[[Any], Any], depth: int = 0) -> dict[str, Any]:
    """Describes an error, for the other side: class, message, attributes."""
    attributes = {}
    for name, value in list(vars(error).items()):
        attributes[str(name)] = out(value)
    return {
        "types": [cls.__name__ for cls in type(error).__mro__],
        "text": str(error)[:1000],
        "arguments": [out(each) for each in error.args],
        "attributes": attributes,
        "cause": None if error.__cause__ is None or depth > 8 else told(error.__cause__, out, depth + 1),
    }


def read(given: dict[str, Any], question: str, read_value: Callable[[Any], Any]) -> BaseException:
    """A StopIteration that no iterator raises would end the test's own `all`, `zip` or `for` before they have seen anything."""
    types, text = [str(name) for name in given["types"]], str(given["text"])
    cls = error_class(types)
    if question not in ("next", "") and issubclass(cls, StopIteration):
        return RuntimeError(f"{cls.__name__}: {text}")
    if question not in ("anext", "run", "") and issubclass(cls, StopAsyncIteration):
        return RuntimeError(f"{cls.__name__}: {text}")
    arguments = [read_value(each) for each in given["arguments"]]
    try:
        error = cls.__new__(cls, *arguments)
        if not isinstance(cls, OwnError):
            cls.__init__(error, *arguments)
    except Exception:  # boundary: it takes other arguments
        error = RuntimeError(text)
    if isinstance(cls, OwnError):
        error.args, error.__dict__["roll_text"] = tuple(arguments), text
    for name, value in given["attributes"].items():
        if name.isidentifier() and not name.startswith(("__", "roll_")):
            error.__dict__[name] = read_value(value)
    if given.get("cause"):
        error.__cause__ = read(given["cause"], "", read_value)
    return error  # type: ignore[no-any-return]
