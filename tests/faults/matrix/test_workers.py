"""Every role, killed or stopped, in RLVR and agentic runs on Ray: a worker that rolls out is replaced, the trainer goes on from
its newest checkpoint, and the run finishes. Seconds are those from the fault until the run is two steps further than it was."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

SILENCE_S = 15
STEPS = 40
OVERRIDES = (f"heartbeat_timeout={SILENCE_S}", "rpc_timeout=600", "save_steps=2", "max_ckpt_to_keep=2", f"max_steps={STEPS}")
RANKS = ("num_gpus_per_node=3", "actor_train.device_mapping='0,2'", "actor_train.training_args.per_device_train_batch_size=8")
SHARED = ("actor_train.device_mapping='0,1'", "actor_train.training_args.per_device_train_batch_size=8")
REFERENCE = ("num_gpus_per_node=3", "use_kl_loss=true", "kl_loss_coef=0.01", "reference.device_mapping='2'")
LOG_PROB = ("num_gpus_per_node=3", "old_logprobs=recompute", "actor_log_prob.device_mapping='2'")
CRITIC = (
    "num_gpus_per_node=3",
    "adv_estimator=gae",
    "critic.device_mapping='2'",
    "critic.training_args.learning_rate=0.001",
    "critic.training_args.lr_scheduler_type=constant",
    "critic.training_args.per_device_train_batch_size=16",
)
SIGNALS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
TRAINER = {
    "rlvr/actor_train-0": (),
    "rlvr/actor_train-1 of 2": RANKS,
    "rlvr/actor_train-1 beside an engine": SHARED,
    "rlvr/actor_log_prob-0": LOG_PROB,
    "rlvr/reference-0": REFERENCE,
    "rlvr/critic-0": CRITIC,
    "agentic/actor_train-0": (),
}
ROLLOUTS = {
    "rlvr/actor_infer-0": "engine_restarts",
    "rlvr/rewards.even-0": "reward_worker_deaths",
    "agentic/actor_infer-0": "engine_restarts",
    "agentic/environments-0": "environment_worker_deaths",
    "programs/environments-0": "environment_worker_deaths",
    "programs/actor_infer-0": "engine_restarts",
}


@pytest.fixture
def strike(launch, row):
    """`strike(who, number, *overrides)`: a run whose worker got the signal and has a successor, two steps further; the worker's
    name, the steps before, and its line in the table."""

    def act(who: str, number: signal.Signals, *overrides: str):
        pipeline, _, role = who.partition("/")
        worker, line = role.split()[0], row(pipeline, role, number.name)
        run = launch(*OVERRIDES, *overrides, local=False, agentic=pipeline != "rlvr", programs=pipeline == "programs")
        run.wait_for_steps(4, 400)
        run.wait_for_checkpoint(4)
        pid, before = run.worker(worker), len(run.steps())
        line.begins()
        os.kill(pid, number)

        def successor() -> bool:
            return any(title.startswith(f"ray::{worker}") and other != pid for other, title in run.look_up_family().items())

        run.wait_for("successor", successor, 240)
        run.wait_for_steps(min(STEPS, max(before, len(run.steps())) + 2), 240)
        line.ends("not as promised")
        return run, worker, before, line

    return act


def finished(run, verified) -> dict:
    assert run.end(400) == 0, run.output
    assert "Traceback" not in run.output, run.output
    verified(run.dir)
    run.leaves_nothing()
    summary = run.summary()
    assert (summary["status"], summary["steps"]) == ("finished", STEPS)
    assert run.steps() == list(range(1, STEPS + 1)), "a step is lost or told twice"
    return summary


@SIGNALS
@pytest.mark.parametrize("who", TRAINER)
def test_the_trainer_goes_on_from_its_newest_checkpoint(strike, verified, who, number):
    run, worker, before, line = strike(who, number, *TRAINER[who])
    summary = finished(run, verified)
    assert f"worker {worker} of role {worker[:-2]} " in run.output
    if number == signal.SIGSTOP:
        assert f"has not answered for {SILENCE_S} s (heartbeat_timeout): it was killed" in run.output
    assert len(summary["trainer_recovery_s"]) == 1 and summary["engine_restarts"] == 0
    assert before - 4 <= summary["trainer_resumed_from"][0] <= before + 2
    line.outcome = (
        f"back from step {before} to {summary['trainer_resumed_from'][0]} in {summary['trainer_recovery_s'][0]:.1f} s; finished"
    )


@SIGNALS
@pytest.mark.parametrize("who", ROLLOUTS)
def test_a_worker_that_rolls_out_is_replaced(strike, verified, who, number):
    run, _, _, line = strike(who, number)
    summary = finished(run, verified)
    assert summary[ROLLOUTS[who]] == 1 and summary["trainer_recovery_s"] == [], summary
    line.outcome = f"replaced once; finished, {sum(summary['groups']['dropped'].values())} groups dropped by filter or fault"


def test_without_restarts_the_run_ends_with_a_reason_and_is_resumed(launch, row, verified, failed_in_one_line):
    line, given = row("rlvr", "actor_train-0", "SIGKILL, max_trainer_restarts 0"), ("resume_from_checkpoint=auto", "save_steps=1")
    run = launch("max_steps=100000", "max_trainer_restarts=0", *given, local=False)
    run.wait_for_steps(2, 400)
    line.begins()
    os.kill(run.worker("actor_train-0"), signal.SIGKILL)
    assert "died" in failed_in_one_line(run, "worker actor_train-0")
    line.ends("the run ended")
    verified(run.dir)
    run.wait_for_family_to_end()
    steps = run.summary()["steps"]
    again = launch(f"max_steps={steps + 4}", *given)
    assert again.end(400) == 0, again.output
    summary = again.summary()
    # The last step's checkpoint may have waited for that of the step before, which was being written.
    assert (summary["status"], summary["steps"]) == ("finished", steps + 4) and summary["resumed_from_step"] >= steps - 2
    verified(again.dir)
    line.outcome = f"ended, naming the worker; resumed from step {summary['resumed_from_step']} of {steps}, finished"


def test_after_failures_the_run_goes_on_synchronously(strike, verified):
    run, _, _, line = strike("rlvr/actor_infer-0", signal.SIGKILL, "synchronous_after_failures=1")
    summary = finished(run, verified)
    assert summary["synchronous_since"] is not None and "goes on synchronously" in run.output
    line.outcome = f"replaced once; synchronous since step {summary['synchronous_since']}; finished"


@pytest.mark.parametrize("who", ["rlvr", "agentic"])
def test_a_signal_while_the_trainer_starts_anew_ends_the_run_which_is_resumed(launch, row, verified, who):
    line = row(who, "actor_train-0, then the driver", "SIGKILL, then SIGTERM")
    agentic, given = who == "agentic", ("resume_from_checkpoint=auto", "save_steps=1")
    run = launch("max_steps=100000", *given, local=False, agentic=agentic)
    run.wait_for_steps(3, 400)
    run.wait_for_checkpoint(2)
    line.begins()
    os.kill(run.worker("actor_train-0"), signal.SIGKILL)
    run.wait_for_output("the run goes on from step")  # its workers are starting now
    run.signal(signal.SIGTERM)
    assert run.end(240) == 130, run.output
    assert "Traceback" not in run.output, run.output
    line.ends("the run ended")
    summary = run.summary()
    assert summary["status"] == "interrupted" and summary["reason"].startswith("stopped immediately by a signal after step ")
    verified(run.dir)
    run.leaves_nothing()
    again = launch(f"max_steps={summary['steps'] + 4}", *given, local=False, agentic=agentic)
    assert again.end(400) == 0, again.output
    resumed = again.summary()
    assert (resumed["status"], resumed["steps"]) == ("finished", summary["steps"] + 4)
    assert resumed["resumed_from_step"] == summary["steps"]
    verified(again.dir)
    line.outcome = f"ended within its restart; resumed from step {resumed['resumed_from_step']}, finished"
