"""Tests that are code: whose names they use, what runs them, and where their Python lies."""

import os
import sys
import tempfile
from pathlib import Path
from subprocess import run
from types import SimpleNamespace
from typing import Any

import pytest
from code_samples import results, sample

from roll.graders import code_judge
from roll.graders.code_rule import tests_of as read_tests
from roll.graders.sandbox import sandbox
from roll.graders.sandbox.usage import Limits

ADD = "def add(a, b):\n    return a + b"
ABS = "def f(x): return 99\ndef abs(x): return 0\n"
REPLACED = """
import sys
solution = sys.modules["roll.graders.sandbox.solution"]
def f(x): return 99
forged = {"__builtins__": {"abs": lambda x: 0}, "f": f, "ValueError": type("ValueError", (Exception,), {})}
solution.Loaded.names = lambda self: forged
"""
MEDIAN = "def median(a): return sorted(a)[len(a) // 2]"
CHECK = "def check(candidate):\n    assert candidate([1, 2, 3]) == 2"
OWN_TOOLS = [
    # (solution, tests, entry point, whether it passes)
    (ABS, ["assert abs(f(2) - 3) < 1e-6"], "", False),
    (ABS, ["from solution import *\ndef test_f():\n    assert abs(f(2) - 3) < 1e-6"], "", False),
    (REPLACED, ["assert abs(f(2) - 3) < 1e-6"], "", False),
    (REPLACED, ["try: f(1); raise TypeError\nexcept ValueError: pass"], "", False),
    ("def f(x): return [9]\nsorted = lambda x: [1, 2]", ["assert sorted(f(2)) == [1, 2]"], "", False),
    ("def f(x): return 9\nclass math:\n    isclose = lambda *_: True", ["assert math.isclose(f(2), 3)"], "", False),
    # The tools are Python's; the function that is asked for is not, whatever its name.
    ("x = 1", ["assert add(2, 3) == 5"], "", False),
    ("x = 1", [CHECK], "median", False),
    (ADD, ["assert add(2, 3) == 5"], "", True),
    (ADD, ["from solution import *\ndef test_add():\n    assert add(2, 3) == 5"], "", True),
    ("def sum(a, b): return a + b", ["assert sum(2, 3) == 5"], "", True),
    (MEDIAN, [CHECK], "median", True),
    ("class Counter:\n    def __init__(self): self.n = 5", ["c = Counter()\nassert c.n == 5"], "", True),
]


def test_a_solution_brings_no_tools_for_its_own_tests() -> None:
    given = [sample(source, tests, entry_point=entry) for source, tests, entry, _ in OWN_TOOLS]
    for (source, tests, _, passes), result in zip(OWN_TOOLS, results(given), strict=True):
        assert (result.value, result.error) == (float(passes), None), (source, tests)


@pytest.mark.parametrize(
    ("tests", "row", "says"),
    [
        ("42", {}, "it has no tests: nothing asserts"),
        (["import math", "x = add(1, 2)"], {}, "it has no tests: nothing asserts"),
        ("def check(candidate):\n    assert candidate(1, 2) == 3", {}, "it has no tests: .*check, with entry_point"),
        ("class Tests:\n    def helper(self):\n        assert add(1, 2) == 3", {}, "nothing runs what does"),
        ("def helper():\n    assert add(1, 2) == 3", {}, "nothing runs what does"),
        ("def f():\n    assert add(1, 2) == 3\nif __name__ == '__main__':\n    f()", {}, "nothing runs what does"),
        ("assert add(1,", {}, "no Python: SyntaxError"),
        ("assert " + "(" * 500 + "1" + ")" * 500, {}, "no Python"),
        ([{"input": {"a": 1, "b": 2}, "output": 3}], {"fn_name": "add"}, "an input is an object"),
    ],
)
def test_tests_that_every_solution_would_pass_are_no_tests(tests: Any, row: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_tests({"tests": tests, **row}, "")


def test_lines_that_test_nothing_are_left_out() -> None:
    assert read_tests({"tests": ["import math", "assert add(1, 2) == 3"]}, "")["tests"] == ["assert add(1, 2) == 3"]


PARAMETERS = """
import pytest
@pytest.mark.parametrize(argnames="a", argvalues=[1, pytest.param(2, id="two")], ids=str)
@pytest.mark.parametrize("b, c", [pytest.param(3, 4), (5, 6)])
def test_add(a, b, c):
    assert add(a, b) == a + c - 1
"""


def test_parameters_in_all_forms_and_what_lacks_at_run_time_is_no_judgement() -> None:
    graded = results(
        [
            sample(ADD, [PARAMETERS]),
            sample(ADD.replace("+", "-"), [PARAMETERS]),
            sample(ADD, ["def test_add():\n    import no_such_module\n    assert add(1, 2) == 3"]),
            sample(ADD, ["import pytest\n@pytest.mark.parametrize('a', [])\ndef test_add(a): assert add(a, 1)"]),
            sample(ADD, ["assert 1 + 1 == 2"]),
            sample(ADD, ["assert isinstance(1, int)"]),
        ]
    )
    assert [result.value for result in graded] == [1.0, 0.0, None, None, None, None]
    for result, text in zip(graded[2:], ("no_such_module", "no parameters", "nothing that", "nothing that"), strict=True):
        assert text in (result.error or "")


BELOW = """
from roll.graders.code_judge import _run_program, _sandbox
from roll.graders.sandbox.usage import Limits
sandbox = _sandbox('built-in')
source = '''
import only_here, pathlib
if "private" in "%s": pathlib.Path("/tmp/mine").write_text("x")
try: pathlib.Path(only_here.__file__).write_text("VALUE = 6")
except OSError: print(only_here.VALUE)
''' % sandbox.in_force
print(_run_program(sandbox, {"source": source}, b"", Limits()).output.decode())
sandbox.close()
"""


def test_where_python_lies_below_tmp_its_packages_are_there() -> None:
    """A program's own /tmp must not hide them, and must not make them writable."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # programs are nobody's
        run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
        (packages,) = Path(folder).glob("lib/python3*/site-packages")
        (packages / "only_here.py").write_text("VALUE = 5")
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = run([f"{folder}/bin/python", "-c", BELOW], env=paths, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.strip() == "5", done.stderr
        assert (packages / "only_here.py").read_text() == "VALUE = 5"


def test_a_machine_whose_system_calls_are_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    with pytest.raises(sandbox.SandboxFailed, match=r"on x86_64 and aarch64, not on riscv64; give reward_args.code_url"):
        sandbox.Sandbox()


def test_a_sandbox_that_fails_leaves_no_descriptor_open() -> None:
    shut_in = sandbox.Sandbox()
    code_judge._run_program(shut_in, {"source": "pass"}, b"", Limits())
    before = len(os.listdir("/proc/self/fd"))
    shut_in._process.kill()
    shut_in._process.wait()
    for _ in range(3):
        with pytest.raises(sandbox.SandboxFailed, match="forker"):
            code_judge._by_tester(shut_in, {"source": ADD, "tests": {"cases": []}, "go_on": False}, Limits())
    assert len(os.listdir("/proc/self/fd")) <= before  # other tests' garbage may close some
    shut_in.close()
