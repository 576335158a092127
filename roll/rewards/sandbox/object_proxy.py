"""Calls between the process of a solution and the process that asks it.

Both sides ask and answer, one thing at a time: while a side waits for an answer it answers the other's questions. The asked side
says which of its objects may be asked what: a solution anything, a test only to call a function that it has handed over.

    {"ask": method, "of": handle, "arguments": [...], "named": {...}}  →  {"value", "changed": {position: value}}
                                                                        or {"error": [type names], "text"}
"""

from __future__ import annotations

import builtins
import contextlib
import json
import operator
import socket
from collections.abc import Callable, Iterator
from io import BufferedRWPair
from typing import Any

from roll.errors import PeerGone
from roll.rewards.sandbox.values import BASES, KINDS, from_json, to_json

LONGEST = 8 << 20
"""Bytes of a message."""


_OF_VALUES = frozenset(name for kind in KINDS for name in dir(kind))
"""What a test asks values of Python's own types for."""
_TOLD = frozenset({"__name__", "__qualname__", "__doc__", "__dict__"})
"""Of the names that Python gives a meaning to, those that a test may ask for by name."""
_own_classes: dict[tuple[str, str], type[Exception]] = {}


def error_class(types: list[str]) -> type[Exception]:
    """`types`: an exception's class over there and those that it derives from. The first if it is Python's own; else one of that
    name, the same at every call, that derives from Python's."""
    known = (getattr(builtins, name, None) for name in types)
    base = next((cls for cls in known if isinstance(cls, type) and issubclass(cls, Exception)), Exception)
    if base.__name__ == types[0]:
        return base
    return _own_classes.setdefault((types[0], base.__name__), type(types[0], (base,), {}))


def _error(message: dict[str, Any], method: str) -> Exception:
    """A StopIteration that no iterator raises would end the test's own `all`, `zip` or `for` before they have seen anything."""
    cls, text = error_class([str(name) for name in message["error"]]), str(message["text"])
    if method != "next" and issubclass(cls, StopIteration | StopAsyncIteration):
        return RuntimeError(f"{cls.__name__}: {text}")
    try:
        return cls(text)
    except TypeError:  # it takes more than a text
        return RuntimeError(text)


class Peer:
    def __init__(self, connection: socket.socket, root: object, may_ask: frozenset[str]) -> None:
        """`root` is the object with handle 0, `may_ask` what the other side may ask."""
        self._stream: BufferedRWPair = connection.makefile("rwb")
        self._objects: list[Any] = [root]
        self._handles: dict[int, int] = {}
        """Of the objects, by identity: an object has one."""
        self._may_ask = may_ask

    def ask(self, handle: int, method: str, *arguments: object, **named: object) -> Any:
        """Raises what was raised over there, as far as Python knows the exception, and `PeerGone`. Lists, dicts and sets among
        the arguments are changed as they were over there."""
        encoded = [to_json(each, self._export) for each in arguments]
        names = {name: to_json(each, self._export) for name, each in named.items()}
        self._write({"ask": method, "of": handle, "arguments": encoded, "named": names})
        while True:
            message = self._read()
            if "ask" in message:
                self._write(self._answer(message))
                continue
            try:
                error = _error(message, method) if "error" in message else None
                for position, changed in message.get("changed", {}).items():
                    _update(arguments[int(position)], from_json(changed, self._receive))
                value = None if error else from_json(message["value"], self._receive)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError) as failure:
                raise PeerGone(f"it says what is no value: {failure}"[:200]) from None
            if error is not None:
                raise error
            return value

    def serve(self) -> None:
        """Answers until the other side has gone."""
        try:
            while True:
                self._write(self._answer(self._read()))
        except PeerGone:
            return

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            method = message["ask"]
            if method not in self._may_ask:
                raise PermissionError(f"{method} may not be asked")
            arguments = [from_json(each, self._receive) for each in message["arguments"]]
            named = {name: from_json(each, self._receive) for name, each in message["named"].items()}
            value = METHODS[method](self._objects[message["of"]], *arguments, **named)
            after = ((str(i), to_json(each, self._export)) for i, each in enumerate(arguments) if type(each) in _MUTABLE)
            changed = {i: each for i, each in after if each != message["arguments"][int(i)]}
            return {"value": to_json(value, self._export), "changed": changed}
        except Exception as error:  # boundary: whatever the asked object raises is its answer
            return {"error": [cls.__name__ for cls in type(error).__mro__], "text": str(error)[:1000]}

    def _export(self, value: object) -> Any:
        if isinstance(value, Remote):
            return {"yours": value.roll_handle}
        if (handle := self._handles.get(id(value))) is None:
            handle = self._handles[id(value)] = len(self._objects)
            self._objects.append(value)
        plain = next((base(value) for base in BASES if isinstance(value, base)), None)
        return {"mine": handle, "plain": to_json(plain, self._export)}

    def _receive(self, handle: Any) -> Any:
        if "yours" in handle:
            return self._objects[handle["yours"]]
        return Remote(self, int(handle["mine"]), from_json(handle["plain"], self._receive))

    def _write(self, message: dict[str, object]) -> None:
        try:
            self._stream.write(json.dumps(message).encode() + b"\n")
            self._stream.flush()
        except (OSError, ValueError) as error:
            raise PeerGone(str(error)) from None

    def _read(self) -> dict[str, Any]:
        try:
            line = self._stream.readline(LONGEST)
            if not line.endswith(b"\n"):
                raise PeerGone("it has ended, or says too much")
            message = json.loads(line)
        except (OSError, ValueError, RecursionError) as error:
            raise PeerGone(f"it says what is no message: {error}"[:200]) from None
        if not isinstance(message, dict):
            raise PeerGone("it says what is no message")
        return message


class Remote:
    """Stands for an object over there. It is equal to a value here if its plain value is (a named tuple's, a numeral's), and has
    no order among values: a solution's own comparisons decide nothing but between its own objects. What it holds is looked at
    here, and it has no methods of Python's types, unless the test has made it of a class that it names: then its ways are what
    is tested. (Names begin with `roll_`, as others are the object's.)"""

    def __init__(self, peer: Peer, handle: int, plain: object) -> None:
        self.__dict__.update(roll_peer=peer, roll_handle=handle, roll_plain=plain, roll_class=False, roll_made=False)
        self.__dict__.update(roll_items=[], roll_source=None)

    def roll_named(self, name: str) -> None:
        """The test calls it so: a class, if it has the name of one. What says that it is one is not asked."""
        is_class = name.lstrip("_")[:1].isupper()
        self.__dict__.update(roll_class=is_class, roll_made=is_class)

    def roll_ask(self, method: str, *arguments: object, **named: object) -> Any:
        return self.roll_peer.ask(self.roll_handle, method, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _TOLD:
            raise AttributeError(name)
        value = self.roll_ask("getattr", name)
        if isinstance(value, Remote) and name in _OF_VALUES and not self.roll_made:
            raise AttributeError(f"{name}: a value of Python's own types has it, and this is none")
        return value

    def __setattr__(self, name: str, value: object) -> None:
        self.roll_ask("setattr", name, value)

    def __call__(self, *arguments: object, **named: object) -> Any:
        value = self.roll_ask("call", *arguments, **named)
        if isinstance(value, Remote) and self.roll_class:
            value.__dict__["roll_made"] = True
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return self.roll_plain is not None and bool(self.roll_plain == other)
        if self.roll_made or other.roll_made:
            return self.roll_ask("eq", other) is True
        same = self.roll_plain is not None and self.roll_plain == other.roll_plain
        return bool(same or self.roll_handle == other.roll_handle)

    def __hash__(self) -> int:
        return int(self.roll_handle) if self.roll_plain is None else hash(self.roll_plain)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and self.roll_ask("has instance", instance) is True

    def __str__(self) -> str:
        return str(self.roll_ask("str"))

    def __repr__(self) -> str:
        return str(self.roll_ask("repr"))

    def __len__(self) -> int:
        said = int(self.roll_ask("len"))
        return said if self.roll_made else sum(1 for _ in self)

    def __bool__(self) -> bool:
        return self.roll_ask("bool") is True

    def __contains__(self, item: object) -> bool:
        return self.roll_ask("contains", item) is True if self.roll_made else any(each == item for each in self)

    def __iter__(self) -> Iterator[Any]:
        """What was there at the first look is there at the next, whatever the object now says."""
        if self.roll_made:
            each: Iterator[Any] = self.roll_ask("iter")
            return each
        return self.roll_each()

    def roll_each(self) -> Iterator[Any]:
        if self.roll_source is None:
            self.__dict__["roll_source"] = self.roll_ask("iter")
        position = 0
        while position < len(self.roll_items) or self.roll_more():
            yield self.roll_items[position]
            position += 1

    def roll_more(self) -> bool:
        with contextlib.suppress(StopIteration):
            self.roll_items.append(next(self.roll_source))
            return True
        return False

    def __next__(self) -> Any:
        return self.roll_ask("next")

    def __getitem__(self, key: object) -> Any:
        return self.roll_ask("getitem", key)

    def __setitem__(self, key: object, value: object) -> None:
        self.roll_ask("setitem", key, value)

    def __delitem__(self, key: object) -> None:
        self.roll_ask("delitem", key)

    def __add__(self, other: object) -> Any:
        return self.roll_ask("add", other) if isinstance(other, Remote) else NotImplemented

    def __sub__(self, other: object) -> Any:
        return self.roll_ask("sub", other) if isinstance(other, Remote) else NotImplemented

    def __mul__(self, other: object) -> Any:
        return self.roll_ask("mul", other)

    def __lt__(self, other: object) -> Any:
        return self.roll_ask("lt", other) if isinstance(other, Remote) else NotImplemented


METHODS: dict[str, Callable[..., Any]] = {
    "call": lambda this, *arguments, **named: this(*arguments, **named),
    "getattr": getattr,
    "setattr": setattr,
    "eq": operator.eq,
    "has instance": lambda this, instance: isinstance(instance, this),
    "names": lambda this: this.names(),
    "function": lambda this, name: this.function(name),
    "str": str,
    "repr": repr,
    "len": len,
    "bool": bool,
    "contains": operator.contains,
    "iter": iter,
    "next": next,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "lt": operator.lt,
}
_MUTABLE = (list, dict, set)


def _update(mine: Any, theirs: Any) -> None:
    """`mine` becomes equal to `theirs` and stays the same object."""
    if type(mine) is not type(theirs) or type(mine) not in _MUTABLE:
        raise TypeError("another type of argument comes back")
    if isinstance(mine, list):
        mine[:] = theirs
    else:
        mine.clear()
        mine.update(theirs)
