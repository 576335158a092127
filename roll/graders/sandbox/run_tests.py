"""Runs what a test's code has defined: functions test_..., methods of test classes, with parameters and fixtures."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import sys
import types
import unittest
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

from roll.core.errors import Unable

Captured = namedtuple("Captured", "out err")


def run_all(space: dict[str, Any], before: dict[str, Any]) -> None:
    """`before`: the names that the test was given. Raises what a test raises, and `Unable` for tests that cannot be run."""
    for name, value in [(name, value) for name, value in space.items() if before.get(name) is not value]:
        if name.startswith("test") and isinstance(value, types.FunctionType):
            _run_function(value, space)
        elif isinstance(value, type) and value.__module__ == "tests" and (_is_case(value) or name.startswith("Test")):
            _run_class(value, space)


def _is_case(cls: type) -> bool:
    return issubclass(cls, unittest.TestCase)


def _run_function(test: Any, space: dict[str, Any], *this: Any) -> None:
    for given in _parameters(test):
        with contextlib.ExitStack() as after:
            known: dict[str, Any] = dict(given)
            for each in _automatic(space):
                _fixture(each, space, known, after)
            names = [name for name in _required(test)[len(this) :] if name not in given]
            fixtures = {name: _fixture(name, space, known, after) for name in names}
            result = test(*this, **given, **fixtures)
            if inspect.iscoroutine(result):
                asyncio.run(result)


def _run_class(cls: Any, space: dict[str, Any]) -> None:
    case = _is_case(cls)
    methods = [name for name in dir(cls) if name.startswith("test") and callable(getattr(cls, name))]
    _call(cls, "setUpClass" if case else "setup_class")
    for name in methods:
        this = cls(name) if case else cls()
        try:
            _call(this, "setUp" if case else "setup_method")
            _call(this, "asyncSetUp")
            _run_function(getattr(cls, name), space, this)
        except unittest.SkipTest as skipped:
            raise Unable(f"{name} is skipped: {skipped}") from None
        finally:
            _call(this, "tearDown" if case else "teardown_method")
            if case:
                this.doCleanups()
    _call(cls, "tearDownClass" if case else "teardown_class")


def _call(this: Any, name: str) -> None:
    method = getattr(this, name, None)
    if method is not None:
        result = method(*([None] if name in ("setup_method", "teardown_method") and _wants(method) else []))
        if inspect.iscoroutine(result):
            asyncio.run(result)


def _wants(method: Any) -> bool:
    return bool(inspect.signature(method).parameters)


def _required(test: Any) -> list[str]:
    return list(test.__code__.co_varnames[: test.__code__.co_argcount - len(test.__defaults__ or ())])


def _parameters(test: Any) -> list[dict[str, Any]]:
    """Arguments of the function by pytest.mark.parametrize; one call without it."""
    rows: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            given, values = _of_mark(*mark.args, **mark.kwargs)
            names = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
            rows = [row | dict(zip(names, _row(each, len(names)), strict=True)) for row in rows for each in values]
    if not rows:
        raise Unable(f"{test.__name__} is given no parameters")
    return rows


def _of_mark(argnames: object, argvalues: object, **_: object) -> tuple[Any, Any]:
    return argnames, argvalues


def _row(given: Any, names: int) -> Any:
    """The values of as many names, as they are or as pytest.param."""
    if type(given).__name__ == "ParameterSet":
        return given.values
    return given if names > 1 else (given,)


def _fixture(name: str, space: dict[str, Any], known: dict[str, Any], after: contextlib.ExitStack) -> Any:
    if name not in known:
        maker = _own(space.get(name)) or _BUILT_IN.get(name)
        if maker is None:
            raise Unable(f"a test asks for the fixture {name}")
        value = maker(**{each: _fixture(each, space, known, after) for each in _required(maker)})
        if inspect.isgenerator(value):
            generator, value = value, next(value)
            after.callback(lambda: next(generator, None))
        known[name] = value
    return known[name]


def _own(value: Any) -> Callable[..., Any] | None:
    """The function of a fixture that the test has defined."""
    if hasattr(value, "_get_wrapped_function"):
        return value._get_wrapped_function()  # type: ignore[no-any-return]
    return getattr(getattr(value, "__pytest_wrapped__", None), "obj", None)


def _automatic(space: dict[str, Any]) -> list[str]:
    markers = ((name, getattr(value, "_fixture_function_marker", None)) for name, value in space.items() if _own(value))
    return [name for name, marker in markers if getattr(marker, "autouse", False)]


class Captures:
    """pytest's capsys."""

    def __init__(self) -> None:
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()

    def readouterr(self) -> Any:
        said = [getattr(stream, "getvalue", str)() for stream in (sys.stdout, sys.stderr)]
        Captures()
        return Captured(*said)


def _capsys() -> Iterator[Captures]:
    streams = sys.stdout, sys.stderr
    try:
        yield Captures()
    finally:
        sys.stdout, sys.stderr = streams


def _monkeypatch() -> Iterator[Any]:
    from pytest import MonkeyPatch

    with MonkeyPatch.context() as patch:
        yield patch


_BUILT_IN: dict[str, Callable[..., Any]] = {"capsys": _capsys, "monkeypatch": _monkeypatch}
