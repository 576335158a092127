"""Programs and their tests: what passes, what fails, and what is no judgement."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import TimeoutExpired, run
from sys import executable
from typing import Any

import pytest
from code_samples import CONFIG, results, sample

from roll.core.rewards.worker import RewardResult
from roll.graders import service as asking
from roll.graders.answers import program_of
from roll.graders.code_judge import same_output
from roll.graders.code_rule import CodeSandboxRewardWorker
from roll.graders.code_rule import tests_of as read_tests

pytestmark = pytest.mark.slow

DOUBLE = "print(int(input()) * 2)"
ADD = "def add(a, b):\n    return a + b"
VECTOR = """
class Empty(LookupError):
    pass
class Vector:
    def __init__(self, x): self.x = x
    def __add__(self, other): return Vector(self.x + other.x)
    def __eq__(self, other): return self.x == other.x
    def __iter__(self): return iter([self.x])
def first(items):
    if not items: raise Empty("nothing")
    return items[0]
def sort_in_place(items): items.sort()
def apply(function, items): return {item: function(item) for item in items}
def pair(a): return (a, {a})
"""
TESTED = """
import math
from solution import Vector, Empty, first, sort_in_place
def test_operators():
    assert Vector(1) + Vector(2) == Vector(3) and Vector(1) != Vector(2)
    assert isinstance(Vector(1), Vector) and list(Vector(4)) == [4] and Vector(5).x == 5
def test_exceptions():
    try: first([])
    except Empty as error: assert isinstance(error, LookupError) and "nothing" in str(error)
    else: assert False
def test_changed_arguments():
    items = [3, 1, 2]
    sort_in_place(items)
    assert items == [1, 2, 3]
def test_given_functions():
    assert apply(lambda item: item + 1, [1, 2]) == {1: 2, 2: 3}
def test_types():
    assert pair(1) == (1, {1}) and isinstance(pair(1), tuple)
"""
PASSING = [
    (DOUBLE, [{"stdin": "3", "expected_stdout": "6\n"}], {}),
    (DOUBLE, json.dumps([{"input": "4", "output": "8"}]), {"case_type": "input"}),
    (DOUBLE, {"inputs": ["5\n", "6\n"], "outputs": ["10", "12.0"]}, {}),
    ("import sys\nfor line in sys.stdin: print(line.strip() + ' ')", [{"stdin": "a\nb", "expected_stdout": "a\nb"}], {}),
    ("import threading\nthreading.Thread(target=lambda: print(6)).start()", [{"stdin": "", "expected_stdout": "6"}], {}),
    (ADD, {"fn_name": "add", "inputs": [[1, 2], ["a", "b"]], "outputs": [3, "ab"]}, {}),
    (ADD, [{"input": "1\n2", "output": "3", "testtype": "functional"}], {"test_case_function": "add"}),
    (
        f"class Solution:\n    def add(self, a, b): return a, b\n{ADD}",
        {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[1, 2]]},
        {},
    ),
    ("def root(x): return sqrt(x)", {"fn_name": "root", "inputs": [[2]], "outputs": [1.41421356]}, {}),
    (ADD, ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"], {}),
    (VECTOR, [{"assert_code": TESTED}], {"case_type": "pytest"}),
    (ADD, "def check(candidate):\n    assert candidate(2, 2) == 4\n", {"entry_point": "add"}),
    ("def big(): return 3 ** 20000", ["assert big() == 3 ** 20000"], {}),
    ("import colorsys\ndef f(): return colorsys.rgb_to_hsv(0, 0, 0)", ["assert f() == (0.0, 0.0, 0)"], {}),
]
FAILING = [
    (DOUBLE, [{"stdin": "3", "expected_stdout": "7"}], {}),
    (DOUBLE, [{"stdin": "x", "expected_stdout": "6"}], {}),
    ("print(6); raise SystemExit(1)", [{"stdin": "", "expected_stdout": "6"}], {}),
    (ADD, {"fn_name": "add", "inputs": [[1, 2]], "outputs": [4]}, {}),
    (ADD, {"fn_name": "sub", "inputs": [[1, 2]], "outputs": [-1]}, {}),
    ("def yes(): return 1", {"fn_name": "yes", "inputs": [[]], "outputs": [True]}, {}),
    (ADD, ["assert add(1, 2) == 3", "assert add(1, 2) == 4"], {}),
    ("def add(a, b", ["assert add(1, 2) == 3"], {}),
    (ADD.replace("+", "-"), "def check(candidate):\n    assert candidate(2, 2) == 4\n", {"entry_point": "add"}),
    (VECTOR.replace("self.x + other.x", "self.x"), [{"assert_code": TESTED}], {}),
    ("import no_such_module\n" + ADD, ["assert add(1, 2) == 3"], {}),
]


def test_the_public_forms() -> None:
    graded = results([sample(source, tests, **row) for source, tests, row in (*PASSING, *FAILING)])
    for (source, tests, _), result in zip(PASSING, graded, strict=False):
        assert result == RewardResult(1.0, parts={"passed": 1.0}), (source, tests)
    for (source, tests, _), result in zip(FAILING, graded[len(PASSING) :], strict=True):
        assert (result.value, result.error) == (0.0, None), (source, tests)


def test_a_test_that_cannot_be_made_is_no_judgement() -> None:
    graded = results(
        [
            sample(ADD, ["import no_such_module\nassert add(1, 2) == 3"]),
            sample(ADD, ["def test_it(mocker): assert add(1, 2) == 3"]),
            sample(ADD, ["assert add(1, 2 =="]),
            sample(ADD, ""),
            # What the solution raises is its own affair.
            sample("def add(a, b): raise ModuleNotFoundError('x', name='y')", ["assert add(1, 2) == 3"]),
        ]
    )
    assert [result.value for result in graded] == [None, None, None, None, 0.0]
    for result, text in zip(graded, ("no_such_module", "fixture mocker", "no Python", "no tests"), strict=False):
        assert text in (result.error or "")


def test_partial_credit_is_the_share_of_tests() -> None:
    wrong = sample(DOUBLE, {"inputs": ["1", "2", "x", "3"], "outputs": ["2", "5", "", "6"]})
    code = sample(ADD, ["assert add(1, 2) == 4", "assert add(1, 2) == 3"])
    assert [result.value for result in results([wrong, code], partial_credit=True)] == [0.5, 0.5]
    assert [result.value for result in results([wrong, code])] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na\n```\nor rather\n```py\nb\n```", "b\n"),
        ("<think>```python\na\n```</think>", None),
        ("```python\na\n```</think>```\nb\n```", "b\n"),
        ("```cpp\na\n```", None),
        ('```Python title="x.py"\na\n```', "a\n"),
        ("```python\na", None),
        ("print(1)", "print(1)"),
        ("", None),
        ("x" * 100_001, None),
    ],
)
def test_the_program_is_the_last_block_behind_the_thinking(response: str, program: str | None) -> None:
    assert program_of(response) == program


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2\n3\n", "1 2 \n3", True),
        ("1.50", "1.5", True),
        ("1e3", "1000", True),
        ("", "", True),
        ("1 2 3", "1 2\n3", False),
        ("١", "1", False),
        ("1_0", "10", False),
        ("YES", "yes", False),
        ("nan", "inf", False),
        ("1e999999999", "1", False),
        ("", "0", False),
    ],
)
def test_what_is_the_same_output(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


def test_the_ground_truth_may_have_the_tests() -> None:
    assert read_tests({"test_cases": ""}, '[{"stdin": "1", "expected_stdout": "2"}]')["cases"] == [["1", "2"]]


def test_an_argument_that_nobody_reads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reward_args\.memory is not read"):
        CodeSandboxRewardWorker({**CONFIG, "reward_args": {"memory": 1}})
    with pytest.raises(ValueError, match=r"no reward_args\.code_url"):
        CodeSandboxRewardWorker({**CONFIG, "reward_args": {"use_local": False}})


class Service(BaseHTTPRequestHandler):
    """A SandboxFusion service for what a test sends; every third request fails at first."""

    requests = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).requests += 1
        if self.requests % 3 == 1:
            answer: dict[str, Any] = {"status": "SandboxError", "message": "try again"}
        else:
            try:
                ended = run([executable, "-c", body["code"]], input=body["stdin"], capture_output=True, text=True, timeout=20)
                answer = {"status": "Failed" if ended.returncode else "Success", "run_result": {"stdout": ended.stdout}}
            except TimeoutExpired:
                answer = {"status": "Failed", "run_result": {"status": "TimeLimitExceeded"}}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/run_code"
        server.shutdown()
        thread.join()


def test_a_service_runs_the_programs(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same forms; a service that fails is tried again, and one that is away is an error."""
    monkeypatch.setattr(asking, "FIRST_PAUSE_S", 0.0)
    chosen = [PASSING[0], PASSING[5], PASSING[7], PASSING[9], PASSING[10], PASSING[11]]
    failing = [FAILING[0], FAILING[2], FAILING[3], FAILING[5], FAILING[6], FAILING[9]]
    early = ("raise SystemExit(0)", ["assert add(1, 2) == 3"], {})
    graded = results([sample(*case[:2], **case[2]) for case in (*chosen, *failing, early)], code_url=service)
    assert [(result.value, result.error) for result in graded] == [(1.0, None)] * 6 + [(0.0, None)] * 7
    needs = ["class TestAdd:\n    def test_it(self): assert add(1, 2) == 3", "async def test_it(): assert add(1, 2) == 3"]
    for result in results(
        [sample(ADD, [test]) for test in (*needs, "def test_it(capsys): assert add(1, 2) == 3")], code_url=service
    ):
        assert "the tester cannot do this: have a service run " in (result.error or "")
    (away,) = results([sample(DOUBLE, PASSING[0][1])], code_url="http://127.0.0.1:9/run_code")
    assert "ServiceFailed" in (away.error or "")
