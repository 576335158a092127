"""Plain lines when nobody watches, a view that survives logging when somebody does."""

import io
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from roll.core.configs.sizes import duration
from roll.core.record.estimates import Validated
from roll.core.record.run_progress import RoleLine
from roll.reports.display import Display, RunSnapshot, draw, sparkline
from roll.reports.printed_summary import print_summary
from roll.reports.verdict import Verdict

SNAPSHOT = RunSnapshot(
    step=12,
    max_steps=60,
    elapsed_s=42.0,
    eta_s=168.0,
    reward=0.4312,
    validation=[Validated(0, 0.31), Validated(10, 0.55)],
    staleness_now=0.4,
    staleness_bound=1,
    tokens_per_s=1234.5,
    roles=[
        RoleLine("actor_train", "waiting for input", "12 of 64 groups [v3]", 3.1),
        RoleLine("actor_infer", "processing", "", 0.2),
    ],
    groups={"admitted": 100, "trained": 96, "dropped": 4},
)


def console(terminal, width=110):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=40, color_system=None)


def text(rich_console):
    return rich_console.file.getvalue()


def test_plain_mode_prints_a_line_a_step_and_a_validation_not_a_refresh():
    out = console(terminal=False)
    display = Display(out)
    for _ in range(5):
        display.update(SNAPSHOT)
    display.update(replace(SNAPSHOT, elapsed_s=50.0, validation=[*SNAPSHOT.validation, Validated(12, 0.6)]))
    display.step(replace(SNAPSHOT, step=60, eta_s=None, validation=[], reward=None, staleness_now=None, tokens_per_s=None))
    display.note("checkpoint [step-60] written")
    display.close()
    assert text(out).splitlines() == [
        "step 12/60  reward 0.431  validation 0.550 (step 10)  staleness 0.40/1  1,234 tokens/s  elapsed 42.0 s  left 2 min 48 s",
        "step 12/60  reward 0.431  validation 0.600 (step 12)  staleness 0.40/1  1,234 tokens/s  elapsed 50.0 s  left 2 min 48 s",
        "step 60/60  elapsed 42.0 s",
        "checkpoint [step-60] written",
    ]


def test_logging_steps_thins_out_the_lines_but_never_a_validation():
    out = io.StringIO()
    display = Display(Console(file=out, width=200), live=False, logging_steps=5)
    for step in range(13):
        snapshot = RunSnapshot(step=step, max_steps=12, validation=[Validated(7, 0.5)] if step >= 7 else [])
        if step:
            display.step(snapshot)
        display.update(snapshot)
    assert steps_of(out.getvalue()) == [0, 5, 7, 10, 12]


def test_what_lasts_long_has_a_line_now_and_then():
    """Minutes without one look like a run that hangs. More and more seldom, until something is reached."""
    out = io.StringIO()
    display = Display(Console(file=out, width=200), live=False)
    for second in range(1000):
        display.update(RunSnapshot(step=0, max_steps=5, elapsed_s=second, roles=[RoleLine("validate", "busy", "", second)]))
    display.step(RunSnapshot(step=1, max_steps=5, elapsed_s=1000))
    display.update(RunSnapshot(step=1, max_steps=5, elapsed_s=1059, roles=[RoleLine("validate", "busy", "", 1)]))
    display.update(RunSnapshot(step=1, max_steps=5, elapsed_s=1060, roles=[RoleLine("validate", "busy", "", 2)]))
    lines = out.getvalue().splitlines()
    assert lines[1] == "step 0/5  validate busy for 1 min 00 s  elapsed 1 min 00 s"
    elapsed = [line.rpartition("elapsed ")[2] for line in lines]
    assert elapsed == ["0.0 s", *(f"{n} min 00 s" for n in (1, 2, 4, 8, 16)), "16 min 40 s", "17 min 40 s"]


def test_no_step_is_skipped_however_fast_they_come():
    """Three steps between two refreshes, and the last of the run, after which no refresh comes."""
    out = io.StringIO()
    display = Display(Console(file=out, width=200), live=False)
    display.update(RunSnapshot(step=0, max_steps=5))
    for step in (1, 2, 3):
        display.step(RunSnapshot(step=step, max_steps=5, validation=[Validated(2, 0.5)] if step >= 2 else []))
    display.update(RunSnapshot(step=3, max_steps=5, validation=[Validated(2, 0.5)]))
    for step in (4, 5):
        display.step(RunSnapshot(step=step, max_steps=5, validation=[Validated(2, 0.5)]))
    display.close()
    assert steps_of(out.getvalue()) == [0, 1, 2, 3, 4, 5]


def steps_of(text: str) -> list[int]:
    return [int(line.split()[1].split("/")[0]) for line in text.splitlines()]


class Terminal:
    """A screen that folds lines at its width, and folds them anew when the width changes, as terminals do."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines = [""]
        """As they were written, unfolded; a row of the screen is a part of one."""
        self.row = self.column = 0

    def rows(self) -> list[tuple[int, int]]:
        """Line and first cell of each row."""
        width = self.width
        return [(i, at) for i, line in enumerate(self.lines) for at in range(0, max(len(line), 1), width)]

    def resize(self, width: int) -> None:
        line, at = self.rows()[self.row]
        at += self.column
        self.width = width
        rows = self.rows()
        self.row = max(i for i, (each, start) in enumerate(rows) if each == line and start <= max(at - 1, 0))
        self.column = min(at - rows[self.row][1], width)

    def write(self, text: str) -> None:
        for found in re.finditer(r"\x1b\[(\??\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+", text):
            self._do(found)

    def _do(self, found: re.Match[str]) -> None:
        count, kind = found.group(1), found.group(2)
        line, at = self.rows()[self.row]
        if found.group() == "\n":
            self.row += 1
            self.column = 0
            if self.row == len(self.rows()):
                self.lines.append("")
        elif found.group() == "\r":
            self.column = 0
        elif kind == "A":
            self.row = max(0, self.row - int(count))
        elif kind == "B":
            self.row = min(len(self.rows()) - 1, self.row + int(count))
        elif kind == "K":
            # A row that is cleared ends its line there: what is folded below it becomes a line of its own.
            whole = self.lines[line]
            parts = [part for part in (whole[:at], "", whole[at + self.width :])]
            self.lines[line : line + 1] = [part for i, part in enumerate(parts) if part or i == 1]
        elif kind is None:
            at += self.column
            whole = self.lines[line]
            self.lines[line] = whole[:at].ljust(at) + found.group() + whole[at + len(found.group()) :]
            self.column += len(found.group())

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        return [self.lines[line][at : at + self.width].rstrip() for line, at in self.rows()]


@pytest.mark.parametrize("widths", [(110, 60), (110, 40, 90), (80, 110), (100, 99, 50, 70)])
@pytest.mark.parametrize("by", ["update", "note"])
def test_a_resize_leaves_no_stale_block(widths, by):
    screen = Terminal(widths[0])
    out = Console(file=screen, force_terminal=True, width=widths[0], height=60, color_system=None)
    display = Display(out, live=True)
    display.note("before")
    display.update(SNAPSHOT)
    for width in widths[1:]:
        screen.resize(width)
        out.width = width
        display.update(SNAPSHOT) if by == "update" else display.note(f"now {width}")
    shown = screen.shown()
    display.close()
    assert sum("actor_train" in row for row in shown) == 1, "\n".join(shown)
    assert sum("step 12/60" in row for row in shown) == 1, "\n".join(shown)
    assert shown[0] == "before"
    assert by == "update" or all(f"now {width}" in shown for width in widths[1:])
    assert not any("actor_train" in row for row in screen.shown())


def test_a_message_in_a_pipe_is_one_line_however_long(tmp_path):
    reason = "the engine died: " + "a long reason " * 20
    out = console(terminal=False, width=60)
    print_summary({"status": "failed", "reason": reason.strip(), "warnings": ["w" * 200]}, tmp_path, out)
    lines = text(out).splitlines()
    assert any(line == f"{'run':<17}failed: {reason.strip()}" for line in lines)
    assert f"{'warning':<17}{'w' * 200}" in lines
    assert "\x1b" not in text(out)


@pytest.mark.parametrize(("terminal", "ci", "live"), [(True, "", True), (True, "true", False), (False, "", False)])
def test_the_view_is_for_terminals_outside_ci(monkeypatch, terminal, ci, live):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("TERM", "xterm-256color")
    out = console(terminal)
    display = Display(out)
    display.update(SNAPSHOT)
    shown = text(out)
    display.close()
    assert ("actor_train" in shown) is live


def test_the_view_shows_every_figure_and_what_each_role_waits_for():
    out = console(terminal=True)
    out.print(draw(SNAPSHOT))
    shown = text(out)
    for figure in ("step 12/60", "2 min 48 s left", "0.431", "0.550", "▃▅", "0.40 / 1", "1,234", "admitted 100", "dropped 4"):
        assert figure in shown
    waiting = next(line for line in shown.splitlines() if "actor_train" in line)
    assert all(part in waiting for part in ("waiting for input", "3.1 s", "12 of 64 groups [v3]"))
    out.print(draw(RunSnapshot(step=0, max_steps=0)))  # before anything is known


def test_the_view_and_plain_lines_have_the_verdict_what_was_cut_off_and_what_was_not_judged():
    lost = Verdict("not judged", "73 of 128 validation rollouts of step 12 have no reward")
    seen = replace(SNAPSHOT, cut=0.25, verdict=lost, validation=[Validated(0, 0.3), Validated(12, None, 0.9, 73, 128)])
    out = console(terminal=True, width=140)
    out.print(draw(seen))
    for part in (lost.line, "25%", "–, score 0.900, 73 of 128 not judged"):
        assert part in text(out)
    out = console(terminal=False, width=200)
    display = Display(out)
    display.update(seen)
    display.update(seen)
    display.step(replace(seen, step=60))
    display.step(replace(seen, step=60, verdict=Verdict("learning", "reward 0.1 → 0.5")))
    display.step(replace(seen, step=60, verdict=Verdict("too early", "1 step so far")))
    told = text(out).splitlines()
    assert [line for line in told if not line.startswith("step")] == [lost.line, "learning: reward 0.1 → 0.5"], "when it changes"
    assert "validation –, score 0.900, 73 of 128 not judged (step 12)  cut off 25%" in told[0]


def test_log_lines_go_above_the_view_and_the_handlers_are_put_back(monkeypatch):
    screen, stderr = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    handler = logging.StreamHandler()  # made before the view, so it holds the stream itself
    logger = logging.getLogger("tests.display")
    logger.addHandler(handler)
    try:
        display = Display(Console(file=screen, force_terminal=True, width=80, height=40, color_system=None), live=True)
        display.update(SNAPSHOT)
        logger.warning("weights are late [3 s]")
        print("printed", file=sys.stderr)
        assert "weights are late [3 s]\n" in screen.getvalue() and "printed\n" in screen.getvalue()
        assert stderr.getvalue() == ""
        display.close()
        display.close()
        assert sys.stderr is stderr and handler.stream is stderr
        logger.warning("after")
        assert stderr.getvalue() == "after\n"
    finally:
        logger.removeHandler(handler)


def test_summary_names_outcome_figures_and_places(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    summary = {
        "status": "failed",
        "reason": "actor_infer died [rank 0]",
        "verdict": {"kind": "stopped", "text": "failed; until then learning"},
        "prompts_skipped": {"too_long": 7},
        "steps": 60,
        "wall_s": 181.2,
        "validation": [Validated(0, 0.31, 0.31)._asdict(), Validated(60, 0.79, 0.5, 2, 128)._asdict()],
        "groups": {"admitted": 2000, "trained": 1920, "buffered": 0, "in_flight": 0, "dropped": {"stale": 3, "difficulty": 77}},
        "staleness": {"bound": 1, "max": 1, "mean": 0.43, "token_mean": 0.4, "histogram": {"0": 1}},
        "idle_share": {"actor_train": 0.12, "actor_infer": 0.08},
        "weight_updates": {"count": 60, "bytes": 1, "pause_s_mean": 0.012, "pause_s_max": 0.031},
        "throughput": {"samples_per_s": 85.1, "response_tokens_per_s": 1234.5},
    }
    out = console(terminal=False, width=60)
    print_summary(summary, tmp_path, out)
    shown = text(out)
    assert f"roll ui {tmp_path}\n" in shown  # unbroken
    flat = " ".join(shown.split())
    for part in (
        "failed: actor_infer died [rank 0]",
        "60 in 3 min 01 s",
        "0.310 (step 0) → 0.790, score 0.500, 2 of 128 not judged (step 60)",
        "verdict stopped: failed; until then learning",
        "prompts left out too_long 7",
        "80 dropped (stale 3, difficulty 77)",
        "mean 0.43, max 1, bound 1",
        "actor_train 12%",
        "pause mean 12 ms, max 31 ms",
        "metrics.jsonl",
    ):
        assert part in flat
    assert "learning_curve.png" not in flat
    print_summary({"status": "interrupted"}, tmp_path, out)  # a run that ended before its first step


def test_durations_and_sparks():
    assert [duration(s) for s in (0, 59.94, 59.96, 185, 3599.7, 7449)] == [
        "0.0 s",
        "59.9 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 00 min",
        "2 h 04 min",
    ]
    assert sparkline([0.0, 0.5, 0.99, 1.0, -0.1]) == "▁▅██▁"


UNREAD = """
from pathlib import Path
from roll.reports.display import Display, RunSnapshot
from roll.reports.printed_summary import print_summary
display = Display(live=False)
for step in (1, 2):
    display.step(RunSnapshot(step=step, max_steps=2))
print("a reward's own words")
print_summary({"status": "finished"}, Path("run"))
"""


def test_a_run_goes_on_when_nobody_reads_what_it_prints():
    reader, unread = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-c", UNREAD], stdout=unread, stderr=subprocess.PIPE, text=True)
    os.close(unread)
    assert (ended.returncode, ended.stderr.count("goes on without it")) == (0, 1), ended.stderr
