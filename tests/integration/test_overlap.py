"""Roles on devices of their own score the next step's groups while a step trains, and nothing else changes."""

import asyncio
import json

import overlap_workers
import pytest
from overlap_workers import CALLS

from roll.core.distributed.devices import Inventory
from roll.core.pipeline import run as run_page
from roll.core.record import run_record
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import RLVRRun, prepare

FOUR_SLOTS = Inventory("cpu", nodes=1, per_node=4, cpus_per_node=4)
AHEAD = {
    "async_generation_ratio": 1,
    "async_pipeline_depth": 1,
    "use_kl_loss": True,
    "kl_loss_coef": 0.01,
    "reference.device_mapping": "2",
    "reference.worker_cls": f"{overlap_workers.__name__}.Reference",
    "actor_train.worker_cls": f"{overlap_workers.__name__}.Policy",
}
CRITIC = {
    "adv_estimator": "gae",
    "critic.device_mapping": "3",
    "critic.training_args.per_device_train_batch_size": 16,
    "critic.worker_cls": f"{overlap_workers.__name__}.Critic",
    "old_logprobs": "recompute",
}


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def finished(lab, config):
    run = lab.start(config, LocalBackend(), FOUR_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    return run


@pytest.mark.parametrize("database", [False, True])
def test_the_reference_scores_the_next_step_while_a_step_trains(lab, make_config, tmp_path, database):
    groups = {"groups_database": f"sqlite:///{tmp_path / 'groups.db'}"} if database else {}
    run = finished(lab, make_config(AHEAD | groups, max_steps=4))
    assert run.summary["staleness"]["max"] == 1, "the groups that are scored ahead are one version old when they are trained"
    assert all(row["actor/kl_loss"] >= 0 for row in run.steps())


def test_values_run_ahead_and_are_those_of_the_critic_that_has_learnt_the_step_before(lab, make_config):
    finished(lab, make_config(AHEAD | CRITIC, max_steps=4))
    of_critic = [call for call in CALLS if call in ("values", "critic trained")]
    assert of_critic == ["values", "critic trained"] * 4
    of_policy = [call for call in CALLS if call in ("log_probs", "trained")]
    assert of_policy == ["log_probs", "trained"] * 4, "the weights that a step starts from are those that the step before left"


@pytest.mark.parametrize(
    "changes", [{"async_generation_ratio": 0, "async_pipeline_depth": "auto"}, {"reference.device_mapping": "0"}]
)
def test_a_role_without_devices_of_its_own_or_without_rollouts_ahead_takes_its_turn(lab, make_config, changes, monkeypatch):
    monkeypatch.setattr(overlap_workers, "awaited", lambda call, count: True)
    finished(lab, make_config(AHEAD | changes, max_steps=3))
    assert CALLS == ["reference", "trained"] * 3


def test_a_run_that_is_stopped_leaves_the_step_that_is_ahead_to_the_one_that_resumes(lab, make_config):
    config = make_config(AHEAD, max_steps=4, save_steps=1)
    pipeline = RLVRRun(config, prepare(config, FOUR_SLOTS), FOUR_SLOTS, LocalBackend())
    add_step = pipeline.state.record.add_step

    def add_and_interrupt(done, *args):
        row = add_step(done, *args)
        if done == 1:
            pipeline.interrupt()
        return row

    pipeline.state.record.add_step = add_and_interrupt
    assert asyncio.run(pipeline.run())["status"] == "interrupted"
    assert CALLS.count("trained") == 2 and CALLS.count("reference") == 3
    folder = prepare(config, FOUR_SLOTS).run_dir / "checkpoints" / "step-2"
    rows = [json.loads(line) for line in (folder / "buffer.jsonl").read_text().splitlines()]
    ahead = {row["group_id"] for row in rows}
    assert len(ahead) >= config.rollout_batch_size
    CALLS.clear()
    run = finished(
        lab, make_config({**AHEAD, "actor_train.worker_cls": None}, max_steps=4, save_steps=1, resume_from_checkpoint=True)
    )
    third = {row["group_id"] for row in run.rows("groups") if row["step"] == 3 and row["status"] == "trained"}
    assert third <= ahead


def test_a_wait_for_engines_is_shown_with_its_reason(lab, make_config, monkeypatch):
    monkeypatch.setattr(run_page, "REFRESH_S", 0.0)
    shown = {}
    show = run_record.RunRecord.show

    def noted(record, *args):
        show(record, *args)
        for line in record.roles():
            shown.setdefault(line["name"], set()).add((line["state"], line["reason"]))

    monkeypatch.setattr(run_record.RunRecord, "show", noted)
    finished(lab, make_config(max_steps=3))
    assert any(reason.endswith(" of 4 groups") for _, reason in shown["actor_train"]), shown["actor_train"]
    assert ("waiting", "all engines serve version 1") in shown["publish"]
