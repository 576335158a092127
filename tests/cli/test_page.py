"""Lines that are too long for a terminal go on below their text; in a pipe nothing is folded."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from roll.cli.options import folded

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "roll.cli.main", "check", "--config_path", "pkg://qwen2.5-7B-rlvr_megatron"]


def environment() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "80", "TERM": "xterm"}


def on_a_terminal() -> list[str]:
    leader, follower = pty.openpty()
    process = subprocess.Popen(COMMAND, cwd=ROOT, env=environment(), stdout=follower, stderr=follower)
    os.close(follower)
    told = b""
    while True:
        try:
            part = os.read(leader, 1 << 16)
        except OSError:  # the last writer has closed it
            break
        if not part:
            break
        told += part
    os.close(leader)
    assert process.wait(60) == 0
    return told.decode().splitlines()


def in_a_pipe() -> list[str]:
    done = subprocess.run(COMMAND, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_a_plan_fits_80_columns_and_says_the_same():
    folded_page, page = on_a_terminal(), in_a_pipe()
    assert max(map(len, folded_page)) <= 80 < max(map(len, page))
    assert " ".join(" ".join(folded_page).split()) == " ".join(" ".join(page).split())
    (at,) = [i for i, line in enumerate(folded_page) if line.startswith("  bound ")]
    assert folded_page[at + 1].startswith(" " * 20) and folded_page[at + 1][20] != " "
    headings = [line for line in page if line and line[0] != " "]
    assert [line for line in folded_page if line and line[0] != " "] == headings


def test_a_line_goes_on_below_its_text():
    assert list(folded(["  depth      as few batches as keep it busy"], 32)) == [
        "  depth      as few batches as",
        "             keep it busy",
    ]
    assert list(folded(["  ! one two three four"], 16)) == ["  ! one two", "    three four"]
    assert list(folded(["short", "/a/path/that/has/no/spaces/at/all"], 10)) == ["short", "/a/path/that/has/no/spaces/at/all"]
