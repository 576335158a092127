"""Whatever ends a run that has trained: the last step has a checkpoint, or the run says why it cannot have one."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from roll import BuiltIn, Callback, Drop, RLVRPipeline, create_role_state_machine
from roll.core.errors import Expelled, FlowError, Superseded, TakenBack
from roll.core.pipeline.last_checkpoint import saved_or_why_not
from roll.core.trainer import trainer as trainer_module
from roll.platform.local_backend import LocalBackend
from roll.platform.ray_backend import RayBackend
from roll.prepare.rlvr_run import RLVRRun, prepare

AHEAD = {"async_generation_ratio": 1.0, "max_steps": 6}


def ended(config, *stages, callbacks=()):
    summary = RLVRPipeline(config, local=True, stages=stages, callbacks=callbacks).run()
    there = sorted(path.parent.name for path in Path(config.run_dir).glob("checkpoints/step-*/manifest.json"))
    return summary, there


def check_kept(summary, there):
    """The steps that were trained."""
    steps = summary["steps"]
    assert summary["status"] == "failed" and steps > 0
    assert summary["checkpoint"] == {"step": steps, "lost": ""} and there == [f"step-{steps}"]
    return steps


def fails_after(steps, error=LookupError, before=None):
    """A stage of groups that fails as soon as so many steps may have been trained."""

    async def flaky(group):
        if group.start_version >= steps:
            raise error("once")
        return group

    return create_role_state_machine("flaky", flaky, after="reward")


def test_a_stage_of_ones_own_that_fails(make_config, capsys):
    config = make_config(AHEAD, resume_from_checkpoint="auto")
    steps = check_kept(*ended(config, fails_after(2)))
    assert f"checkpoint       step {steps}" in capsys.readouterr().out
    again, _ = ended(config)
    assert (again["status"], again["resumed_from_step"], again["steps"]) == ("finished", steps, 6)


def test_groups_that_are_dropped_without_end(make_config):
    async def drops(group):
        return Drop("bad") if group.start_version >= 2 else group

    summary, there = ended(make_config(AHEAD, max_dropped_batches=2), create_role_state_machine("drops", drops, after="reward"))
    check_kept(summary, there)
    assert "max_dropped_batches" in summary["reason"]


def test_a_validation_that_fails(make_config, with_validation):
    class Fails(BuiltIn):
        async def process(self, item):
            if item == 2:
                raise OSError("no place for the results")
            return await super().process(item)

    config = make_config({**AHEAD, **with_validation})
    check_kept(*ended(config, create_role_state_machine("validate", Fails)))


def test_the_step_that_is_being_trained_is_trained_to_its_end(make_config, monkeypatch):
    """A failure elsewhere comes in the middle of the optimiser steps."""
    failing, optimise = asyncio.Event(), trainer_module.optimise

    async def slow(cluster, batches, loss):
        metrics = await optimise(cluster, batches, loss)
        if steps.append(1) or len(steps) == 2:
            failing.set()
            for _ in range(20):
                await asyncio.sleep(0)
        return metrics

    class Fails(BuiltIn):
        async def process(self, item):
            if item == 1:
                await failing.wait()
                raise LookupError("elsewhere")
            return await super().process(item)

    steps = []
    monkeypatch.setattr(trainer_module, "optimise", slow)
    summary, there = ended(make_config(AHEAD), create_role_state_machine("validate", Fails))
    assert check_kept(summary, there) == 2 and "elsewhere" in summary["reason"]


@pytest.mark.parametrize("save_steps", [1, 100])
def test_half_a_step_is_no_checkpoint(make_config, monkeypatch, capsys, save_steps):
    optimise, steps = trainer_module.optimise, []

    async def fails(cluster, batches, loss):
        if steps.append(1) or len(steps) == 3:
            raise RuntimeError("out of memory")
        return await optimise(cluster, batches, loss)

    monkeypatch.setattr(trainer_module, "optimise", fails)
    summary, there = ended(make_config(AHEAD, save_steps=save_steps))
    assert (summary["status"], summary["steps"]) == ("failed", 2)
    why = "none of step 2: step 3 was being trained, and the weights are those of no step"
    kept = {"step": 2, "lost": ""} if save_steps == 1 else {"step": 0, "lost": why}
    assert summary["checkpoint"] == kept and there == ["step-1", "step-2"] * (save_steps == 1)
    assert f"checkpoint       {why if save_steps > 1 else 'step 2'}" in capsys.readouterr().out


def test_weights_that_are_not_finite_are_not_kept(make_config):
    summary, there = ended(make_config(AHEAD), fails_after(2, FloatingPointError))
    assert summary["status"] == "failed" and there == []
    assert summary["checkpoint"] == {"step": 0, "lost": f"none of step {summary['steps']}: the weights are not finite"}


def test_what_stands_between_a_policy_and_its_weights_fails(make_config):
    """Nothing waits for the end of a step that nobody brings to its end."""

    async def fails(step):
        if step.number == 1:
            raise LookupError("between")
        return step

    critic = {"adv_estimator": "gae", "critic.device_mapping": "0", "critic.training_args.learning_rate": 0.001}
    size = {"critic.training_args.per_device_train_batch_size": 16}
    config = make_config({**critic, **size, **AHEAD, "async_generation_ratio": 0.0})
    summary, there = ended(config, create_role_state_machine("between", fails, after="policy"))
    assert "between at step 2" in summary["reason"] and there == []
    assert "step 2 was being trained" in summary["checkpoint"]["lost"]


def test_a_checkpoint_that_cannot_be_written_says_why(make_config, monkeypatch):
    def full(self, step):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("roll.core.record.checkpoint.CheckpointStore.begin", full)
    summary, there = ended(make_config(AHEAD), fails_after(2))
    assert "flaky" in summary["reason"] and there == [], "the first reason counts"
    assert "No space left on device" in summary["checkpoint"]["lost"]


def test_who_does_not_wait_for_the_last_checkpoint_gets_the_first_reason(lab, make_config, monkeypatch):
    """A second Ctrl-C while it is written."""
    from roll.core.trainer.checkpoint_writer import CheckpointWriter

    async def endless(self, step, state, rows):
        asyncio.get_running_loop().call_soon(main.cancel)
        await asyncio.Event().wait()

    async def run():
        nonlocal main
        main = asyncio.current_task()
        prepared = replace(prepare(make_config(AHEAD), lab.inventory), stages=(fails_after(2),))
        return await RLVRRun(prepared.config, prepared, lab.inventory, LocalBackend()).run()

    main = None
    monkeypatch.setattr(CheckpointWriter, "_write", endless)
    summary = asyncio.run(run())
    assert summary["status"] == "failed" and "flaky" in summary["reason"]
    assert summary["checkpoint"]["lost"].endswith("stopped immediately by a signal")


def test_a_disk_that_was_full_for_a_moment_costs_no_step(make_config, monkeypatch):
    from roll.core.record.checkpoint import CheckpointStore

    begin, calls = CheckpointStore.begin, []

    def full_once(self, step):
        if not calls.append(step) and len(calls) == 1:
            raise OSError(28, "No space left on device")
        return begin(self, step)

    monkeypatch.setattr(CheckpointStore, "begin", full_once)
    summary, there = ended(make_config(AHEAD, save_steps=2))
    check_kept(summary, there)
    assert "No space left on device" in summary["reason"]


@pytest.mark.parametrize("cause", [Expelled("others"), Superseded("others"), TakenBack()])
def test_a_run_that_others_have_taken_over_writes_nothing(cause):
    async def save():
        raise AssertionError("it is written")

    error = FlowError("supervision")
    error.__cause__ = cause
    whole = SimpleNamespace(whole=True, begun=3)
    assert asyncio.run(saved_or_why_not(save, None, error, whole, {})) == "another process has taken over the run"


def test_a_finished_run_says_nothing_of_checkpoints(make_config):
    summary, there = ended(make_config())
    assert summary["status"] == "finished" and "checkpoint" not in summary and there == ["step-2"]
    assert json.loads((Path(make_config().run_dir) / "summary.json").read_text())["status"] == "finished"


class Interrupts(Callback):
    def on_step(self, step, metrics):
        if step == 2:
            raise KeyboardInterrupt("mine")


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_with_ray_it_is_the_same(lab, make_config):
    prepared = replace(prepare(make_config(AHEAD), lab.inventory), callbacks=(Interrupts(),))
    backend = RayBackend(lab.inventory)
    summary = asyncio.run(RLVRRun(prepared.config, prepared, lab.inventory, backend).run())
    assert summary["reason"].endswith("Interrupts.on_step: KeyboardInterrupt: mine")
    assert summary["checkpoint"] == {"step": 2, "lost": ""}
    assert (prepared.run_dir / "checkpoints/step-2/manifest.json").exists()


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_a_reward_that_interrupts_costs_its_sample_with_ray(lab, make_config):
    """Its group is dropped, as after any other error of a reward."""
    odd = {"rewards.sums.worker_cls": f"{lab.rewards}.Interrupts"}
    run = lab.start(make_config(odd), RayBackend(lab.inventory))
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert sum(run.summary["reward_errors"].values()) >= 4 and run.summary["groups"]["dropped"]["reward_error"] >= 1
