"""A disk that is full, a folder that cannot be written to, no file descriptor left: one line, no traceback, and nothing is lost.

A limit on the size of files stands for the full disk. What failed is started again afterwards, without the fault, and finishes.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
from programs import obey_modes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AUTO = "resume_from_checkpoint=auto"
ENDLESS = ("max_steps=100000", AUTO)


def limited(limit: int, number: int):
    """For `launch(before=...)`: the process starts with this limit."""
    return lambda: resource.setrlimit(limit, (number, number))


def one_error(run, code: int) -> str:
    assert run.end(240) == code, run.output
    run.wait_for_output("error: ")
    (error,) = [text for text in run.output.splitlines() if text.startswith("error: ")]
    assert "Traceback" not in run.output and "During handling" not in run.output, run.output
    return error


@pytest.fixture
def finishes(launch, verified):
    """`finishes(since)`: the same command without the fault goes on from step `since` or a later one, to the end."""

    def finish(since: int, local: bool = True) -> None:
        last = launch(AUTO, "max_steps=16", local=local)
        assert last.end(400) == 0, last.output
        assert "Traceback" not in last.output
        summary = last.summary()
        assert (summary["status"], summary["steps"]) == ("finished", 16) and summary.get("resumed_from_step", 0) >= since
        assert last.steps() == list(range(1, 17))
        verified(last.dir)

    return finish


def test_no_room_for_the_configuration(launch, row, verified, finishes):
    line = row("rlvr", "disk full", "config.yaml")
    first = launch("max_steps=4")
    assert first.end() == 0, first.output
    kept = {path.name: path.read_bytes() for path in first.dir.iterdir() if path.is_file()}
    line.begins()
    run = launch(*ENDLESS, before=limited(resource.RLIMIT_FSIZE, 5000), piped=True)  # prompts have room
    assert "config.yaml cannot be written: File too large" in one_error(run, 2)
    line.ends("refused in one line")
    assert {path.name: path.read_bytes() for path in run.dir.iterdir() if path.is_file()} == kept
    verified(run.dir)
    finishes(4)
    line.outcome += "; the earlier run's files kept; resumed, finished"


def test_no_room_for_a_journal(launch, row, verified, failed_in_one_line, finishes):
    line = row("rlvr", "disk full", "journals")
    run = launch(*ENDLESS, "save_steps=2", piped=True)
    run.wait_for_checkpoint(4)
    line.begins()
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (500, 500))
    reason = failed_in_one_line(run, "File too large")
    line.ends("failed in one line")
    assert ".jsonl'" in reason or "checkpoints" in reason
    verified(run.dir)
    finishes(2)
    line.outcome += "; resumed, finished"


def test_no_room_for_a_checkpoint(launch, row, verified, failed_in_one_line, finishes):
    """The trainer's optimiser is the first file that is too large."""
    line = row("rlvr", "disk full", "a checkpoint")
    first = launch("max_steps=2")
    assert first.end() == 0, first.output
    line.begins()
    small = {"before": limited(resource.RLIMIT_FSIZE, 16_000), "piped": True}
    run = launch(*ENDLESS, "save_steps=1", "rollout_log_per_step=1", **small)  # the journals have room meanwhile
    reason = failed_in_one_line(run, "the checkpoint cannot be written: ")
    assert f"{run.dir}/checkpoints/.step-3" in reason and "File too large" in reason
    line.ends("failed in one line")
    assert [path.name for path in (run.dir / "checkpoints").glob("step-*")] == ["step-2"]
    verified(run.dir)
    finishes(2)
    line.outcome += "; no half checkpoint counts; resumed, finished"


def test_no_room_for_the_summary(launch, row, verified, failed_in_one_line, finishes):
    line = row("rlvr", "disk full", "summary.json")
    run = launch("max_steps=4", "actor_train.worker_cls=fault_trainers.StuckInEnd", AUTO, piped=True)
    run.wait_for("end of the steps", (run.folder.parent / "ended").exists)
    line.begins()
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (400, 400))
    (run.folder.parent / "released").touch()
    failed_in_one_line(run, "the results cannot be written")
    line.ends("failed in one line")
    verified(run.dir)
    finishes(4)
    line.outcome += "; all four steps kept; resumed, finished"


def read_only(folder: Path) -> None:
    for path in [folder, *(each for each in folder.rglob("*") if each.is_dir())]:
        path.chmod(0o555)


@pytest.fixture
def writable(tmp_path):
    """Makes the folders of the test writable again, at its end at the latest."""

    def make() -> None:
        for folder, _, _ in os.walk(tmp_path):
            os.chmod(folder, 0o755)

    yield make
    make()


def test_an_output_folder_that_cannot_be_written_to(launch, row, writable, finishes, tmp_path):
    line = row("rlvr", "read-only", "output_dir, from the start")
    (tmp_path / "output").mkdir(mode=0o555)
    line.begins()
    run = launch(*ENDLESS, before=obey_modes)
    error = one_error(run, 2)
    line.ends("refused in one line")
    assert "output_dir" in error and "Permission denied" in error
    assert not list((tmp_path / "output").iterdir())
    writable()
    finishes(0)
    line.outcome += "; finished when it could be written to"


def test_a_run_folder_that_becomes_read_only(launch, row, verified, failed_in_one_line, writable, finishes):
    line = row("rlvr", "read-only", "the run's folder, in the middle")
    run = launch(*ENDLESS, "save_steps=2", before=obey_modes)
    run.wait_for_checkpoint(4)
    line.begins()
    read_only(run.dir)
    failed_in_one_line(run, "Permission denied")
    line.ends("failed in one line")
    verified(run.dir)
    writable()
    finishes(4)
    line.outcome += "; resumed, finished"


@pytest.mark.parametrize(
    ("most", "local"), [(10, True), (32, True), pytest.param(40, False, marks=pytest.mark.ray)], ids=["10", "32", "40-ray"]
)
def test_few_descriptors_from_the_start(launch, row, finishes, most, local):
    """A run manages with them, or is refused before it begins."""
    line = row("rlvr", "descriptors", f"RLIMIT_NOFILE {most} from the start{'' if local else ', Ray'}")
    line.begins()
    run = launch("max_steps=4", local=local, before=limited(resource.RLIMIT_NOFILE, most), piped=True)
    code = run.end(240)
    line.ends("finished" if code == 0 else "refused in one line")
    assert (code == 0) is (most == 32) and "Traceback" not in run.output, run.output
    if code:
        assert f"ulimit -n = {most}: is too few open files" in one_error(run, 2)
    finishes(0)
    line.outcome += "" if code == 0 else "; finished without the limit"


def exhaust(pid: int) -> None:
    """From now on the process can open nothing."""
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, free))


@pytest.mark.parametrize("local", [True, pytest.param(False, marks=pytest.mark.ray)], ids=["local", "ray"])
def test_no_descriptor_in_the_middle(launch, row, verified, failed_in_one_line, finishes, local):
    line = row("rlvr", "descriptors", f"exhausted in the middle{'' if local else ', Ray'}")
    run = launch(*ENDLESS, "save_steps=3", local=local, piped=True)
    run.wait_for_steps(1, 400)
    run.wait_for_checkpoint(3)
    run.look_up_family()
    line.begins()
    exhaust(run.process.pid)
    failed_in_one_line(run, "Too many open files")
    line.ends("failed in one line")
    verified(run.dir)
    if not local:
        run.wait_for_family_to_end()
    finishes(3)
    line.outcome += "; resumed, finished"


def test_no_descriptor_and_asked_to_stop(launch, row, verified, failed_in_one_line, finishes):
    """The last checkpoint cannot be written: the run has failed, and is resumed from the one before."""
    line = row("rlvr", "descriptors", "exhausted, then SIGTERM")
    run = launch(*ENDLESS, "save_steps=8", piped=True)
    run.wait_for_checkpoint(8)
    run.wait_for_steps(9)  # which is in no checkpoint
    line.begins()
    exhaust(run.process.pid)
    run.signal(signal.SIGTERM)
    failed_in_one_line(run, "Too many open files")
    line.ends("failed in one line")
    verified(run.dir)
    finishes(8)
    line.outcome += "; resumed, finished"
