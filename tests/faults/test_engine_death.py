"""Both engines are lost, one by `kill -9`, one by standing still: the run waits for their successors and loses nothing."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = pytest.mark.ray


@pytest.mark.timeout(600)  # two engines start twice
def test_engines_that_die_or_hang_are_replaced_and_no_group_is_lost_or_doubled(launch, accounts):
    run = launch(
        "num_gpus_per_node=3",
        "actor_infer.device_mapping=1-2",
        "engine_health_interval_s=0.5",
        "engine_health_timeout_s=5",
        local=False,
    )
    run.wait_for_steps(3, 120)
    killed, stopped = run.worker("actor_infer-0"), run.worker("actor_infer-1")
    os.kill(killed, signal.SIGKILL)
    os.kill(stopped, signal.SIGSTOP)
    assert run.end(150) == 0, run.output
    summary = run.summary()
    print(f"recovered after {summary['engine_recovery_s']} s")
    # The steps that were left may have been done by the first of them alone.
    assert summary["engine_restarts"] == 2 and len(summary["engine_recovery_s"]) in (1, 2)
    assert "Traceback" not in run.output, run.output
    accounts(run.dir)
    run.wait_for_family_to_end()


@pytest.mark.timeout(600)
def test_an_engine_that_dies_while_the_trainer_has_its_device_is_replaced(launch, accounts):
    """Trainer and engine share a device and take turns: it dies in the trainer's, and is to be woken a moment later."""
    run = launch("actor_infer.device_mapping=0", "actor_train.worker_cls=fault_trainers.StuckInStep", local=False)
    run.wait_for("the stuck step", (run.folder.parent / "stuck").exists)
    os.kill(run.worker("actor_infer-0"), signal.SIGKILL)
    (run.folder.parent / "released").touch()
    assert run.end(150) == 0, run.output
    assert run.summary()["engine_restarts"] == 1
    accounts(run.dir)
