"""A second start of the same command while the first one lives: refused in one line, and the first one is not disturbed."""

from __future__ import annotations

import json
import os
import signal

import pytest

from roll.core.record.run_lock import read_owner

AUTO = "resume_from_checkpoint=auto"


def check_refused(second, first) -> None:
    assert second.end() == 2, second.output
    (line,) = [line for line in second.output.splitlines() if line.startswith("error: ")]
    assert f"process {first.process.pid} on {os.uname().nodename}, since " in line and "exp_name" in line
    assert "Traceback" not in second.output and "moved" not in second.output


@pytest.mark.parametrize("overrides", [(AUTO,), ()], ids=["resuming", "anew"])
def test_a_second_start_is_refused(launch, accounts, overrides):
    first = launch(*overrides)
    first.wait_for_steps(2)
    second = launch(*overrides)
    check_refused(second, first)
    assert first.end() == 0, first.output
    assert not (first.folder / "run.old-1").exists()
    accounts(first.dir)


def test_a_run_that_was_asleep_while_another_took_its_folder_over(launch, accounts):
    """The lock is lost, as on a network file system: what the sleeper has written since counts for nothing."""
    sleeper = launch(AUTO)
    sleeper.wait_for_steps(3)
    sleeper.signal(signal.SIGSTOP)
    (sleeper.folder / ".run.lock").unlink()
    other = launch(AUTO, "max_steps=100000")
    other.wait_for("another owner", lambda: read_owner(sleeper.folder / ".run.owner.json").pid == other.process.pid)
    other.wait_for_steps(len(other.steps()) + 3)
    sleeper.signal(signal.SIGCONT)
    assert sleeper.end() == 1, sleeper.output
    errors = [line for line in sleeper.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, sleeper.output
    assert "another process writes to it" in errors[0] or "was taken over by process" in errors[0]
    assert "Traceback" not in sleeper.output
    assert other.summary()["status"] == "running"
    other.wait_for_steps(len(other.steps()) + 3)
    other.signal(signal.SIGTERM)
    assert other.end() == 130, other.output
    tokens = {json.loads(path.read_text())["token"] for path in other.dir.glob("checkpoints/step-*/manifest.json")}
    ids = [json.loads(row)["group_id"] for row in (other.dir / "groups.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) > 0
    assert max(tokens) == read_owner(sleeper.folder / ".run.owner.json").token
