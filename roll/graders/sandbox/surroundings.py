"""Replacements around a solution for the time of a call, and its input and output meanwhile.

A test patches modules of its own process; before each question the tester tells the solution's process what has changed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import os
import re
import sys
import threading
import types
from typing import Any

_PATCHES = re.compile(r"patch|setattr|environ|setenv|\bsys\.argv|mock")
_KEPT = frozenset({"stdin", "stdout", "stderr", "modules", "path", "last_value", "last_type", "last_traceback", "last_exc", "_"})


class SolutionOutput:
    """The solution's output: what its process is asked for is told with what it has printed on the way."""

    def __init__(self) -> None:
        self._streams = [io.StringIO(), io.StringIO()]
        sys.stdout, sys.stderr = self._streams

    def __call__(self) -> list[str]:
        said = [stream.getvalue() for stream in self._streams]
        for stream in self._streams:
            stream.seek(0)
            stream.truncate()
        return said if any(said) else []


class SolutionInput(io.TextIOBase):
    """The solution's input: what the test has put in the place of its own."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> str:
        return str(self._peer.ask(0, "read", "read", -1 if size is None else size))

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return str(self._peer.ask(0, "read", "readline", size))


class Console:
    """The tester's side of it."""

    def read(self, how: str, size: int) -> str:
        return str(sys.stdin.read(size) if how == "read" else sys.stdin.readline(size))

    def run(self, coroutines: list[Any], limits: list[float | None]) -> list[list[Any]]:
        """Those of the test that the solution waits for; a loop that may be running here is busy with the solution."""
        found: list[list[list[Any]]] = []
        thread = threading.Thread(target=lambda: found.append(run_together(coroutines, limits, asyncio.new_event_loop())))
        thread.start()
        thread.join()
        return found[0]


def run_together(coroutines: list[Any], limits: list[float | None], loop: asyncio.AbstractEventLoop) -> list[list[Any]]:
    """The results of coroutines that run side by side, for so many seconds, as ["value", it] or ["error", it]."""

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(_waited, coroutines, limits), return_exceptions=True)

    results = loop.run_until_complete(all_of_them())
    return [["error" if isinstance(each, BaseException) else "value", each] for each in results]


async def _waited(each: Any, limit: float | None) -> Any:
    return await (each if limit is None else asyncio.wait_for(each, limit))


class Patches:
    """`test`: its code; where it replaces nothing, nothing is looked for."""

    def __init__(self, peer: Any, test: str) -> None:
        self._peer = peer
        self._before = [(module, dict(vars(module))) for module in _modules_of(test)] if _PATCHES.search(test) else []
        self._looks = bool(self._before)
        self._environment, self._changed = dict(os.environ) if self._looks else {}, dict[tuple[str, str], Any]()
        self._asking = False

    def __call__(self) -> None:
        if not self._looks or self._asking:
            return
        self._asking = True
        try:
            for key, value in self._differences():
                self._peer.ask(0, "patch", *key, value)
            if (now := dict(os.environ)) != self._environment:
                self._peer.ask(0, "environment", now)
                self._environment = now
        finally:
            self._asking = False

    def _differences(self) -> list[tuple[tuple[str, str], list[Any]]]:
        found = []
        for module, before in self._before:
            now = vars(module)
            for name in [name for name, value in before.items() if now.get(name) is not value and name not in _KEPT]:
                key = module.__name__, name
                if self._changed.get(key) is not now.get(name):
                    self._changed[key] = now.get(name)
                    found.append((key, [now.get(name)]))
        for key in [key for key in self._changed if vars(sys.modules[key[0]]).get(key[1]) is self._of(key)]:
            del self._changed[key]
            found.append((key, []))
        return found

    def _of(self, key: tuple[str, str]) -> Any:
        return next(before[key[1]] for module, before in self._before if module.__name__ == key[0])


def _modules_of(test: str) -> list[types.ModuleType]:
    """Those that it may replace something in."""
    for name in re.findall(r"""['"]([\w.]+)\.\w+['"]|^\s*(?:import|from)\s+([\w.]+)""", test, re.MULTILINE):
        with contextlib.suppress(ImportError, ValueError):
            importlib.import_module(name[0] or name[1])
    names = set(re.findall(r"\w+", test)) | {"builtins"}
    firsts = [(name.partition(".")[0], module) for name, module in list(sys.modules.items())]
    return [module for first, module in firsts if first in names - _OWN and isinstance(module, types.ModuleType)]


_OWN = frozenset({"solution", "tests", "unittest", "pytest", "_pytest", "roll", "pandas", "numpy", "torch", "sympy"})


class SolutionModule(types.ModuleType):
    """The module `solution` in a test: what the test sets in it is set over there."""

    roll_peer: Any = None

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if self.roll_peer is not None and not name.startswith("__"):
            self.roll_peer.ask(0, "set", name, value)
