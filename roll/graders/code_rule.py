"""Reward 1 for a Python program that passes all its tests, run in a sandbox of this machine or by a service."""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

from roll.core.data.sample import Sample
from roll.core.errors import Busy
from roll.core.rewards.worker import Grade, RewardWorker
from roll.graders.answers import program_of
from roll.graders.code_judge import AFTER_S, same_output
from roll.graders.pool import TimedPool
from roll.graders.sandbox import control_groups
from roll.graders.sandbox.read_tests import definitions_of, helpers_in, named_in, needs_a_runner, tests_something
from roll.graders.sandbox.sandbox import BUILT_IN, checked
from roll.graders.sandbox.solution import PRELUDE, prelude
from roll.graders.sandbox.tester import same
from roll.graders.sandbox.usage import Limits
from roll.graders.service import JsonService

MARGIN_S = 5.0
"""Time for the service itself, besides the program's."""


class CodeService:
    def __init__(self, url: str, limit_s: float) -> None:
        self._limit_s = limit_s
        self._service = JsonService(url, limit_s + MARGIN_S)

    async def close(self) -> None:
        await self._service.close()

    async def judge(self, source: str, tests: dict[str, Any], go_on: bool) -> dict[str, int]:
        """{"passed", "of"}. Raises `ServiceFailed`."""
        programs = list(_trials(source, tests))
        passed = 0
        for program, stdin, is_right in programs:
            printed = await self._printed(program, stdin)
            right = printed is not None and is_right(printed)
            passed += right
            if not right and not go_on:
                break
        return {"passed": passed, "of": len(programs)}

    async def _printed(self, program: str, stdin: str) -> str | None:
        """Returns the program's output; None if it failed."""
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
"""A program, its input, and a check of its output."""


def _trials(source: str, tests: dict[str, Any]) -> Iterator[Case]:
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
            if needs := needs_a_runner(test):
                raise ValueError(f"the tester cannot do this: have a service run {needs}; leave out code_url")
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


COLUMNS = ("test_cases", "tests", "test_list", "input_output", "test")
"""Columns that may hold a row's tests; without them, its ground truth does."""
_INPUTS, _OUTPUTS = ("stdin", "input"), ("expected_stdout", "expected_output", "output")


def tests_of(row: Mapping[str, object], ground_truth: str) -> dict[str, Any]:
    """{"kind": "program", "cases": [[stdin, stdout]]}, {"kind": "function", "function", "cases": [[arguments, value]]} or
    {"kind": "code", "tests": [code], "calls": what check() gets}. Raises `ValueError` if there are none."""
    given = _parsed(next((row[name] for name in COLUMNS if row.get(name)), ground_truth))
    function = row.get("test_case_function") or row.get("fn_name") or ""
    function = "" if function == "None" else str(function)
    calls = str(row.get("entry_point") or function)
    if isinstance(given, str):
        return _code([given], calls, row)
    if isinstance(given, Mapping) and "inputs" in given and "outputs" in given:
        function = given.get("fn_name") or function
        pairs = list(zip(given["inputs"], given["outputs"], strict=True))
        return _calls(function, pairs) if function else _programs(pairs)
    cases = [given] if isinstance(given, Mapping) else given
    if not isinstance(cases, list) or not cases:
        raise ValueError("it has no tests")
    if all(isinstance(case, str) for case in cases):
        return _code(cases, calls, row)
    if all("assert_code" in case for case in cases):
        calls = str(cases[0].get("entry_point") or calls)
        return _code([str(case.get("import_prefix") or "") + str(case["assert_code"]) for case in cases], calls, row)
    pairs = [(_one_of(case, _INPUTS), _one_of(case, _OUTPUTS)) for case in cases]
    if function and all(case.get("testtype", "functional") == "functional" for case in cases):
        return _calls(function, pairs)
    return _programs(pairs)


def _parsed(tests: object) -> Any:
    """JSON where it is JSON that is not a number or a text."""
    if isinstance(tests, str):
        try:
            value = json.loads(tests)
        except ValueError:
            return tests
        return value if isinstance(value, list | dict) else tests
    return tests


def _one_of(case: Mapping[str, object], names: tuple[str, ...]) -> object:
    for name in names:
        if name in case:
            return case[name]
    raise ValueError(f"a test case has none of {', '.join(names)}")


def _code(tests: list[str], calls: str, row: Mapping[str, object]) -> dict[str, object]:
    """Leaves out lines among the tests that test nothing: whatever the solution, they would pass."""
    if kept := [_with_helpers(test, calls, row) for test in tests if tests_something(test, calls)]:
        functions, classes = named_in(_told(row))
        return {"kind": "code", "tests": kept, "calls": calls, "named": [*functions], "classes": [*(classes - functions)]}
    raise ValueError("it has no tests: nothing asserts, or nothing runs what does (test_... functions; check, with entry_point)")


def _told(row: Mapping[str, object]) -> str:
    """Texts of a row that the model sees: its columns of text, and messages."""
    texts = [value for name, value in row.items() if isinstance(value, str) and name not in COLUMNS]
    messages = [each for value in row.values() if isinstance(value, list) for each in value if isinstance(each, Mapping)]
    return "\n".join([*texts, *(each["content"] for each in messages if isinstance(each.get("content"), str))])


def _with_helpers(test: str, calls: str, row: Mapping[str, object]) -> str:
    """HumanEval's check() uses functions that the prompt defines, and so does the solution, in its own favour if it likes."""
    if not (helpers := helpers_in(test, calls, prelude().keys() | vars(builtins).keys())):
        return test
    texts = (value for name, value in row.items() if isinstance(value, str) and name not in COLUMNS)
    if definitions := next(filter(None, (definitions_of(helpers, text, calls) for text in texts)), ""):
        return definitions + test
    raise ValueError(f"check() uses {min(helpers)}, which only the solution would define: define it in the test")


def _programs(pairs: list[tuple[object, object]]) -> dict[str, object]:
    if not pairs:
        raise ValueError("it has no tests")
    return {"kind": "program", "cases": [[_text(given), _text(expected)] for given, expected in pairs]}


def _text(value: object) -> str:
    """Joins the lines of an input or of an output."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _calls(function: str, pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """An input as text has one argument a line, in JSON; so has an output its value."""
    if not pairs:
        raise ValueError("it has no tests")
    cases = []
    for given, expected in pairs:
        as_text = isinstance(given, str)
        if isinstance(given, Mapping):
            raise ValueError("an input is an object; it has to be a list of the arguments, or text with one of them a line")
        arguments = [json.loads(line) for line in given.splitlines() if line.strip()] if as_text else list(given)
        value = json.loads(expected) if as_text and isinstance(expected, str) else expected
        cases.append([arguments, value])
    return {"kind": "function", "function": function, "cases": cases}


logger = logging.getLogger(__name__)

MARGIN = 0.9
"""Share of `timeout_s` in which a solution has to pass its tests; the rest is the judge's."""


class CodeSandboxRewardWorker(RewardWorker):
    """`timeout_s`: for all tests of a sample. `reward_args`: `code_url` (a SandboxFusion service; without it, or with
    `use_local`, the tests run here), `isolation` (what isolates them: `sandbox/sandbox.py`), `partial_credit` (the reward
    is the share of tests that pass), fields of `Limits`."""

    reads = frozenset(
        {"use_local", "code_url", "partial_credit", "isolation", *(field.name for field in fields(Limits))} - {"wall_s"}
    )
    keeps_time_limit: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        arguments = self.reward_args
        self._partial = bool(arguments.get("partial_credit"))
        self._limits = {name: int(arguments[name]) for name in {*arguments} & {*Limits.__slots__}}
        self._limits["wall_s"] = self.timeout_s * MARGIN  # type: ignore[assignment]
        self._isolation = checked(arguments.get("isolation", BUILT_IN))
        url = arguments.get("code_url")
        local = bool(arguments.get("use_local", not url))
        if not local and not url:
            raise ValueError("reward_args.use_local is false and there is no reward_args.code_url")
        self._service = None if local else CodeService(str(url), self.timeout_s)
        self._pool = TimedPool(self.max_concurrency, self.timeout_s + AFTER_S, "roll.graders.code_judge:judge")

    async def start(self) -> None:
        if self._service is not None:
            return
        await self._pool.start()
        state = await self._pool.run({"isolation": self._isolation})
        logger.info("the code sandbox has in force: %s", "; ".join(state["in_force"]))
        for missing in state["missing"]:
            logger.warning("the code sandbox lacks: %s", missing)

    async def close(self) -> None:
        await self._pool.close()
        await asyncio.to_thread(control_groups.remove_abandoned)
        if self._service is not None:
            await self._service.close()

    async def grade(self, sample: Sample) -> Grade:
        tests = tests_of(sample.prompt.row, sample.prompt.ground_truth)
        source = program_of(sample.response_text)
        if source is None:
            return 0.0, {"passed": 0.0}
        if self._service is not None:
            result = await self._service.judge(source, tests, self._partial)
        else:
            limits = {"limit_s": self.timeout_s * MARGIN, "limits": self._limits, "go_on": self._partial}
            result = await self._pool.run({"source": source, "tests": tests, "isolation": self._isolation, **limits})
        share = result["passed"] / result["of"]
        return (share if self._partial else float(share == 1)), {"passed": share}

    def solution(self, ground_truth: str) -> None:
        return None
