"""Ctrl-C and SIGTERM end a run after its step, with a checkpoint; resumed, it goes on as if nothing had been."""

from __future__ import annotations

import signal

import pytest

RESUME = "resume_from_checkpoint=auto"


def check_interrupted(run) -> int:
    """The step after which the run stopped."""
    assert run.end(30) == 130, run.output
    summary = run.summary()
    step = summary["steps"]
    assert (summary["status"], summary["reason"]) == ("interrupted", f"stopped by a signal after step {step}")
    assert run.steps() == list(range(1, step + 1))
    assert (run.dir / f"checkpoints/step-{step}/manifest.json").exists()
    assert "Traceback" not in run.output, run.output
    groups = summary["groups"]
    assert groups["admitted"] == sum(groups["dropped"].values()) + sum(groups[k] for k in ("trained", "buffered", "in_flight"))
    return step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_with_a_checkpoint_and_resumes(launch, accounts, number):
    # No checkpoint is due in the whole run: the one that is resumed from is that of the interruption.
    run = launch(RESUME, "save_steps=100")
    run.wait_for_steps(4)
    run.signal(number)
    step = check_interrupted(run)
    assert 4 <= step < 12
    resumed = launch(RESUME, "save_steps=100")
    assert resumed.end() == 0, resumed.output
    assert resumed.summary()["resumed_from_step"] == step
    accounts(resumed.dir)


def test_waits_for_the_checkpoint_that_is_being_written(launch):
    run = launch("actor_train.worker_cls=fault_trainers.SlowDisk")
    run.wait_for("the writing", (run.folder.parent / "writing").exists)
    run.signal(signal.SIGINT)
    run.wait_for("the answer to the signal", lambda: "once more to stop at once" in run.output)
    (run.folder.parent / "released").touch()
    check_interrupted(run)
    assert (run.dir / "checkpoints/step-2/manifest.json").exists()


def test_second_signal_gives_the_checkpoint_up_that_is_being_written(launch):
    run = launch("actor_train.worker_cls=fault_trainers.SlowDisk")
    run.wait_for("the writing", (run.folder.parent / "writing").exists)
    run.signal(signal.SIGINT)
    run.wait_for("the answer to the first signal", lambda: "once more to stop at once" in run.output)
    run.signal(signal.SIGINT)
    run.wait_for("the end of the run", lambda: run.summary()["status"] == "interrupted")
    (run.folder.parent / "released").touch()
    assert run.end(30) == 130, run.output
    assert "Traceback" not in run.output and "never retrieved" not in run.output, run.output
    assert not list((run.dir / "checkpoints").glob("step-*"))
    resumed = launch(RESUME, "max_steps=2")
    assert resumed.end() == 0, resumed.output
    assert resumed.summary()["resumed_from_step"] == 0


def test_second_signal_stops_at_once(launch):
    """Step 3 has begun and never ends: a first signal waits for it, a second one does not."""
    run = launch("actor_train.worker_cls=fault_trainers.StuckInStep")
    run.wait_for("the stuck step", (run.folder.parent / "stuck").exists)
    run.signal(signal.SIGINT)
    run.wait_for("the answer to the first signal", lambda: "once more to stop at once" in run.output)
    run.signal(signal.SIGINT)
    (run.folder.parent / "released").touch()
    assert run.end(30) == 130, run.output
    summary = run.summary()
    assert (summary["status"], summary["reason"]) == ("interrupted", "stopped at once by a signal after step 2")
    assert "Traceback" not in run.output


def test_signal_while_workers_start(launch):
    run = launch("actor_train.worker_cls=fault_trainers.SlowToStart")
    run.wait_for("start", (run.folder.parent / "starting").exists)
    run.signal(signal.SIGINT)
    (run.folder.parent / "released").touch()
    assert run.end(30) == 130, run.output
    assert run.summary()["status"] == "interrupted" and run.summary()["steps"] == 0
    assert "Traceback" not in run.output
