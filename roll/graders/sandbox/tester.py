"""Puts a solution, which runs in another process, to the test. Its process holds the tests, which the solution never sees.

Descriptor 3 brings {"function", "cases": [[arguments, expected], ...]} or {"tests": [code], "calls": what check() gets, "named"
and "classes": functions and classes of the task's text}, and "go_on" after a failure; 5 takes {"passed", "why"} or {"unable"};
4 leads to the solution. The code of a test comes from the data set; it is isolated as a solution is.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import math
import os
import re
import socket
import sys
import types
import typing
from collections.abc import Container, Sequence
from functools import cache
from typing import Any

from roll.core.errors import PeerGone, Unable, boundary
from roll.graders.sandbox import awaiting
from roll.graders.sandbox.guard import stand_guard
from roll.graders.sandbox.object_proxy import Peer
from roll.graders.sandbox.proxies import Remote, RemoteType, known_types
from roll.graders.sandbox.proxy_classes import set_own
from roll.graders.sandbox.questions import open_to_solutions
from roll.graders.sandbox.read_tests import (
    asked_of_solution,
    bound_in,
    classes_in,
    objects_in,
)
from roll.graders.sandbox.run_tests import run_all
from roll.graders.sandbox.solution import NAME, prelude
from roll.graders.sandbox.statements import (
    asks_for_metaclass,
    calls_results,
    cuts_short,
    evaluates,
    ignored_calls,
    raises_in,
    runs_text,
    starts_processes,
    texts_in,
    uses_files,
)
from roll.graders.sandbox.surroundings import Console, Patches, SolutionModule
from roll.graders.sandbox.turns import watch_threads
from roll.graders.sandbox.verdicts import Watch


def main() -> None:
    with open(3, "rb") as given:
        message = json.load(given)
    console = Console()
    peer = Peer(socket.socket(fileno=4), console, lambda of, method, given: _may_ask(console, of, method, given))
    peer.turns.stuck = _give_up
    try:
        passed, why = _called(peer, message) if "cases" in message else _tested(peer, message)
        answer = {"passed": passed, "why": why}
    except Unable as error:
        answer = {"unable": str(error)}
    os.write(5, json.dumps(answer).encode())


def _give_up(what: str) -> None:
    """Ends at once: the test's other threads never would."""
    os.write(5, json.dumps({"unable": what}).encode())
    os._exit(0)


def _may_ask(console: object, of: object, method: str, given: list[Any]) -> bool:
    return method in ("read", "run") if of is console else open_to_solutions(of, method, given)


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
    """True if the value that a function has returned equals the JSON; a tuple is a list there, and keys are text."""
    if isinstance(given, Remote):
        given = given.roll_plain
    if type(given).__name__ in ("ndarray", "Tensor"):
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


def _names(peer: Peer, asked: Container[str], tests: Sequence[str]) -> dict[str, Any]:
    """Returns the names of the solution. `asked`: those of which tests ask something."""
    names = {name: value for name, value in peer.ask(0, "names").items() if name.isidentifier() and not name.startswith("__")}
    peer.named = frozenset(value.roll_handle for value in names.values() if isinstance(value, Remote))
    peer.named |= {value.roll_number for value in names.values() if isinstance(value, RemoteType)}
    for name in names:
        if isinstance(names[name], Remote) and name in asked and not names[name].roll_told.get("function"):
            set_own(names[name], roll_made=True)
        elif isinstance(names[name], list | dict | set) and any(re.search(rf"\b{name}\b", test) for test in tests):
            names[name] = peer.ask(0, "value", name)
    return names


def _tested(peer: Peer, message: dict[str, Any]) -> tuple[int, str]:
    tests, passed, why = [*map(_read, message["tests"])], 0, ""
    _look_through_proxies(peer)
    awaiting.put_deadlines(peer)
    watch_threads(peer.cannot)
    stand_guard(peer.cannot, texts_in(tests), evaluates(tests))
    peer.watch = Watch(frozenset())
    peer.evident = frozenset(message.get("classes", ())) | classes_in(tests)
    try:
        names = _names(peer, objects_in(tests), message["tests"])
    except Exception as error:  # boundary: what the solution says
        return 0, f"the solution cannot be loaded: {_shown(error)}"
    for text, tree in zip(message["tests"], tests, strict=True):
        try:
            _run(peer, text, tree, tests, names, message)
            passed += 1
        except ModuleNotFoundError as error:
            if error.name is not None and error.name != NAME:  # the solution's own have no name, or it lacks one
                raise Unable(str(error)) from error
            why = why or _shown(error)
        except Unable:
            raise
        except BaseException as error:  # boundary: a test fails by any exception
            if type(error).__name__ == "Skipped" and type(error).__module__ != NAME:  # pytest's
                raise Unable(f"a test is skipped: {error}") from error
            why = why or _shown(error)
            if isinstance(error, PeerGone):
                break
        if peer.unable:
            raise Unable(peer.unable)
        if why and not message["go_on"]:
            break
    return _weighed(peer, passed, why) if passed else (0, why)


def _weighed(peer: Peer, passed: int, why: str) -> tuple[int, str]:
    try:
        cheats, doubtful = peer.watch.verdict()
    except (Exception, SystemExit) as error:  # boundary: what the solution says
        return 0, _shown(error)
    if cheats:
        return 0, cheats
    if doubtful and not why:
        raise Unable(doubtful)
    return passed, why


def _read(test: str) -> ast.Module:
    try:
        return ast.parse(test)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unable(f"a test is no Python: {error}") from error


def _run(
    peer: Peer, test: str, tree: ast.Module, tests: list[ast.Module], names: dict[str, Any], message: dict[str, Any]
) -> None:
    """A test's own lines, then each of its functions test_..., then check(candidate) if it has one."""
    calls, known = message["calls"], _known()
    try:
        asked = asked_of_solution(tree, known, calls, frozenset(message.get("named", ())), tests, names)
        _refuse(tree, names)
        code = compile(tree, "tests.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise Unable(str(error)) from error
    if asked and not asked & names.keys():
        raise AssertionError(f"it does not define {min(asked)}")
    # Python's own names are the tests' own: a solution's `abs` or `sorted` decides nothing.
    theirs = {name: value for name, value in names.items() if name in asked or name not in known}
    _offer_module(peer, names, [*theirs.keys() - {*bound_in(tree)}])  # with "*", the test's own helpers stay its own
    space = prelude()
    for name in asked:
        space.pop(name, None)
    space |= theirs | {"__name__": "tests"}
    given = dict(space)
    peer.watch.ignored = ignored_calls(tree)
    peer.keeps_types, peer.raises, peer.broken = calls_results(tree), raises_in(tree), None
    streams = sys.stdin, sys.stdout, sys.stderr
    peer.before = Patches(peer, test)
    try:
        exec(code, space)  # in the sandbox
        run_all(space, given)
        if calls and isinstance(space.get("check"), types.FunctionType):
            space["check"](space[calls])
        if peer.broken is not None:
            raise peer.broken
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams


def _refuse(tree: ast.Module, names: dict[str, Any]) -> None:
    """Raises `ValueError` for code that no test of another process can run."""
    if uses_files(tree):
        raise ValueError("a test works with files, which a solution does not share")
    if starts_processes(tree):
        raise ValueError("a test starts processes, in which there is no solution")
    if runs_text(tree):
        raise ValueError("a test runs text that does not stand in it")
    if cuts_short(tree):
        raise ValueError("a test cuts short what it waits for")
    if asks_for_metaclass(tree, [name for name, value in names.items() if isinstance(value, RemoteType)]):
        raise ValueError("a test asks for the class of a class")


def _offer_module(peer: Peer, names: dict[str, Any], public: list[str]) -> None:
    module = SolutionModule(NAME)
    vars(module).update(names, roll_peer=peer, __all__=public)
    sys.modules[NAME] = module
    sys.modules["tests"] = types.ModuleType("tests")


@cache
def _known() -> dict[str, Any]:
    """Python's names; a flag such as `re.A` is none that a test would mean."""
    return {name: value for name, value in (prelude() | vars(builtins)).items() if not isinstance(value, re.RegexFlag)}


def _look_through_proxies(peer: Peer) -> None:
    """`inspect` looks at types; of a proxy it is told."""
    for name in (
        "isfunction",
        "ismethod",
        "isbuiltin",
        "isroutine",
        "isgeneratorfunction",
        "iscoroutinefunction",
        "isasyncgenfunction",
    ):
        setattr(inspect, name, _of_function(name, getattr(inspect, name)))
    isgenerator = inspect.isgenerator
    setattr(inspect, "isgenerator", lambda this: _kind(this) == "generator" or isgenerator(this))  # noqa: B010
    setattr(typing, "get_type_hints", _hints(peer, typing.get_type_hints))  # noqa: B010
    for name in ("getsource", "getsourcelines", "getfile", "getsourcefile", "getmembers", "getfullargspec"):
        setattr(inspect, name, _refusing(peer, name, getattr(inspect, name)))


def _kind(this: object) -> str:
    return (this.roll_told or {}).get("kind", "") if isinstance(this, Remote) else ""


def _of_function(name: str, asked: Any) -> Any:
    def answer(this: Any) -> bool:
        if isinstance(this, Remote):
            return name in ((this.roll_told or {}).get("function") or {}).get("is", ())
        return bool(asked(this))

    return answer


def _hints(peer: Peer, asked: Any) -> Any:
    def answer(this: Any, *arguments: Any, **named: Any) -> Any:
        if not isinstance(this, Remote | RemoteType):
            return asked(this, *arguments, **named)
        if arguments or named:
            peer.cannot("ask for type hints in names of the test")
        return known_types(peer, peer.ask(this.roll_number if isinstance(this, RemoteType) else this.roll_handle, "type hints"))

    return answer


def _refusing(peer: Peer, name: str, asked: Any) -> Any:
    def answer(this: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(this, Remote | RemoteType):
            peer.cannot(f"ask inspect.{name} of the solution")
        return asked(this, *arguments, **named)

    return answer


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
