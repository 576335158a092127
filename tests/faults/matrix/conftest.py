"""The table of the matrix: what each fault led to, and how long it took; printed when all tests are over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked import WHOLE_WORKERS

from roll.cli.verify import read_run, violations

ROWS = pytest.StashKey[list["Row"]]()
SECOND_USES = ("test_second_run.py", "test_recipes.py", "test_ray_joined.py")


@dataclass
class Row:
    """A line of the table. It says "not as promised" until the test that owns it has said something better."""

    pipeline: str
    role: str
    fault: str
    outcome: str = "not as promised"
    seconds: float | None = None
    began: float = 0.0

    def begins(self) -> None:
        """The fault happens now."""
        self.began = time.monotonic()

    def ends(self, outcome: str) -> None:
        """What became of it, and that this is when it did."""
        self.seconds = time.monotonic() - self.began
        self.outcome = outcome


@pytest.fixture(autouse=True)
def whole_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's seconds are those of users: Ray starts its workers as it does."""
    monkeypatch.setenv(WHOLE_WORKERS, "1")


@pytest.fixture
def row(request: pytest.FixtureRequest):
    """`row(pipeline, role, fault)`: a new line of the table."""
    rows = request.config.stash.setdefault(ROWS, [])

    def new(pipeline: str, role: str, fault: str) -> Row:
        rows.append(Row(pipeline, role, fault))
        return rows[-1]

    return new


def check(run_dir: Path) -> None:
    """That the independent checker finds no promise broken."""
    assert list(violations(read_run(run_dir))) == []


@pytest.fixture(scope="session")
def verified():
    return check


def check_one_line(run, reason_of: str = "") -> str:
    """The run failed, and said so in one line, which is also the summary's reason. Returns it."""
    code = run.end(240)
    assert code == 1, f"exit code {code}:\n{run.output}"
    summary = run.summary()
    assert summary["status"] == "failed" and reason_of in summary["reason"], summary["reason"]
    run.wait_for_output("error: ")
    assert [line for line in run.output.splitlines() if line.startswith("error: ")] == [f"error: {summary['reason']}"]
    assert "Traceback" not in run.output, run.output
    return str(summary["reason"])


@pytest.fixture(scope="session")
def failed_in_one_line():
    return check_one_line


def second_uses(terminalreporter) -> list[Row]:
    """Tests of `make test` that belong into the table: they say in their name what is done again, and what comes of it."""
    found = []
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if report.when == "call" and report.nodeid.partition("::")[0].endswith(SECOND_USES):
                said = report.nodeid.partition("::test_")[2].replace("_", " ") if outcome == "passed" else "not as promised"
                found.append(Row("rlvr", "second use", Path(report.nodeid.partition("::")[0]).stem, said, report.duration))
    return found


def pytest_terminal_summary(terminalreporter, config) -> None:
    rows = config.stash.get(ROWS, []) + second_uses(terminalreporter)
    if not rows:
        return
    terminalreporter.section("fault matrix: seconds from the fault to the run's end, or to the steps of a successor")
    layout = "{:<9}{:<32}{:<34}{:<84}{:>8}"
    terminalreporter.line(layout.format("pipeline", "role", "fault", "outcome", "seconds"))
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        terminalreporter.line(layout.format(row.pipeline, row.role, row.fault, row.outcome, seconds))
