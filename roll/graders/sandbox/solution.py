"""The first thing that runs in a solution's process. What it is given comes over descriptor 3: {"source", "is_program"}.

A program runs as `__main__`, with descriptors 0 and 1 as its input and output. Otherwise the solution is a module, and the tester
at the other end of descriptor 4 asks for its functions. Nothing in this process is believed: the tester compares.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import importlib
import json
import linecache
import os
import socket
import sys
import threading
import traceback
import types
from typing import Any

from roll.graders.sandbox import exceptions
from roll.graders.sandbox.object_proxy import Peer
from roll.graders.sandbox.surroundings import SolutionInput, SolutionOutput, run_together

NAME = "solution"
FILE = f"{NAME}.py"
_ALL_OF = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools"),
    *("functools", "operator", "io", "json", "typing"),
)
_MODULES = (*_ALL_OF, "sys", "os", "time", "decimal", "fractions", "abc", "enum", "dataclasses")
PRELUDE = "\n".join(f"from {name} import *" for name in (*_ALL_OF, "builtins")) + "\nimport " + ", ".join(_ALL_OF)
"""The lines of a program that imports what `prelude` has."""
_names: dict[str, Any] = {}


def main() -> None:
    with open(3, "rb") as given:
        _run(json.load(given))


def script() -> None:
    """Runs a program for its output, its error included: all of it, or with "last_line" that alone."""
    with open(3, "rb") as given:
        message = json.load(given)
    sys.stderr = sys.stdout
    try:
        _run(message)
    except Exception as error:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename != FILE:
            own = own.tb_next
        lines = traceback.format_exception(error.with_traceback(own))
        sys.stdout.write(lines[-1] if message["last_line"] else "".join(lines))
        sys.exit(1)


def _run(message: dict[str, Any]) -> None:
    names = prelude()
    module = types.ModuleType("__main__" if message["is_program"] else NAME)
    vars(module).update(names)
    sys.modules[module.__name__] = module
    linecache.cache[FILE] = (0, None, message["source"].splitlines(True), FILE)
    peer = None
    if not message["is_program"]:
        peer = Peer(socket.socket(fileno=4), Loaded(module, names), lambda *_: True)
        peer.printed, sys.stdin = SolutionOutput(), SolutionInput(peer)
    exec(compile(message["source"], FILE, "exec", dont_inherit=True), vars(module))  # in the sandbox, whose purpose this is
    if peer is not None:
        peer.serve()
        return
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


class Loaded:
    """A loaded solution as a whole, and the questions about it."""

    def __init__(self, module: types.ModuleType, given: dict[str, object]) -> None:
        self._module, self._given = module, given
        self._patched: dict[tuple[str, str], Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def names(self) -> dict[str, Any]:
        """Returns its functions, classes and values by name."""
        names = {}
        for name, value in vars(self._module).items():
            if name.startswith("__") or self._given.get(name) is value or isinstance(value, types.ModuleType):
                continue
            if isinstance(value, type) and issubclass(value, Exception):
                exceptions.register(value)
            names[name] = value
        return names

    def value(self, name: str) -> Any:
        return getattr(self._module, name)

    def set(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def patch(self, module: str, name: str, value: list[Any]) -> None:
        """Puts the test's replacement into a module; without one, puts the original back."""
        here = importlib.import_module(module)
        self._patched.setdefault((module, name), getattr(here, name, None))
        setattr(here, name, value[0] if value else self._patched.pop((module, name)))

    def environment(self, variables: dict[str, str]) -> None:
        os.environ.clear()
        os.environ.update(variables)

    def run(self, coroutines: list[Any], limits: list[float | None]) -> list[list[Any]]:
        self._loop = self._loop or asyncio.new_event_loop()
        return run_together(coroutines, limits, self._loop)

    def function(self, name: str) -> Any:
        """A function of the module, or a method of its class `Solution`."""
        cls = vars(self._module).get("Solution")
        if cls is not None and hasattr(cls, name):
            return getattr(cls(), name)
        if (function := getattr(self._module, name)) is self._given.get(name):
            raise AttributeError(f"it does not define {name}")
        return function


def load() -> None:
    """Imports what programs, and their tests, need: ahead of the first, as none can read files of this package."""
    for name in _MODULES:
        importlib.import_module(name)
    importlib.import_module("roll.graders.sandbox.tester")
    prelude()


def prelude() -> dict[str, Any]:
    """The names that a solution finds without importing them, as the forms do from which tests are taken."""
    if not _names:
        for name in _ALL_OF:
            module = importlib.import_module(name)
            public = getattr(module, "__all__", None) or [key for key in vars(module) if not key.startswith("_")]
            _names.update({key: getattr(module, key) for key in public if not hasattr(builtins, key)})
        _names.update({name: importlib.import_module(name) for name in _MODULES if name not in ("os", "time")})
    return dict(_names)
