"""A full disk: one reason, exit code 1, and a summary that does not say "finished". A limit on file sizes stands for it."""

from __future__ import annotations

import asyncio
import json
import resource
import signal

import pytest
from safetensors import SafetensorError

from roll.core.record.journal import JournalFile
from roll.core.record.live_files import announce_running, write_summary
from roll.core.workers.workers import TrainWorker
from roll.reports.learning_curve import plot

AUTO = "resume_from_checkpoint=auto"


def test_a_run_ends_with_one_reason(launch):
    run = launch("max_steps=100000", "save_steps=100000", piped=True)
    run.wait_for_steps(2)
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (500, 500))
    assert run.end() == 1, run.output
    run.wait_for_output("error: ")
    (line,) = [line for line in run.output.splitlines() if line.startswith("error: ")]
    assert "File too large: '" in line and ".jsonl'" in line
    assert "Traceback" not in run.output and "During handling" not in run.output, run.output
    summary = run.summary()
    assert summary["status"] == "failed" and f"error: {summary['reason']}" == line
    for name in ("groups", "metrics", "samples"):
        assert len(list(JournalFile(run.dir / f"{name}.jsonl").rows())) > 0


def full(path, contents):
    raise OSError(28, "No space left on device", str(path))


def test_a_file_that_cannot_be_rewritten_is_not_truncated(tmp_path):
    """The picture of 70 KB meets a limit of 1 KB."""
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "critic/score/mean": 0.5}) + "\n")
    picture = tmp_path / "learning_curve.png"
    assert plot(tmp_path / "metrics.jsonl", picture, "a run")
    kept, limits = picture.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*learning_curve.png"):
            plot(tmp_path / "metrics.jsonl", picture, "another title")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert picture.read_bytes() == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learning_curve.png", "metrics.jsonl"]


def test_results_that_cannot_be_written_are_a_failure(tmp_path, monkeypatch):
    announce_running(tmp_path, "now")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    summary = {"status": "finished", "reason": "", "steps": 7}
    write_summary(tmp_path, summary)
    assert summary["status"] == "failed" and "No space left on device" in summary["reason"]
    assert json.loads((tmp_path / "summary.json").read_text()) == summary, "what was there keeps its place on the disk"


def test_a_checkpoint_that_cannot_be_written_names_its_folder(tmp_path):
    class Full:
        def snapshot(self):
            return "the weights"

        def write(self, snapshot, directory):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    worker = TrainWorker.__new__(TrainWorker)
    worker.strategy = Full()
    worker.snapshot()
    with pytest.raises(OSError, match=f"cannot be written: {tmp_path}: .*No space left on device"):
        asyncio.run(worker.write(str(tmp_path)))


def test_a_disk_that_is_full_while_a_checkpoint_is_written_behind_ends_the_run(launch, tmp_path):
    """The journals have room, the optimiser has none."""
    run = launch("rollout_log_per_step=1", "actor_train.worker_cls=fault_trainers.SlowDisk", piped=True)
    run.wait_for("the writing", (tmp_path / "writing").exists)
    run.wait_for_steps(3)
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
    (tmp_path / "released").touch()
    assert run.end() == 1, run.output
    run.wait_for_output("error: ")
    (line,) = [line for line in run.output.splitlines() if line.startswith("error: ")]
    assert f"the checkpoint cannot be written: {run.dir}/checkpoints/.step-2." in line and "File too large" in line
    assert "Traceback" not in run.output and "never retrieved" not in run.output, run.output
    assert run.summary()["status"] == "failed" and not list((run.dir / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_killed_run_leaves_no_summary_of_an_earlier_one(launch, number):
    first = launch("max_steps=2")
    assert first.end() == 0 and first.summary()["status"] == "finished"
    second = launch("max_steps=100000", AUTO)
    second.wait_for_steps(4)
    running = second.summary()
    assert (running["status"], running["process"]["pid"]) == ("running", second.process.pid)
    second.signal(number)
    assert second.end() == -number
    summary = second.wait_for_epitaph()
    assert summary["status"] == "failed" and f"process {second.process.pid}" in summary["reason"]
    second.wait_for_output(f"error: {summary['reason']}")
