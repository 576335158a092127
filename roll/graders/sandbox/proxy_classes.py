"""Classes of a test that derive from a solution's, and signatures of functions: a proxy is more than a name for its object."""

from __future__ import annotations

import inspect
from types import FunctionType, SimpleNamespace
from typing import Any


def set_own(this: Any, **values: object) -> Any:
    """Attributes of a proxy itself."""
    for name, value in values.items():
        (type.__setattr__ if issubclass(type(this), type) else object.__setattr__)(this, name, value)
    return this


def of_function(this: Any, name: str) -> Any:
    """A function's description of itself."""
    if not (told := this.roll_told.get("function")):
        return None
    if name == "__signature__":
        return _signature(this)
    if name == "__code__" and told["code"]:
        count, only, first, names = told["code"]
        named = told["names"].get("__name__")
        return SimpleNamespace(
            co_argcount=count, co_kwonlyargcount=only, co_posonlyargcount=first, co_varnames=tuple(names), co_name=named
        )
    if name in ("__globals__", "__closure__"):
        this.roll_peer.cannot(f"look into {name} of a function")
    return told["names"].get(name)


def _signature(this: Any) -> inspect.Signature | None:
    told = this.roll_peer.ask(this.roll_handle, "signature")
    if told is None:
        return None
    kinds, empty = inspect._ParameterKind, [inspect.Parameter.empty]
    parameters = [
        inspect.Parameter(name, kinds(kind), default=(default or empty)[0], annotation=(annotation or empty)[0])
        for name, kind, default, annotation in told[0]
    ]
    return inspect.Signature(parameters, return_annotation=(told[1] or empty)[0])


def derived(mcs: Any, name: str, bases: tuple[Any, ...], space: dict[str, Any]) -> Any:
    """A test's own class that derives from one of the solution's: the solution's side of it asks for what the test defines."""
    mine = {
        key: value
        for key, value in space.items()
        if key not in ("__module__", "__qualname__", "__classcell__", "__doc__", "__annotations__")
    }
    theirs = tuple(base for base in bases if isinstance(base, mcs))
    peer = theirs[0].roll_home
    for each in {each for base in theirs for each in base.__mro__ if isinstance(each, mcs) and each.roll_home is not None}:
        for method in (*each.roll_says.get("methods", ()), "__init__"):
            if method not in vars(each) and (method == "__init__" or not method.startswith(("__", "roll_"))):
                set_own(each, **{method: _MethodOf(each, method)})
    members = {key: _as_member(value) for key, value in mine.items()}
    if len(theirs) != len(bases):
        peer.cannot("derive from a class of the solution and from another")
    made = peer.ask(theirs[0].roll_number, "subclass", name, theirs, members)
    cell = space.get("__classcell__")
    local = {key: value for key, value in mine.items() if not isinstance(value, property)}
    cls = type.__new__(
        mcs, name, theirs, {"__slots__": (), **local, **({} if cell is None else {"__classcell__": cell}), "__module__": "tests"}
    )
    set_own(cls, roll_home=peer, roll_number=made.roll_number, roll_evident=True, roll_says=made.roll_says)
    peer.replace(made.roll_number, cls)
    return cls


def _as_member(value: Any) -> list[Any]:
    if isinstance(value, staticmethod | classmethod):
        return [type(value).__name__, value.__func__]
    if isinstance(value, property):
        return ["property", [value.fget, value.fset, value.fdel]]
    return ["function" if isinstance(value, FunctionType) else "value", value]


class _MethodOf:
    """A method of a solution's class, for `super()` in a test's subclass."""

    def __init__(self, cls: Any, name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, instance: Any, owner: Any) -> Any:
        peer, handle = self._cls.roll_home, self._cls.roll_number
        if instance is None:
            return peer.ask(handle, "getattr", self._name)
        return lambda *arguments, **named: peer.ask(handle, "method of", self._name, instance, *arguments, **named)
