"""What CI does with a few tests that failed: once more, alone, and by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "failed_again.py"
TESTS = """
import pathlib, pytest

def second_time(name):
    there = pathlib.Path(name).exists()
    pathlib.Path(name).touch()
    return there

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("text", ["a b", "]@x"])
def test_starved(text):
    assert second_time(text[-1])

@pytest.mark.xdist_group("tests/of_a_file.py")
def test_starved_too():
    assert second_time("too")

def test_good():
    pass
"""
BROKEN = "\n\ndef test_broken():\n    assert False\n"


def again(folder: Path, tests: str, most: int) -> tuple[int, str]:
    (folder / "tools").mkdir()
    shutil.copy(TOOL, folder / "tools")
    (folder / "test_some.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    first = [sys.executable, "-m", "pytest", "-q", "-n", "1", "--dist", "loadgroup"]
    assert subprocess.run(first, cwd=folder, capture_output=True, timeout=60).returncode == 1
    second = [sys.executable, "tools/failed_again.py", str(most)]
    done = subprocess.run(second, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_what_passes_alone_is_named(tmp_path: Path) -> None:
    code, said = again(tmp_path, TESTS, 3)
    assert code == 0 and "3 passed" in said, said
    assert "failed beside others, and passed alone: test_some.py::test_starved[]@x]\n" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "says"),
    [(4, "failed, and failed again: test_some.py::test_broken\n"), (3, "4 tests failed; up to 3 are run again\n")],
)
def test_what_is_broken_stays_a_failure(tmp_path: Path, most: int, says: str) -> None:
    code, said = again(tmp_path, TESTS + BROKEN, most)
    assert code == 1 and says in said, said
    assert most == 3 or "passed alone: test_some.py::test_starved_too\n" in said, said
