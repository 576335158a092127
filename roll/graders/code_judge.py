"""Does a solution pass its tests? Runs in a grader process; the solution runs in the sandbox.

The solution's process never decides: what a program prints is compared here, what a function returns in the tester's process. So
nothing that a solution prints, raises, overrides or ends can pass for a passed test.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from roll.core.errors import SandboxFailed
from roll.graders.sandbox.library_values import LIBRARIES
from roll.graders.sandbox.sandbox import BUILT_IN, END_S, Ending, Isolation, Program, Sandbox, in_memory
from roll.graders.sandbox.usage import Limits

LARGE = "torch"
"""A library that cannot be loaded ahead of the programs: it wants a folder for temporary files."""
_ROLES = "roll.graders.sandbox"
SOLUTION, SCRIPT, TESTER = f"{_ROLES}.solution:main", f"{_ROLES}.solution:script", f"{_ROLES}.tester:main"
CALM_S = 1.0
"""A program that does nothing takes a hundredth of this, unless the machine is too busy to judge by the clock."""
AFTER_S = 2 * END_S + 2 * CALM_S
"""The longest that the judge takes after a solution's time is over: to end it, and to see whether the machine was too slow."""


def judge(item: dict[str, Any]) -> Any:
    """{"passed", "of", "why"} of {"source", "tests", "limits", "limit_s", "go_on", "isolation"}; without a source, what is in
    force and what is missing. Raises what is not the solution's fault."""
    return _inside(_judge if "source" in item else _state, item)


def run_script(item: dict[str, Any]) -> Any:
    """{"output", "why": it failed, else empty} of {"source", "limits", "isolation", "last_line"}: what a program has printed, its
    error included. Raises what is not the program's fault."""
    return _inside(_script, item)


def _inside(work: Callable[[Sandbox, dict[str, Any]], dict[str, Any]], item: dict[str, Any]) -> dict[str, Any]:
    isolation = item["isolation"]
    sandbox = _sandbox(isolation if isinstance(isolation, str) else tuple(isolation))
    try:
        found = work(sandbox, item)
    except SandboxFailed:
        _end(sandbox)
        raise
    if sandbox.stuck:
        _end(sandbox)
    return found


def _state(sandbox: Sandbox, item: object = None) -> dict[str, list[str]]:
    _nothing(sandbox)
    return {"in_force": sandbox.in_force, "missing": sandbox.missing}


def _script(sandbox: Sandbox, item: dict[str, Any]) -> dict[str, Any]:
    source = {"source": item["source"], "last_line": item["last_line"]}
    ending = _run_program(sandbox, source, b"", Limits(**item["limits"]), SCRIPT)
    return {"output": ending.output.decode(errors="replace"), "why": _failure(sandbox, ending)}


def _end(sandbox: Sandbox) -> None:
    _sandbox.cache_clear()
    sandbox.close()


def state_here(isolation: Isolation = BUILT_IN) -> dict[str, list[str]]:
    """Returns the protections in force on this machine, and those missing. Raises `SandboxFailed`."""
    sandbox = Sandbox(isolation)
    try:
        return _state(sandbox)
    finally:
        sandbox.close()


@cache
def _sandbox(isolation: Isolation) -> Sandbox:
    return Sandbox(isolation)


def _libraries(item: dict[str, Any]) -> set[str]:
    """Returns the libraries that a solution or its tests import, which takes seconds."""
    texts = "\n".join([item["source"], *item["tests"].get("tests", ())])
    return {*re.findall(r"^\s*(?:import|from)\s+(\w+)", texts, re.MULTILINE)} & LIBRARIES


def _judge(sandbox: Sandbox, item: dict[str, Any]) -> dict[str, Any]:
    """Judges an item. A library that does not load within the limits is no solution's fault."""
    libraries = _libraries(item)
    sandbox.load(sorted(libraries - {LARGE}))
    found = _passed(sandbox, item)
    doubtful = found["why"].startswith(("too much", "the solution cannot be loaded"))
    if LARGE in libraries and doubtful and not sandbox.stuck and not _loads(sandbox, Limits(**item["limits"])):
        raise ValueError(f"the tester cannot do this: {LARGE} does not load within memory_mb, cpu_s and timeout_s; raise them")
    return found


def _loads(sandbox: Sandbox, limits: Limits) -> bool:
    """True if a quarter of the time is enough for it: a solution and its tests load it side by side."""
    ending = _run_program(sandbox, {"source": f"import {LARGE}"}, b"", replace(limits, wall_s=limits.wall_s / 4))
    return not ending.exceeded and not ending.code


def _passed(sandbox: Sandbox, item: dict[str, Any]) -> dict[str, Any]:
    tests, limits, deadline = item["tests"], item["limits"], time.monotonic() + item["limit_s"]

    def limited() -> Limits:
        return Limits(**{**limits, "wall_s": max(0.01, min(limits["wall_s"], deadline - time.monotonic()))})

    if tests["kind"] != "program":
        passed, why = _by_tester(sandbox, item, limited())
        return {"passed": passed, "of": len(tests["cases"] if tests["kind"] == "function" else tests["tests"]), "why": why}
    passed, why = 0, ""
    for stdin, expected in tests["cases"]:
        failure = _by_output(sandbox, item["source"], stdin, expected, limited())
        passed, why = passed + (not failure), why or failure
        if why and (not item["go_on"] or sandbox.stuck or time.monotonic() >= deadline):
            break
    return {"passed": passed, "of": len(tests["cases"]), "why": why}


def _by_output(sandbox: Sandbox, source: str, stdin: str, expected: str, limits: Limits) -> str:
    """Returns why a program fails a case; empty if it passes."""
    ending = _run_program(sandbox, {"source": source}, stdin.encode(), limits)
    if failure := _failure(sandbox, ending):
        return failure
    return "" if same_output(ending.output.decode(errors="replace"), expected) else "other output"


def _run_program(sandbox: Sandbox, source: dict[str, Any], stdin: bytes, limits: Limits, role: str = SOLUTION) -> Ending:
    reading, writing = os.pipe()
    given = in_memory(json.dumps(source | {"is_program": True}).encode())
    return sandbox.run([Program(role, [in_memory(stdin), writing, given])], reading, limits)


def _failure(sandbox: Sandbox, ending: Ending) -> str:
    if ending.exceeded == "time" and not sandbox.stuck:
        _nothing(sandbox)
    if ending.exceeded:
        return f"too much {ending.exceeded}"
    return f"exit code {ending.code}" if ending.code else ""


def _nothing(sandbox: Sandbox) -> None:
    """Raises if a program that does nothing takes long: then no solution can be blamed for the time that it took."""
    begin = time.monotonic()
    ending = _run_program(
        sandbox, {"source": "import colorsys"}, b"", Limits(wall_s=2 * CALM_S)
    )  # a module that is not loaded yet
    if ending.exceeded or ending.code or time.monotonic() - begin > CALM_S:
        took_s = time.monotonic() - begin
        raise SandboxFailed(f"a program that only imports a module took {took_s:.1f} s and ended with exit code {ending.code}")


def _by_tester(sandbox: Sandbox, item: dict[str, Any], limits: Limits) -> tuple[int, str]:
    theirs, ours = socket.socketpair()
    reading, writing = os.pipe()
    nowhere = os.open("/dev/null", os.O_RDWR)
    solution = in_memory(json.dumps({"source": item["source"], "is_program": False}).encode())
    tests = in_memory(json.dumps(item["tests"] | {"go_on": item["go_on"]}).encode())
    programs = [
        Program(SOLUTION, [nowhere, nowhere, solution, theirs.detach()]),
        Program(TESTER, [os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDWR), tests, ours.detach(), writing]),
    ]
    ending = sandbox.run(programs, reading, limits)
    if ending.exceeded:
        return 0, _failure(sandbox, ending)
    answer: dict[str, Any] = (
        json.loads(ending.output) if ending.output else {"passed": 0, "why": f"the tests ended with {ending.code}"}
    )
    if "unable" in answer:
        raise ValueError(f"the tester cannot do this: {answer['unable']}")
    return int(answer["passed"]), str(answer["why"])


def same_output(printed: str, expected: str) -> bool:
    """Line by line the same words; a number may be written in another way. White space at the ends does not count."""
    lines, right = _lines(printed), _lines(expected)
    return len(lines) == len(right) and all(map(_same_line, lines, right))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _same_line(given: str, expected: str) -> bool:
    if given == expected:
        return True
    words, right = given.split(), expected.split()
    return len(words) == len(right) and all(map(_same_word, words, right))


def _same_word(given: str, expected: str) -> bool:
    if given == expected:
        return True
    if not (given.isascii() and expected.isascii()) or "_" in given:
        return False
    try:
        return Decimal(given) == Decimal(expected)
    except InvalidOperation:
        return False
