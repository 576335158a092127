"""Puts a solution, which runs in another process, to the test. Its process holds the tests, which the solution never sees.

Descriptor 3 brings {"function", "cases": [[arguments, expected], ...]} or {"tests": [code], "calls": what check() gets}, and
"go_on" after a failure; 5 takes {"passed", "why"} or {"unable"}; 4 leads to the solution. The code of a test comes from the data
set; it is isolated as a solution is.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import os
import socket
import sys
import types
from typing import Any

from roll.errors import PeerGone, boundary
from roll.rewards.sandbox.object_proxy import Peer, Remote, error_class
from roll.rewards.sandbox.read_tests import asked_of_solution, bound_in
from roll.rewards.sandbox.solution import NAME, prelude


class Unable(Exception):
    """A test cannot be made here, whatever the solution."""


def main() -> None:
    with open(3, "rb") as given:
        message = json.load(given)
    peer = Peer(socket.socket(fileno=4), None, frozenset({"call"}))
    try:
        passed, why = _called(peer, message) if "cases" in message else _tested(peer, message)
        answer = {"passed": passed, "why": why}
    except Unable as error:
        answer = {"unable": str(error)}
    os.write(5, json.dumps(answer).encode())


def _called(peer: Peer, message: dict[str, Any]) -> tuple[int, str]:
    passed, whys = 0, list[str]()
    with boundary(whys.append, say=_shown):
        function = peer.ask(0, "function", message["function"])
        for arguments, expected in message["cases"]:
            with boundary(whys.append, "", (PeerGone,), _shown):
                right = same(function(*arguments), expected)
                passed += right
                whys.extend([] if right else ["another value"])
            if whys and not message["go_on"]:
                break
    return passed, "".join(whys[:1])


def same(given: Any, expected: Any) -> bool:
    """Whether what a function has returned is what JSON says; a tuple is a list there, and keys are text."""
    if isinstance(given, Remote):
        given = given.roll_plain
    if type(given).__name__ == "ndarray":
        given = given.tolist()
    if isinstance(given, tuple):
        given = list(given)
    elif isinstance(given, dict):  # a Counter, an OrderedDict
        given = dict(given)
    if isinstance(given, bool) or isinstance(expected, bool):
        return given is expected
    if isinstance(given, int | float) and isinstance(expected, int | float):
        exact = isinstance(given, int) and isinstance(expected, int)
        return given == expected if exact else math.isclose(given, expected, rel_tol=1e-6, abs_tol=1e-9)
    if type(given) is not type(expected):
        return False
    if isinstance(given, list):
        return len(given) == len(expected) and all(map(same, given, expected))
    if isinstance(given, dict):
        by_text = {str(key): value for key, value in given.items()}
        return by_text.keys() == expected.keys() and all(same(by_text[key], expected[key]) for key in expected)
    return bool(given == expected)


def _tested(peer: Peer, message: dict[str, Any]) -> tuple[int, str]:
    passed, why = 0, ""
    try:
        names, errors = peer.ask(0, "names")
        names |= {name: error_class(types_) for name, types_ in errors.items()}
        names = {name: value for name, value in names.items() if name.isidentifier() and not name.startswith("__")}
        for name, value in names.items():
            if isinstance(value, Remote):
                value.roll_named(name)
    except Exception as error:  # boundary: what the solution says
        return 0, f"the solution cannot be loaded: {_shown(error)}"
    for test in message["tests"]:
        try:
            _run(test, names, message["calls"])
            passed += 1
        except ModuleNotFoundError as error:
            if error.name is not None and error.name != NAME:  # the solution's own have no name, or it lacks one
                raise Unable(str(error)) from error
            why = why or _shown(error)
            if not message["go_on"]:
                break
        except Unable:
            raise
        except (Exception, SystemExit) as error:  # boundary: a test fails by any exception
            why = why or _shown(error)
            if not message["go_on"] or isinstance(error, PeerGone):
                break
    return passed, why


def _run(test: str, names: dict[str, Any], calls: str) -> None:
    """A test's own lines, then each of its functions test_..., then check(candidate) if it has one."""
    prelude_names = prelude()
    known = prelude_names | vars(builtins)
    try:
        asked = asked_of_solution(test, known, calls)
        tree = ast.parse(test)
        bound, code = {*bound_in(tree)}, compile(tree, "tests.py", "exec")
    except SyntaxError as error:
        raise Unable(f"a test is no Python: {error}") from error
    except ValueError as error:
        raise Unable(str(error)) from error
    if asked and not asked & names.keys():
        raise AssertionError(f"it does not define {min(asked)}")
    # Python's own names are the tests' own: a solution's `abs` or `sorted` decides nothing.
    theirs = {name: value for name, value in names.items() if name in asked or name not in known}
    module = types.ModuleType(NAME)
    vars(module).update(names, __all__=list(theirs.keys() - bound))  # with "*", the test's own helpers stay its own
    sys.modules[NAME] = module
    own = {name: value for name, value in prelude_names.items() if name not in asked}
    space = {**own, **theirs, "__name__": "tests"}
    exec(code, space)  # in the sandbox
    for name, value in list(space.items()):
        if name.startswith("test") and isinstance(value, types.FunctionType):
            for arguments in _parameters(value):
                value(**arguments)
    if calls and isinstance(space.get("check"), types.FunctionType):
        space["check"](space[calls])


def _parameters(test: Any) -> list[dict[str, Any]]:
    """What pytest.mark.parametrize gives the function; one call without it."""
    rows: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            given, values = _of_mark(*mark.args, **mark.kwargs)
            names = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
            rows = [row | dict(zip(names, _row(each, len(names)), strict=True)) for row in rows for each in values]
    required = test.__code__.co_argcount - len(test.__defaults__ or ())
    if not rows:
        raise Unable(f"{test.__name__} is given no parameters")
    if lacking := [name for name in test.__code__.co_varnames[:required] if name not in rows[0]]:
        raise Unable(f"{test.__name__} asks for the fixture {lacking[0]}")
    return rows


def _of_mark(argnames: object, argvalues: object, **_: object) -> tuple[Any, Any]:
    return argnames, argvalues


def _row(given: Any, names: int) -> Any:
    """The values of as many names, as they are or as pytest.param."""
    if type(given).__name__ == "ParameterSet":
        return given.values
    return given if names > 1 else (given,)


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
