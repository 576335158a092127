"""Calls between the process of a solution and the process that asks it.

Both sides ask and answer, one thing at a time: while a side waits for an answer it answers the other's questions. The asked side
says which of its objects may be asked what: a solution anything, a test what `questions.py` leaves open.

    {"ask": question, "of": handle, "arguments": [...], "named": {...}, "shared": [[handle, value], ...]}
      →  {"value", "changed": {position: value}, "lent": handle, "shared": [...]}  or  {"error": {...}}

Each message may say in "printed" what has been printed meanwhile. "lent": the value is a part of an object, as a list in an
attribute; what either side changes in its own is told to the other in "shared" with the next message.
"""

from __future__ import annotations

import json
import socket
import sys
from collections import deque
from collections.abc import Callable
from io import BufferedReader
from typing import Any

from roll.core.errors import PeerGone, Unable
from roll.graders.sandbox import awaiting, exceptions
from roll.graders.sandbox.proxies import Remote, RemoteType
from roll.graders.sandbox.proxy_classes import set_own
from roll.graders.sandbox.proxy_methods import class_of, object_of
from roll.graders.sandbox.questions import METHODS, description
from roll.graders.sandbox.turns import Turns
from roll.graders.sandbox.values import BASES, from_json, to_json

LONGEST = 8 << 20
"""Bytes of a message."""
MOST_SHARED, MOST_ITEMS = 64, 1000
_CHANGING = frozenset({"call", "make", "method of", "subclass"})
"""Questions with arguments that may be changed; compared values may not."""
_LENDING = ("getattr", "getitem", "value")
_BAD = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError, AssertionError)


class Peer:
    def __init__(self, connection: socket.socket, root: object, may_ask: Callable[[object, str, list[Any]], bool]) -> None:
        """`root` is the object with handle 0; `may_ask` decides which questions the other side may ask of an object."""
        self._connection = connection
        self._lines: BufferedReader = connection.makefile("rb")
        self._objects: list[Any] = [root]
        self._handles: dict[int, int] = {}
        """Handles of the objects, by identity: an object has one."""
        self._told: set[int] = set()
        """Handles of objects that the other side has the description of."""
        self._proxies: dict[int, Any] = {}
        self._shared: deque[list[Any]] = deque(maxlen=MOST_SHARED)
        """Handle, copy, and its value when the other side last knew it."""
        self._lent: deque[list[Any]] = deque(maxlen=MOST_SHARED)
        """Handle, original, and its last known value: the other side of `_shared`."""
        self._may_ask = may_ask
        self.printed: Callable[[], list[str]] = lambda: []
        """Text printed since the last question, and its stream."""
        self.before: Callable[[], None] = lambda: None
        """Called ahead of each question."""
        self.turns = Turns(self.cannot)
        self.watch: Any = None
        self.named: frozenset[int] = frozenset()
        """Handles of the functions that a test finds by name."""
        self.evident: frozenset[str] = frozenset()
        """Names of the classes that the task is about."""
        self.unable = ""
        self.raises: frozenset[int] = frozenset()
        """Lines on which the test raises something."""
        self.broken: BaseException | None = None
        """An assertion that has failed where the solution called the test."""
        self.keeps_types = False
        """True if Python's types stay there, as they say yes to whatever they are called with."""
        self.waiting: list[tuple[Any, Any, float | None]] = []
        """Coroutines over there that are waited for here, with the receiver of their results, and for how many seconds."""

    def ask(self, handle: int, question: str, *arguments: object, **named: object) -> Any:
        """Raises what was raised over there, as far as Python knows the exception, and `PeerGone`. Lists, dicts and sets among
        the arguments are changed as they were over there."""
        with self.turns:
            return self._asked(handle, question, arguments, named)

    def _asked(self, handle: int, question: str, arguments: tuple[object, ...], named: dict[str, object]) -> Any:
        self.before()
        encoded = [self._out(each) for each in arguments]
        names = {name: self._out(each) for name, each in named.items()}
        self._write({"ask": question, "of": handle, "arguments": encoded, "named": names, **self._changes(self._shared)})
        while True:
            message = self._read()
            if "ask" in message:
                self._write(self._answer(message))
                continue
            try:
                self._take(message)
                for position, changed in message.get("changed", {}).items() if question in _CHANGING else ():
                    _update(arguments[int(position)], self._in(changed))
                error = exceptions.read(message["error"], question, self._in) if "error" in message else None
                value = None if error else self._in(message["value"])
                if self.keeps_types and isinstance(value, type) and question == "call" and not isinstance(value, RemoteType):
                    self.cannot(f"call {value.__name__}, which a function has returned")
                if "lent" in message and _is_mutable(value):
                    self._shared.append([int(message["lent"]), value, message["value"]])
            except _BAD as failure:
                raise PeerGone(f"it says what is no value: {failure}"[:200]) from None
            if error is not None:
                raise error
            return value

    def cannot(self, what: str) -> None:
        """The test asks for something that is not possible with an object of another process."""
        self.unable = self.unable or what
        raise Unable(self.unable)

    def swallowed(self, error: BaseException | None, trace: Any, swallows: Any) -> Any:
        """True if a test's error ends here, because the solution says so: only one that the test has raised to see that."""
        if error is None or swallows is False or swallows is None or self.is_raised(trace):
            return swallows
        if not isinstance(error, AssertionError) and not isinstance(swallows, Remote) and swallows:
            self.cannot("have an error swallowed that the test has not raised")
        return False

    def is_raised(self, trace: Any) -> bool:
        """True if an error comes from a statement of the test that raises it."""
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return trace is not None and trace.tb_frame.f_code.co_filename == "tests.py" and trace.tb_lineno in self.raises

    def serve(self) -> None:
        """Answers until the other side has gone."""
        try:
            while True:
                self._write(self._answer(self._read()))
        except PeerGone:
            return

    def known(self, cls: Any) -> list[Any]:
        return [each for each in self._proxies.values() if type(each) is cls]

    def replace(self, handle: int, proxy: Any) -> None:
        self._proxies[handle] = proxy

    def truth(self, this: Any, value: Any) -> bool:
        """Truth of an object, a verdict if it is an answer itself."""
        heard = None if self.watch is None else self.watch.weighed.get(this.roll_handle)
        if heard is not None:
            heard.answers[repr(value)] = None
        return value is True

    def run_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        try:
            results = self.ask(0, "run", [remote for remote, *_ in waiting], [limit for *_, limit in waiting])
            for (_, future, _), result in zip(waiting, results, strict=True):
                if not future.done():
                    future.set_exception(result[1]) if result[0] == "error" else future.set_result(result[1])
        except BaseException as error:  # boundary: who waits for it raises it
            for _, future, _ in waiting:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            if isinstance(error, Unable):
                raise

    def _changes(self, parts: deque[list[Any]]) -> dict[str, Any]:
        changed = []
        for each in parts:
            if len(each[1]) <= MOST_ITEMS and (now := self._out(each[1])) != each[2]:
                changed.append([each[0], now])
                each[2] = now
        return {"shared": changed} if changed else {}

    def _take(self, message: dict[str, Any]) -> None:
        for handle, value in message.get("shared", []):
            for each in (each for parts in (self._shared, self._lent) for each in parts if each[0] == handle):
                _update(each[1], self._in(value))
                each[2] = self._out(each[1])

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self._take(message)
            question, this = message["ask"], self._objects[message["of"]]
            arguments = [self._in(each) for each in message["arguments"]]
            if not self._may_ask(this, question, arguments):
                raise (AttributeError if question == "getattr" else PermissionError)(f"{question} may not be asked")
            named = {name: self._in(each) for name, each in message["named"].items()}
            asked = METHODS[question] if question in METHODS else getattr(type(this), question)
            value = asked(this, *arguments, **named)
            after = ((str(i), self._out(each)) for i, each in enumerate(arguments) if _is_mutable(each))
            changed = {i: each for i, each in after if each != message["arguments"][int(i)]}
            answer = {"value": self._out(value), "changed": changed, **self._changes(self._lent)}
            if question in _LENDING and _is_mutable(value):
                answer["lent"] = handle = self._handle_of(value)
                self._lent.append([handle, value, answer["value"]])
            return answer
        except PeerGone:
            raise
        except BaseException as error:  # boundary: whatever the asked object raises is its answer
            if isinstance(error, Unable):
                raise
            if self.watch is not None and isinstance(error, AssertionError) and not self.is_raised(error.__traceback__):
                self.broken = self.broken or error
            return {"error": exceptions.told(error, self._out)}

    def _out(self, value: Any) -> Any:
        return to_json(value, self._export)

    def _in(self, value: Any) -> Any:
        return from_json(value, self._receive)

    def _handle_of(self, value: object) -> int:
        if (handle := self._handles.get(id(value))) is None:
            handle = self._handles[id(value)] = len(self._objects)
            self._objects.append(value)
        return handle

    def _export(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return {"yours": value.roll_handle}
        if isinstance(value, RemoteType) and value.roll_home is self:
            return {"yours": value.roll_number}
        if isinstance(value, exceptions.OwnError) and value.roll_class is not None:
            return {"yours": value.roll_class.roll_number}
        if isinstance(value, BaseException):
            if (theirs := getattr(value, "roll_handle", None)) is not None:
                return {"yours": theirs}
            return {"mine": self._handle_of(value), "error": exceptions.told(value, self._out)}
        known = id(value) in self._handles and self._handles[id(value)] in self._told
        handle = self._handle_of(value)
        told = {"mine": handle} if known else {"mine": handle, "told": description(value, self._export)}
        self._told.add(handle)
        plain = None if isinstance(value, type) else next((base(value) for base in BASES if isinstance(value, base)), None)
        return told if plain is None else told | {"plain": self._out(plain)}

    def _receive(self, given: Any) -> Any:
        if "yours" in given:
            return self._objects[given["yours"]]
        handle = int(given["mine"])
        if "error" in given:
            if handle not in self._proxies:
                self._proxies[handle] = exceptions.read(given["error"], "", self._in)
                self._proxies[handle].roll_handle = handle
            return self._proxies[handle]
        if "told" in given:
            self._proxies[handle] = self._proxy(handle, given["told"])
        proxy = self._proxies[handle]
        if "plain" in given:
            set_own(proxy, roll_plain=self._in(given["plain"]))
        return proxy

    def _proxy(self, handle: int, told: dict[str, Any]) -> Any:
        if handle in self._proxies:
            return self._proxies[handle]
        if "class" in told:
            bases = tuple(self._receive(each) for each in told["class"]["bases"])
            cls = class_of(self, handle, told["class"], bases)
            set_own(cls, roll_evident=told["class"]["name"] in self.evident)
            return exceptions.class_for(told["class"]["error"], cls) if "error" in told["class"] else cls
        kind = self._receive(told["of"])
        this = object_of(self, handle, kind, told)
        if told.get("kind") == "coroutine":
            return awaiting.running(this) if self.watch is not None else this
        return awaiting.iterating(this) if told.get("kind") == "asyncgen" else this

    def _write(self, message: dict[str, object]) -> None:
        if printed := self.printed():
            message["printed"] = printed
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise PeerGone(str(error)) from None

    def _read(self) -> dict[str, Any]:
        try:
            line = self._lines.readline(LONGEST)
            if not line.endswith(b"\n"):
                raise PeerGone("it has ended, or says too much")
            message = json.loads(line.decode())
        except (OSError, ValueError, RecursionError) as error:
            raise PeerGone(f"it says what is no message: {error}"[:200]) from None
        if not isinstance(message, dict):
            raise PeerGone("it says what is no message")
        for stream, text in zip((sys.stdout, sys.stderr), message.get("printed", ()), strict=False):
            if text:
                stream.write(str(text))
        return message


_MUTABLE = (list, dict, set, deque, bytearray)
_TABLES = ("ndarray", "DataFrame", "Series")


def _is_mutable(value: object) -> bool:
    kind = type(value)
    return kind in _MUTABLE or (kind.__name__ in _TABLES and kind.__module__.partition(".")[0] in ("numpy", "pandas"))


def _update(mine: Any, theirs: Any) -> None:
    """`mine` becomes equal to `theirs` and stays the same object."""
    if type(mine) is not type(theirs) or not _is_mutable(mine):
        raise TypeError("another type of argument comes back")
    if type(mine) not in _MUTABLE:
        if type(mine).__name__ == "ndarray":
            mine[...] = theirs
        else:
            mine._update_inplace(theirs)
        return
    if isinstance(mine, list | bytearray):
        mine[:] = theirs
        return
    mine.clear()
    mine.update(theirs) if isinstance(mine, dict | set) else mine.extend(theirs)
