"""Ctrl-C and SIGTERM end a run after its step, with a checkpoint; resumed, it goes on as if nothing had been. SIGTERM comes once,
and SIGKILL after it: one is enough."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import pytest

from roll.core.pipeline.lifecycle import patience_s
from roll.prepare.rlvr_run import RLVRRun

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
    run.wait_for("the answer to the signal", lambda: "once more to stop immediately" in run.output)
    (run.folder.parent / "released").touch()
    check_interrupted(run)
    assert (run.dir / "checkpoints/step-2/manifest.json").exists()


def test_second_signal_gives_the_checkpoint_up_that_is_being_written(launch):
    run = launch("actor_train.worker_cls=fault_trainers.SlowDisk")
    run.wait_for("the writing", (run.folder.parent / "writing").exists)
    run.signal(signal.SIGINT)
    run.wait_for("the answer to the first signal", lambda: "once more to stop immediately" in run.output)
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
    run.wait_for("the answer to the first signal", lambda: "once more to stop immediately" in run.output)
    run.signal(signal.SIGINT)
    (run.folder.parent / "released").touch()
    assert run.end(30) == 130, run.output
    summary = run.summary()
    assert (summary["status"], summary["reason"]) == ("interrupted", "stopped immediately by a signal after step 2")
    assert "Traceback" not in run.output


def test_signal_while_workers_start(launch):
    run = launch("actor_train.worker_cls=fault_trainers.SlowToStart")
    run.wait_for("start", (run.folder.parent / "starting").exists)
    run.signal(signal.SIGINT)
    (run.folder.parent / "released").touch()
    assert run.end(30) == 130, run.output
    assert run.summary()["status"] == "interrupted" and run.summary()["steps"] == 0
    assert "Traceback" not in run.output


def test_one_sigterm_gives_a_validation_up_and_leaves_a_checkpoint(launch, accounts):
    """That of version 6 is judged for ever."""
    endless = ("rewards.even.worker_cls=fault_workers.JudgesOneValidation", "rewards.even.timeout_s=1000")
    run = launch(*endless, "save_steps=100")
    run.wait_for("the validation", (run.folder.parent / "judging").exists)
    run.signal(signal.SIGTERM)
    check_interrupted(run)
    assert len(run.summary()["validation"]) == 1 and "the validation of version 6 is given up" in run.output
    resumed = launch(RESUME, "save_steps=100")
    assert resumed.end() == 0, resumed.output
    accounts(resumed.dir, validated=None)


def test_two_sigterms_are_one(launch):
    """`timeout` sends one to its child and one to the child's group. The step that is being trained is waited for."""
    run = launch("actor_train.worker_cls=fault_trainers.StuckInStep")
    run.wait_for("the stuck step", (run.folder.parent / "stuck").exists)
    run.signal(signal.SIGTERM)
    run.wait_for("the answer to the first signal", lambda: "SIGTERM: stopping within" in run.output)
    run.signal(signal.SIGTERM)
    (run.folder.parent / "released").touch()
    check_interrupted(run)


def test_one_sigterm_ends_a_run_whose_step_never_ends(launch):
    run = launch("actor_train.worker_cls=fault_trainers.StuckInStep", "stop_within_s=3")
    run.wait_for("the stuck step", (run.folder.parent / "stuck").exists)
    run.signal(signal.SIGTERM)
    assert run.end(30) == 130, run.output
    summary = run.summary()
    assert summary["status"] == "interrupted" and summary["reason"] == "stopped immediately by a signal after step 2"
    (run.folder.parent / "released").touch()
    resumed = launch(RESUME, "max_steps=4")
    assert resumed.end() == 0, resumed.output
    assert resumed.summary()["resumed_from_step"] == 2


def test_one_sigterm_ends_a_start_that_never_ends(launch):
    run = launch("actor_train.worker_cls=fault_trainers.SlowToStart", "stop_within_s=2")
    run.wait_for("start", (run.folder.parent / "starting").exists)
    run.signal(signal.SIGTERM)
    assert run.end(30) == 130, run.output
    assert run.summary()["status"] == "interrupted"


def test_the_time_to_stop_runs_while_the_loop_is_blocked(monkeypatch):
    """As by Ray's start, for as long as it takes on a busy machine."""
    begun = []
    monkeypatch.setattr("roll.core.pipeline.lifecycle.end_within", lambda seconds, *_: begun.append(seconds))
    run = object.__new__(RLVRRun)
    run.config, run.prepared, run._limited = SimpleNamespace(stop_within_s=7.0), SimpleNamespace(run_dir=None, lock=None), False

    async def main():
        run._heed_signals()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert begun == [7.0], "before the loop turns, and once"
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    monkeypatch.setattr(RLVRRun, "terminate", lambda self: None)
    asyncio.run(main())


@pytest.mark.parametrize(("limit", "waits"), [(25.0, 20.0), (90.0, 85.0), (6.0, 4.0)])
def test_of_the_time_to_stop_the_end_of_the_workers_has_its_share(limit, waits):
    assert patience_s(limit) == waits
