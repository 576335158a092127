"""Every role, killed or stopped, in RLVR and agentic runs on Ray: engines and coordinators are replaced, the death of any other
worker ends the run with a reason that names it, and what ended so is resumed to the end."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

AUTO = "resume_from_checkpoint=auto"
SILENCE_S = 15
OVERRIDES = (f"heartbeat_timeout={SILENCE_S}", "rpc_timeout=600", "save_steps=1", "max_ckpt_to_keep=2", AUTO)
REFERENCE = ("num_gpus_per_node=3", "use_kl_loss=true", "kl_loss_coef=0.01", "reference.device_mapping='2'")
CRITIC = (
    "num_gpus_per_node=3",
    "adv_estimator=gae",
    "critic.device_mapping='2'",
    "critic.training_args.learning_rate=0.001",
    "critic.training_args.lr_scheduler_type=constant",
    "critic.training_args.per_device_train_batch_size=16",
)
SIGNALS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
END_OF_RUN = {
    "rlvr/actor_train-0": (),
    "rlvr/reference-0": REFERENCE,
    "rlvr/critic-0": CRITIC,
    "rlvr/rewards.even-0": (),
    "agentic/actor_train-0": (),
}
REPLACED = ("rlvr/actor_infer-0", "agentic/actor_infer-0", "agentic/environments-0")


@SIGNALS
@pytest.mark.parametrize("who", END_OF_RUN)
def test_the_run_ends_with_a_reason_and_is_resumed(launch, row, verified, failed_in_one_line, who, number):
    pipeline, _, worker = who.partition("/")
    line = row(pipeline, worker, number.name)
    given = dict(agentic=pipeline == "agentic")
    run = launch("max_steps=100000", *OVERRIDES, *END_OF_RUN[who], local=False, **given)
    run.wait_for_steps(2, 400)
    pid = run.worker(worker)
    line.begins()
    os.kill(pid, number)
    reason = failed_in_one_line(run, f"worker {worker}")
    line.ends("the run ended")
    assert "died" in reason if number == signal.SIGKILL else f"has not answered for {SILENCE_S} s (heartbeat_timeout)" in reason
    verified(run.dir)
    run.wait_for_family_to_end()

    steps = run.summary()["steps"]
    assert steps >= 2
    again = launch(f"max_steps={steps + 4}", *OVERRIDES, *END_OF_RUN[who], **given)
    assert again.end(400) == 0, again.output
    assert "Traceback" not in again.output, again.output
    summary = again.summary()
    assert (summary["status"], summary["steps"]) == ("finished", steps + 4)
    # The last step's checkpoint may have waited for that of the step before, which was being written.
    assert summary["resumed_from_step"] >= steps - 2
    verified(again.dir)
    line.outcome = f"ended, naming {worker}; resumed from step {summary['resumed_from_step']} of {steps}, finished"


@SIGNALS
@pytest.mark.parametrize("who", REPLACED)
def test_the_worker_is_replaced_and_the_run_finishes(launch, row, verified, who, number):
    pipeline, _, worker = who.partition("/")
    line = row(pipeline, worker, number.name)
    run = launch("max_steps=40", *OVERRIDES, local=False, agentic=pipeline == "agentic")
    run.wait_for_steps(2, 400)
    pid = run.worker(worker)
    line.begins()
    os.kill(pid, number)

    def successor() -> bool:
        return any(title.startswith(f"ray::{worker}") and other != pid for other, title in run.look_up_family().items())

    run.wait_for("successor", successor, 240)
    steps = len(run.steps())
    run.wait_for_steps(min(40, steps + 2), 240)
    line.ends("replaced")
    assert run.end(400) == 0, run.output
    assert "Traceback" not in run.output, run.output
    summary = run.summary()
    assert (summary["status"], summary["steps"]) == ("finished", 40)
    deaths = "environment_worker_deaths" if worker.startswith("environments") else "engine_restarts"
    assert summary[deaths] == 1, summary
    verified(run.dir)
    run.wait_for_family_to_end()
    line.outcome = f"replaced once; finished, {sum(summary['groups']['dropped'].values())} groups dropped by filter or fault"
