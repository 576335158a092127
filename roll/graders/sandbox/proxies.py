"""Proxies, in a test for the objects and classes of a solution, and in a solution for a test's.

A proxy can what its object can: it has the operators of the object's class and no others. Its class is the proxy of the object's
class, so that `type`, `isinstance` and a test's own subclass work. (Names begin with `roll_`, as others are the object's.)

An object is equal to a plain value by its own plain value (a named tuple's, a numeral's), which is compared here. Whether it has
been made by the test, of a class that the task is about, decides what it is believed: `verdicts.py`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from roll.graders.sandbox.among_others import told_apart
from roll.graders.sandbox.proxy_classes import derived, of_function, set_own
from roll.graders.sandbox.questions import IN_PLACE

SLOTS = (
    "roll_peer",
    "roll_handle",
    "roll_plain",
    "roll_made",
    "roll_told",
    "roll_owner",
    "roll_items",
    "roll_source",
    "roll_candidate",
)


class RemoteType(type):
    """The class of the proxies' classes."""

    roll_home: Any
    roll_number: int
    roll_evident: bool
    roll_says: dict[str, Any]

    def __new__(
        mcs, name: str, bases: tuple[Any, ...], space: dict[str, Any], peer: Any = None, handle: int = 0, told: Any = None
    ) -> Any:
        if peer is not None or not bases:
            cls = super().__new__(mcs, name, bases, {"__slots__": (), **space})
            return set_own(cls, roll_home=peer, roll_number=handle, roll_evident=False, roll_says=told or {})
        return derived(mcs, name, bases, space)

    def __init__(cls, *_: Any, **__: Any) -> None: ...

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        value = cls.roll_home.ask(cls.roll_number, "call", *arguments, **named)
        if isinstance(value, Remote) and cls.roll_number in cls.roll_home.named and cls.__name__.lstrip("_")[:1].isupper():
            set_own(value, roll_candidate=True)
        return believe(value) if cls.roll_evident else value

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("roll_") or cls.roll_home is None:
            raise AttributeError(name)
        value = cls.roll_home.ask(cls.roll_number, "getattr", name)
        if isinstance(value, Remote):
            set_own(value, roll_owner=(cls, name))
        return believe(value) if cls.roll_evident else value

    def __setattr__(cls, name: str, value: object) -> None:
        cls.roll_home.ask(cls.roll_number, "setattr", name, value)

    def __delattr__(cls, name: str) -> None:
        cls.roll_home.ask(cls.roll_number, "delattr", name)

    def __dir__(cls) -> list[str]:
        return [*cls.roll_home.ask(cls.roll_number, "dir")]

    def __instancecheck__(cls, instance: object) -> bool:
        found = type.__instancecheck__(cls, instance)
        if found or cls.roll_home is None:
            return found
        return isinstance(instance, Remote | RemoteType) and cls.roll_home.ask(cls.roll_number, "has instance", instance) is True

    def __subclasscheck__(cls, other: type) -> bool:
        if super().__subclasscheck__(other):
            return True
        theirs = isinstance(other, RemoteType) and cls.roll_home is not None and other.roll_home is not None
        return theirs and cls.roll_home.ask(cls.roll_number, "has subclass", other) is True

    def __iter__(cls) -> Iterator[Any]:
        return iter([believe(each) for each in cls.roll_home.ask(cls.roll_number, "iter")])

    def __len__(cls) -> int:
        return int(cls.roll_home.ask(cls.roll_number, "len"))

    def __bool__(cls) -> bool:
        return True

    def __contains__(cls, item: object) -> bool:
        return cls.roll_home.ask(cls.roll_number, "contains", item) is True

    def __getitem__(cls, key: object) -> Any:
        return believe(cls.roll_home.ask(cls.roll_number, "getitem", key))


_PICKLED: list[Any] = []


def _read_again(number: int) -> Any:
    return copy.deepcopy(_PICKLED[number])


def known_types(peer: Any, hints: Any) -> Any:
    """Annotations, if the test can compare them: Python's own classes, and the solution's."""
    for each in hints.values() if isinstance(hints, dict) else ():
        if isinstance(each, Remote) or (isinstance(each, RemoteType) and each.roll_says.get("module") != "solution"):
            peer.cannot("ask the solution for annotations that are no classes of Python's or its own")
    return hints


def _annotations(cls: Any) -> Any:
    if cls.roll_home is None:
        return {}
    return known_types(cls.roll_home, cls.roll_home.ask(cls.roll_number, "getattr", "__annotations__"))


setattr(RemoteType, "__annotations__", property(_annotations))  # noqa: B010 (of the proxies, not of this class)


def believe(value: Any) -> Any:
    """An object of a class that the task is about: its ways are what is tested."""
    each: Any
    for each in (value, *(value if type(value) in (list, tuple) else ())):
        if isinstance(each, Remote):
            set_own(each, roll_made=True)
    return value


class Remote(metaclass=RemoteType):
    __slots__ = SLOTS

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            return (
                {}
                if self.roll_peer.watch is None or self.roll_told.get("function")
                else self.roll_peer.ask(self.roll_handle, "vars")
            )
        if name == "__doc__" and (function := self.roll_told.get("function")):
            return function["names"].get(name)
        if name == "__class__" and self.roll_plain is not None:
            return type(type(self).__name__, (type(self.roll_plain),), {"__qualname__": type(self).__qualname__})
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("roll_"):
            raise AttributeError(name)
        if name.startswith("__") and (known := of_function(self, name)) is not None:
            return known
        if not self.roll_made and self.roll_plain is not None and hasattr(self.roll_plain, name):
            return getattr(self.roll_plain, name)
        value = self.roll_peer.ask(self.roll_handle, "getattr", name)
        if isinstance(value, Remote):
            set_own(value, roll_owner=(self, name))
        return believe(value) if self.roll_made and not callable(value) else value

    def __setattr__(self, name: str, value: object) -> None:
        self.roll_peer.ask(self.roll_handle, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        self.roll_peer.ask(self.roll_handle, "delattr", name)

    def __dir__(self) -> list[str]:
        return [*self.roll_peer.ask(self.roll_handle, "dir")]

    def __eq__(self, other: object) -> Any:
        if self.roll_peer.watch is None and (self is other or self.roll_told.get("function")):  # a test's
            return self is other
        candidate = self.roll_candidate and self.roll_plain is None
        if (
            not self.roll_made
            and not candidate
            and not (isinstance(other, Remote) and (other.roll_plain is None or self.roll_plain is None))
        ):
            plain = other.roll_plain if isinstance(other, Remote) else other
            return self.roll_plain is not None and bool(self.roll_plain == plain)
        return self.roll_asked("eq", other)

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __hash__(self) -> int:
        if self.roll_plain is not None:
            return hash(self.roll_plain)
        return int(self.roll_handle if self.roll_peer.watch is None else self.roll_peer.ask(self.roll_handle, "hash"))

    def __str__(self) -> str:
        return str(self.roll_peer.ask(self.roll_handle, "str"))

    def __repr__(self) -> str:
        return str(self.roll_peer.ask(self.roll_handle, "repr"))

    def __format__(self, form: str) -> str:
        return str(self.roll_peer.ask(self.roll_handle, "format", form))

    def __copy__(self) -> Any:
        return self.roll_like(self.roll_peer.ask(self.roll_handle, "copy"))

    def __deepcopy__(self, memo: object) -> Any:
        return self.roll_like(self.roll_peer.ask(self.roll_handle, "deepcopy"))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The solution's process pickles and reads it; what the test reads again is a copy of that."""
        there = self.roll_like(self.roll_peer.ask(self.roll_handle, "pickled", int(protocol)))
        _PICKLED.append(there)
        return _read_again, (len(_PICKLED) - 1,)

    def roll_like(self, value: Any) -> Any:
        if self.roll_candidate and type(value) is type(self):
            set_own(value, roll_candidate=True)
        return believe(value) if self.roll_made else value

    def roll_asked(self, question: str, *given: Any) -> Any:
        """Its answer to an operator's question. A class that the test has named is believed where it distinguishes."""
        apart = question == "eq" if self.roll_made else self.roll_candidate and question not in ("lshift", "rshift")
        if apart and len(given) == 1 and not isinstance(given[0], Remote):
            value, tells = told_apart(lambda other: self.roll_peer.ask(self.roll_handle, question, other), question, given[0])
            if tells:
                self.roll_peer.watch.tells(self, question)
                return value
        else:
            value = self.roll_peer.ask(self.roll_handle, question, *given)
        return self.roll_weighed(question, value, *given)

    def roll_weighed(self, question: str, value: Any, *given: object) -> Any:
        watch = self.roll_peer.watch
        if watch is not None:
            watch.heard(self, question, lambda *others: self.roll_peer.ask(self.roll_handle, question, *others), given, value)
        return value

    def roll_operated(self, question: str, *given: Any) -> Any:
        """The result of an operator; of what the test has not made and is a plain value, Python's own."""
        plain = self.roll_plain
        if not self.roll_made and plain is not None:
            method = getattr(type(plain), f"__{question}__", None)
            return NotImplemented if method is None else method(plain, *(getattr(each, "roll_plain", each) for each in given))
        asks = self.roll_asked if question not in IN_PLACE else partial(self.roll_peer.ask, self.roll_handle)
        return self.roll_like(asks(question, *given))

    def roll_each(self) -> Iterator[Any]:
        """Iterates over the elements; those of the first look are there at the next, whatever the object now says."""
        if self.roll_source is None:
            set_own(self, roll_source=self.roll_peer.ask(self.roll_handle, "iter"))
        position = 0
        while position < len(self.roll_items) or self.roll_more():
            yield self.roll_items[position]
            position += 1

    def roll_more(self) -> bool:
        with contextlib.suppress(StopIteration):
            self.roll_items.append(next(self.roll_source))
            return True
        return False
