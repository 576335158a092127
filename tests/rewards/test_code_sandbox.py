"""Programs and their tests: what passes, what fails, and what is no judgement."""

import contextlib
import json
import os
import select
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import TimeoutExpired, run
from sys import executable
from typing import Any

import pytest
from code_samples import CONFIG, results, sample
from judged import judged

from roll.rewards import code_judge
from roll.rewards import service as asking
from roll.rewards.answers import program_of
from roll.rewards.code_judge import same_output
from roll.rewards.code_rule import CodeSandboxRewardWorker
from roll.rewards.code_rule import tests_of as read_tests
from roll.rewards.sandbox import landlock, sandbox, usage
from roll.rewards.sandbox.sandbox import BUILT_IN
from roll.rewards.sandbox.usage import Limits
from roll.rewards.worker import RewardResult

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
            sample(ADD, ["def test_it(capsys): assert add(1, 2) == 3"]),
            sample(ADD, ["assert add(1, 2 =="]),
            sample(ADD, ""),
            # What the solution raises is its own affair.
            sample("def add(a, b): raise ModuleNotFoundError('x', name='y')", ["assert add(1, 2) == 3"]),
        ]
    )
    assert [result.value for result in graded] == [None, None, None, None, 0.0]
    for result, text in zip(graded, ("no_such_module", "fixture capsys", "no Python", "no tests"), strict=False):
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
    (away,) = results([sample(DOUBLE, PASSING[0][1])], code_url="http://127.0.0.1:9/run_code")
    assert "ServiceFailed" in (away.error or "")


FORBIDDEN = """
import roll.rewards.sandbox.namespaces as namespaces
def isolate(): raise OSError("user namespaces are forbidden here")
namespaces.isolate = isolate
namespaces.closed_to_others = lambda isolated: ""
"""
"""What is loaded already runs, wherever Python lies."""
FORK = "import os, time\nchild = os.fork()\n"
WITHOUT_NAMESPACES = [
    (DOUBLE, ""),
    ("import os; open('x', 'w').write('6'); print(open('x').read() if os.getcwd() == os.environ['HOME'] else 'elsewhere')", ""),
    (f"{FORK}if child == 0:\n    os.setsid()\n    time.sleep(999)\nprint(6)", ""),
    ("import socket; socket.socket(); print(6)", "exit code 1"),
    (f"{FORK}while True: pass", "too much time"),
]
ENCLOSED = [
    "print(open('/etc/passwd').read())",
    "import os; os.listdir('/')",
    "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "import os; open(f'/proc/{os.getppid()}/mem', 'r+b')",
    "open('/var/tmp/evil', 'w')",
    "import os, tempfile; open(os.path.join(os.path.dirname(tempfile.gettempdir()), 'evil'), 'w')",
]
"""What belongs to the same user, or to all."""


def test_where_namespaces_are_forbidden_the_rest_holds_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program leaves behind is ended with it, in another session, too; its folder is removed."""
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + sandbox._FORKER)
    monkeypatch.setattr(code_judge, "_nothing", lambda _: None)
    shut_in = sandbox.Sandbox()
    try:
        assert "forbidden here" in shut_in.missing[0] and "read-only root" not in str(shut_in.in_force)
        folders = {*Path(tempfile.gettempdir()).iterdir()}
        for source in ENCLOSED if landlock.version() else []:
            assert code_judge._by_output(shut_in, source, "3", "6", Limits(wall_s=2.0)) == "exit code 1", source
        if landlock.version() >= landlock.SIGNALS_FROM:
            stop = "import os; os.kill(os.getppid(), 0)"
            assert code_judge._by_output(shut_in, stop, "3", "6", Limits(wall_s=2.0)) == "exit code 1"
        for source, failure in WITHOUT_NAMESPACES:
            assert code_judge._by_output(shut_in, source, "3", "6", Limits(wall_s=2.0)) == failure, source
        left = {*Path(tempfile.gettempdir()).iterdir()} - folders
        assert not [path for path in left if path.is_dir() and (path / "x").exists()]
        children = Path(f"/proc/{shut_in._process.pid}/task/{shut_in._process.pid}/children").read_text()
        assert children == ""
    finally:
        shut_in.close()


EATS = """
import os, time
for _ in range(4):
    if os.fork() == 0: break
taken = bytearray(900 << 20)
for i in range(0, len(taken), 4096): taken[i] = 1
time.sleep(999)
"""
"""Five processes, each within its own limit, whose memory takes seconds to be given back."""


def test_what_an_answer_causes_itself_earns_0() -> None:
    """All its memory and all its time are no reason to leave it unjudged: 100 such samples would end a run."""
    worker = CodeSandboxRewardWorker({**CONFIG, "timeout_s": 5.0})
    graded = judged(worker, [sample(EATS, PASSING[0][1]), sample(f"def f():\n    {EATS!r}\n" + EATS, ["assert f() == 1"])])
    assert [(result.value, result.error) for result in graded] == [(0.0, None)] * 2


def test_what_is_left_of_an_answer_does_not_decide_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end may take longer than the judge waits: then another sandbox judges the next one."""
    item = {"source": "while True: pass", "tests": read_tests({"tests": PASSING[0][1]}, ""), "go_on": False, "limit_s": 0.5}
    item |= {"limits": {"wall_s": 0.5}, "isolation": BUILT_IN}
    before = code_judge._sandbox(BUILT_IN)
    monkeypatch.setattr(sandbox.select, "select", lambda *_: ([], [], []))  # nothing is heard of its end
    assert code_judge.judge(item) == {"passed": 0, "of": 1, "why": "too much time"}
    monkeypatch.undo()
    assert code_judge.judge({**item, "source": DOUBLE, "limit_s": 5.0, "limits": {"wall_s": 5.0}})["passed"] == 1
    assert before.stuck and code_judge._sandbox(BUILT_IN) is not before
    code_judge._end(code_judge._sandbox(BUILT_IN))


LEAVES = """
import os
waiting, go_on = os.pipe()
child = os.fork()
if child == 0:
    try: os.setsid()
    except OSError: pass
    if os.fork(): os._exit(0)
    os.read(waiting, 1)
else:
    os.waitpid(child, 0)
    print("started", flush=True)
    os.write(go_on, b"x")
while True:
    try: os.fork()
    except OSError: pass
"""


@pytest.mark.parametrize("unread", [False, True])
def test_with_the_judge_all_ends_that_a_program_has_started(unread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process namespace ends it: what has lost its parent, too, and its folder; whatever the judge has left unread."""
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + sandbox._FORKER)
    shut_in = sandbox.Sandbox()
    with contextlib.closing(shut_in):
        if unread:
            started(shut_in, "")
            select.select([shut_in._connection], [], [])
        assert os.read(started(shut_in, LEAVES)[1], 100) == b"started\n"
        below = list(usage.below(shut_in._process.pid))
        assert len(below) >= 2
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()] and not Path(shut_in._place).exists()


FULL = """
import os, sys
pipes = os.pipe()
children = []
try:
    while True:
        child = os.fork()
        if child == 0:
            os.read(pipes[0], 1)
        children.append(child)
except OSError:
    print(len(children), flush=True)
os.read(pipes[0], 1)
"""
THREAD = """
import threading
print("here", flush=True)
input()
thread = threading.Thread(target=print, args=("there",)); thread.start(); thread.join()
"""


def test_programs_of_one_user_have_each_their_own_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine gives neither namespaces nor users: one that has all it may keeps no other from starting a thread."""
    one_user = "namespaces.users_of_their_own = lambda count: None\n"
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + one_user + sandbox._FORKER)
    with contextlib.closing(sandbox.Sandbox()) as honest, contextlib.closing(sandbox.Sandbox()) as hostile:
        assert not any(layer.startswith("users") for layer in honest.in_force)
        go_on, says = started(honest, THREAD)
        assert os.read(says, 100) == b"here\n"
        _, counts = started(hostile, FULL)
        assert os.read(counts, 100) == b"4\n"
        os.write(go_on, b"\n")
        assert os.read(says, 100) == b"there\n"


def started(shut_in: sandbox.Sandbox, source: str) -> tuple[int, int]:
    """Its input and its output."""
    (reads, go_on), (says, writes) = os.pipe(), os.pipe()
    given = sandbox.in_memory(json.dumps({"source": source, "is_program": True}).encode())
    shut_in._start_all([sandbox.Program(code_judge.SOLUTION, [reads, writes, given])], Limits())
    return go_on, says


HEADLESS = """
import os, mmap, time, threading, ctypes
for _ in range(4):
    if os.fork() == 0: break
def fill():
    time.sleep(0.3)
    x = mmap.mmap(-1, 90 << 20)
    for i in range(0, len(x), 4096): x[i] = 1
    time.sleep(999)
threading.Thread(target=fill).start()
ctypes.CDLL(None).syscall(60, 0)
"""
UNLINKED = """
import os, mmap, time
kept = []
for i in range(20):
    file = open('x', 'w+b'); os.remove('x'); file.write(b'x' * (8 << 20)); file.flush()
    kept.append(KEPT)
    del file
time.sleep(999)
"""
HIDING = {
    "behind a first thread that has ended": (HEADLESS, "memory"),
    "in files without a name": (UNLINKED.replace("KEPT", "file"), "files"),
    "in files without a name or a descriptor": (UNLINKED.replace("KEPT", "mmap.mmap(file.fileno(), 0)"), "files"),
}


@pytest.mark.parametrize("where", HIDING)
def test_what_a_program_hides_is_counted(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + "import ctypes, mmap, threading\n" + sandbox._FORKER)
    monkeypatch.setattr(code_judge, "_nothing", lambda _: None)
    source, exceeded = HIDING[where]
    with contextlib.closing(sandbox.Sandbox()) as shut_in:
        limits = Limits(wall_s=8.0, memory_mb=384, processes=9)
        assert code_judge._by_output(shut_in, source, "", "", limits) == f"too much {exceeded}"


MOST = """
import os, mmap
ends, held, processes = os.pipe(), [], 1
try:
    while os.fork(): processes += 1
    os.close(ends[1])
    os.read(ends[0], 1)
    os._exit(0)
except OSError:
    pass
try:
    while True: held.append(mmap.mmap(-1, 1 << 20))
except OSError:
    print(processes, len(held))
"""


@pytest.mark.parametrize("namespaces", [True, False])
def test_between_two_looks_the_limits_of_each_process_hold(namespaces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which bounds what a sample may have in memory at any moment."""
    begin = "import mmap\n" if namespaces else f"{FORBIDDEN}import mmap\nnamespaces.users_of_their_own = lambda count: None\n"
    monkeypatch.setattr(sandbox, "_FORKER", begin + sandbox._FORKER)
    limits = Limits(memory_mb=256, processes=3, wall_s=20.0)
    with contextlib.closing(sandbox.Sandbox()) as shut_in:
        assert namespaces is not bool(shut_in.missing)
        ending = code_judge._run_program(shut_in, {"source": MOST}, b"", limits)
    processes, megabytes = map(int, ending.output.split())
    assert 4 <= processes <= (6 if namespaces else 4) and 100 < megabytes < 256
