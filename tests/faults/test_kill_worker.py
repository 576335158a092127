"""`kill -9` of worker processes: the run goes on; or, where it may not, it ends soon, fails, and says whose death it was."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytestmark = pytest.mark.ray


def test_a_reward_worker_and_the_trainer_die_and_the_run_goes_on(launch, accounts):
    run = launch(local=False)
    run.wait_for_checkpoint(2)
    os.kill(run.worker("rewards.even-0"), signal.SIGKILL)
    trainer = run.worker("actor_train-0")
    os.kill(trainer, signal.SIGKILL)
    assert run.end(150) == 0, run.output
    accounts(run.dir)
    summary = run.summary()
    (seconds,) = summary["trainer_recovery_s"]
    print(f"the trainer was back at step {summary['trainer_resumed_from'][0]} after {seconds:.1f} s")
    assert "worker actor_train-0 of role actor_train died" in run.output and "Traceback" not in run.output
    assert summary["trainer_resumed_from"][0] >= 2 and summary["trainer_resumed_from"][0] % 2 == 0
    assert (summary["engine_restarts"], summary["reward_worker_deaths"]) == (0, 1), "who can stay, stays"
    run.leaves_nothing()


def test_run_fails_soon_and_names_the_role(launch):
    role = "actor_infer"
    run = launch("max_steps=100000", "max_engine_restarts=0", "max_trainer_restarts=0", local=False)
    run.wait_for_steps(2, 120)
    os.kill(run.worker(f"{role}-0"), signal.SIGKILL)
    killed = time.monotonic()
    assert run.end(30) == 1, run.output
    print(f"{role}: the run ended {time.monotonic() - killed:.1f} s after the kill")
    summary = run.summary()
    assert summary["status"] == "failed"
    assert role in summary["reason"] and "died" in summary["reason"] and "\n" not in summary["reason"]
    errors = [line for line in run.output.splitlines() if line.startswith("error: ")]
    assert errors == [f"error: {summary['reason']}"]
    assert "Traceback" not in run.output, run.output
    assert summary["steps"] >= 2 and (run.dir / "learning_curve.png").exists()
    run.wait_for_family_to_end()
