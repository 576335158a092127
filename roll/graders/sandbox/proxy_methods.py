"""The methods of proxies, by the questions that their objects answer, and the making of proxies and of their classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from roll.graders.sandbox.awaiting import awaited
from roll.graders.sandbox.proxies import SLOTS, Remote, RemoteType, believe
from roll.graders.sandbox.proxy_classes import set_own
from roll.graders.sandbox.questions import OPERATORS, UNARY

_PROTOCOL = frozenset({"send", "throw", "close", "asend", "athrow", "aclose"})


def _call(self: Any, *arguments: Any, **named: Any) -> Any:
    value = self.roll_peer.ask(self.roll_handle, "call", *arguments, **named)
    if self.roll_owner is None:  # a function that the test names, or one that was returned
        if self.roll_peer.watch is not None and self.roll_handle not in self.roll_peer.named:
            self.roll_peer.watch.heard(self, "()", None, (*arguments, *named.values()), value)
        return value
    owner, name = self.roll_owner
    if isinstance(owner, RemoteType):
        return believe(value) if owner.roll_evident else value
    watch = self.roll_peer.watch
    if owner.roll_told.get("function"):
        return value
    if watch is not None and name not in _PROTOCOL and not self.roll_told.get("kind"):
        repeat = lambda *others: self.roll_peer.ask(self.roll_handle, "call", *others[: len(arguments)])  # noqa: E731
        watch.heard(owner, name, repeat, (*arguments, *named.values()), value)
    return owner.roll_like(value)


def _length(self: Any) -> int:
    said = int(self.roll_peer.ask(self.roll_handle, "len"))
    return said if self.roll_made or "iter" not in type(self).roll_says["can"] else sum(1 for _ in self)


def _iterated(self: Any) -> Any:
    if self.roll_plain is not None and not self.roll_made:
        return iter(self.roll_plain)
    if "next" in type(self).roll_says["can"]:
        return self
    if self.roll_made:
        return self.roll_like(self.roll_peer.ask(self.roll_handle, "iter"))
    return self.roll_each()


def _contains(self: Any, item: object) -> bool:
    if not self.roll_made and "iter" in type(self).roll_says["can"]:
        return any(each is item or each == item for each in self)
    return self.roll_asked("contains", item) is True


def _item(self: Any, key: object) -> Any:
    value = self.roll_peer.ask(self.roll_handle, "getitem", key)
    watch = self.roll_peer.watch
    if watch is not None and (isinstance(value, bool) or value == key):
        self.roll_weighed("getitem", value, key)
    return self.roll_like(value)


def _exit(question: str) -> Callable[..., Any]:
    def method(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        swallows = self.roll_peer.ask(self.roll_handle, question, kind, error, None)
        return self.roll_peer.swallowed(error, trace, swallows)

    return method


def _asks(question: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        return self.roll_like(self.roll_peer.ask(self.roll_handle, question, *arguments))

    return method


def _asks_operator(question: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        return self.roll_operated(question, *arguments)

    return method


def _plain_or_asked(question: str) -> Callable[..., Any]:
    """Conversions to Python's types: of what has a plain value, that value's."""

    def method(self: Any) -> Any:
        if self.roll_plain is not None and not self.roll_made and hasattr(self.roll_plain, f"__{question}__"):
            return getattr(self.roll_plain, f"__{question}__")()
        value = self.roll_peer.ask(self.roll_handle, question)
        return self.roll_peer.truth(self, value) if question == "bool" else value

    return method


_METHODS: dict[str, Callable[..., Any]] = {
    **{name: _asks_operator(name) for name in OPERATORS},
    **{
        name: _asks(name)
        for name in ("getitem", "setitem", "delitem", "enter", "exit", "aenter", "aexit", "anext", "aiter", "round", "reversed")
    },
    **{
        name: _plain_or_asked(name)
        for name in UNARY
        if name not in ("str", "repr", "hash", "iter", "reversed", "enter", "aenter", "anext", "aiter")
    },
    **{"exit": _exit("exit"), "aexit": _exit("aexit"), "getitem": _item},
    **{"call": _call, "len": _length, "iter": _iterated, "contains": _contains, "await": awaited},
}


def class_of(peer: Any, handle: int, told: dict[str, Any], bases: tuple[Any, ...]) -> Any:
    """The proxy of a class. Raises `TypeError` for what no class can be."""
    space: dict[str, Any] = {f"__{name}__": _METHODS[name] for name in told["can"] if name in _METHODS}
    space |= {"__doc__": told["doc"], "__qualname__": str(told["qualname"]), "__module__": str(told["module"])}
    if not told["hashes"]:
        space["__hash__"] = None
    if names := told.get("fields"):
        space["__dataclass_fields__"] = {str(name): _field(str(name)) for name in names}
    plain = [base for base in bases if isinstance(base, RemoteType)]
    return RemoteType(str(told["name"]), tuple(plain) or (Remote,), space, peer=peer, handle=handle, told=told)


def _field(name: str) -> Any:
    field: Any = dataclasses.field()
    field.name, field._field_type = name, dataclasses._FIELD  # type: ignore[attr-defined]
    return field


def object_of(peer: Any, handle: int, cls: Any, told: dict[str, Any]) -> Any:
    this = object.__new__(cls)
    values = dict.fromkeys(SLOTS) | {
        "roll_peer": peer,
        "roll_handle": handle,
        "roll_told": told,
        "roll_made": False,
        "roll_items": [],
    }
    return set_own(this, **values)
