"""Whatever somebody else wrote, a terminal shows it and does not obey it."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from roll.cli.train import _Formatter
from roll.core.configs.problems import Problem
from roll.core.configs.redact import visible
from roll.core.data.sample import Turn
from roll.core.record.run_progress import RoleLine
from roll.envs.check import render
from roll.reports.display import Display, RunSnapshot, draw
from roll.reports.printed_summary import print_summary

STEERING = {
    "clear": "\x1b[2J",
    "colour": "\x1b[31m",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\",
    "one-byte escape": "\x9b31m",
    "carriage return": "right\rwrong",
    "backspace": "no\x08\x08yes",
    "right to left": "\u202eevil",
    "isolate": "\u2066x\u2069",
    "zero width": "a\u200bb",
    "NUL": "\x00",
    "bell": "\x07",
    "vertical tab": "\x0b",
    "half a character": "\ud800",
    "line separator": "\u2028",
    "delete": "\x7f",
}


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_everywhere(text: str, tmp_path: Path) -> None:
    turn = Turn(f"a\n{text}\tb", f"{text}", 0.0, "", True, True, 1)
    shown = [
        visible(text),
        render([turn], "terminated", True, text),
        str(Problem(text, text, text, text, text)),
        _Formatter("%(message)s").format(logging.LogRecord("x", logging.WARNING, "", 0, "%s", (text,), None)),
    ]
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=False, width=500)
    Display(console, live=False).note(text)
    print_summary({"status": "failed", "reason": text}, tmp_path, console)
    console.print(draw(RunSnapshot(1, 2, roles=[RoleLine("a", "waiting", text, 1.0)])))
    shown.append(sink.getvalue())
    for each in shown:
        assert all(character.isprintable() or character in "\n\t" for character in each), repr(each)
        each.encode()


def test_readable_text_is_left_alone() -> None:
    for text in ("hello", "é ü 漢字 العربية 😀", "a│b─c ☃", ""):
        assert visible(text) == text
    assert visible("a\nb\tc", keep="\n\t") == "a\nb\tc"
    assert visible("a\nb") == "a\\nb"
