"""Tests run by a service that speaks as SandboxFusion does: POST {"code", "language", "stdin", ...}; what it printed
comes back.

What a program prints, or a function returns, is compared here. Tests that are code run after the solution, in its process: there
a solution can override what they compare with, which the sandbox of this machine prevents. It cannot just end early: a word
has to come out at the end, which is drawn for each program. A solution that reads its own file finds it there, and the tests too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from roll.errors import Busy
from roll.rewards.code_judge import same_output
from roll.rewards.sandbox.solution import PRELUDE
from roll.rewards.sandbox.tester import same
from roll.rewards.service import JsonService

MARGIN_S = 5.0
"""For the service itself, besides the program's time."""


class CodeService:
    def __init__(self, url: str, limit_s: float) -> None:
        self._limit_s = limit_s
        self._service = JsonService(url, limit_s + MARGIN_S)

    async def close(self) -> None:
        await self._service.close()

    async def judge(self, source: str, tests: dict[str, Any], go_on: bool) -> dict[str, int]:
        """{"passed", "of"}. Raises `ServiceFailed`."""
        programs = list(_programs(source, tests))
        passed = 0
        for program, stdin, is_right in programs:
            printed = await self._printed(program, stdin)
            right = printed is not None and is_right(printed)
            passed += right
            if not right and not go_on:
                break
        return {"passed": passed, "of": len(programs)}

    async def _printed(self, program: str, stdin: str) -> str | None:
        """None if the program failed."""
        body = {"code": program, "language": "python", "stdin": stdin, "compile_timeout": 10, "run_timeout": self._limit_s}
        printed: str | None = await self._service.ask_until(body, _printed)
        return printed


def _printed(answer: dict[str, Any]) -> str | None:
    if answer.get("status") == "Success":
        return str((answer.get("run_result") or {}).get("stdout") or "")
    if answer.get("status") == "Failed":
        return None
    raise Busy(f"{answer.get('status')}: {answer.get('message', '')}")


Case = tuple[str, str, Callable[[str], bool]]
"""A program, its input, and whether what it printed is right."""


def _programs(source: str, tests: dict[str, Any]) -> Iterator[Case]:
    word = secrets.token_hex(16)
    begin = f"{PRELUDE}\n{source}\n"
    if tests["kind"] == "program":
        for stdin, expected in tests["cases"]:
            yield begin, stdin, partial(_prints, expected)
    elif tests["kind"] == "function":
        name = tests["function"]
        for arguments, expected in tests["cases"]:
            owner = "(Solution() if 'Solution' in globals() else sys.modules['__main__'])"
            call = f"{owner}.{name}(*json.loads({json.dumps(arguments)!r}))"
            yield f"{begin}import json, sys\nprint('\\n{word}' + json.dumps({call}))", "", partial(_returns, word, expected)
    else:
        for test in tests["tests"]:
            run = "for _name, _test in list(globals().items()):\n    if _name.startswith('test_') and callable(_test): _test()\n"
            check = f"check({tests['calls']})\n" if tests["calls"] and "def check(" in test else ""
            module = "import sys\nsys.modules['solution'] = sys.modules['__main__']\n"
            yield f"{begin}{module}{test}\n{run}{check}print('\\n{word}')", "", partial(_ends_with, word)


def _prints(expected: str, printed: str) -> bool:
    return same_output(printed, expected)


def _returns(word: str, expected: object, printed: str) -> bool:
    try:
        return same(json.loads(printed.rpartition(word)[2]), expected)
    except (ValueError, RecursionError):
        return False


def _ends_with(word: str, printed: str) -> bool:
    return printed.rstrip().endswith(word)
