"""Workers die in the middle of a run, and the run goes on: what was trained after the newest checkpoint is trained again."""

import asyncio

import integration_stages
import pytest
from mortal_workers import MortalBackend

from roll.cli.verify import read_run, violations
from roll.core.distributed.devices import Inventory
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import RLVRRun, prepare

THREE_SLOTS = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)
TRAINS, REWARDS, GENERATES = ("actor_train-0", "train"), ("rewards.sums-0", "compute_rewards"), ("actor_infer-0", "generate")


@pytest.mark.parametrize(("save_steps", "goes_back_to"), [(2, 2), (1000, 0)], ids=["checkpoint", "no checkpoint"])
def test_a_run_whose_trainer_died_is_the_run_whose_trainer_did_not(lab, make_config, save_steps, goes_back_to):
    """Bit for bit, with all that is carried from step to step; also where there is no checkpoint to go back to."""
    whole = lab.run(make_config(lab.carried, exp_name="whole", max_steps=4))
    config = make_config(lab.carried, exp_name="parts", max_steps=4, save_steps=save_steps)
    parts = lab.start(config, MortalBackend({TRAINS: {4}}))
    assert parts.summary["status"] == "finished", parts.summary["reason"]
    lab.check_accounts(parts, config)
    assert parts.summary["trainer_resumed_from"] == [goes_back_to]
    assert len(parts.summary["trainer_recovery_s"]) == 1
    expected, found = lab.weights(whole, 4), lab.weights(parts, 4)
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    assert [row["critic/kl_coef"] for row in whole.steps()] == [row["critic/kl_coef"] for row in parts.steps()]
    assert whole.rows("groups") == parts.rows("groups")
    rolled_back = parts.run_dir / "metrics.rolled-back.jsonl"
    assert len(rolled_back.read_text().splitlines()) == 3 - goes_back_to


def test_trainers_die_more_than_once_in_an_asynchronous_run(lab, make_config, with_validation):
    changes = {**with_validation, "async_generation_ratio": 2, "save_steps": 2, "max_trainer_restarts": 2}
    config = make_config(changes, max_steps=8)
    run = lab.start(config, MortalBackend({TRAINS: {4, 9}}))
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert list(violations(read_run(run.run_dir))) == []
    assert len(run.summary["trainer_recovery_s"]) == 2 and run.summary["engine_restarts"] == 0
    assert [row["step"] for row in run.steps()] == list(range(1, 9))
    validated = [each["step"] for each in run.summary["validation"]]
    assert validated == sorted(set(validated)), "no version is validated twice"
    assert {0, 6, 7, 8} <= set(validated), "one that was being validated when a trainer died may be left out, no later one"


def test_the_figures_of_a_run_whose_trainer_died_are_those_of_the_whole_run(lab, make_config):
    always = {"metric": "actor_train/lr", "above": 0, "for_steps": 1, "action": "warn"}
    config = make_config({"alarms": [always]}, max_steps=6, save_steps=2, async_generation_ratio=1)
    run = lab.start(config, MortalBackend({TRAINS: {4}, GENERATES: {2}}))
    summary = run.summary
    assert summary["status"] == "finished", summary["reason"]
    assert (summary["steps"], summary["resumed_from_step"], summary["trainer_resumed_from"]) == (6, 0, [2])
    assert summary["weight_updates"]["published"] == 7, "three before the death, and those of the steps 3 to 6"
    assert summary["engine_restarts"] == len(summary["engine_recovery_s"]) == 1, "the engine died before the trainer did"
    assert [alarm["step"] for alarm in summary["alarms"]] == [1]
    assert summary["wall_s"] > sum(row["time/step_s"] for row in run.steps())


@pytest.mark.parametrize("role", ["actor_train-0", "actor_log_prob-0"])
def test_groups_in_a_database_outlive_a_death_of_the_trainer(lab, make_config, tmp_path, role):
    own = {"actor_log_prob.device_mapping": "2", "old_logprobs": "recompute"} if role.startswith("actor_log_prob") else {}
    database = {"groups_database": f"sqlite:///{tmp_path / 'groups.db'}", "save_steps": 2, "async_generation_ratio": 1}
    config = make_config(database | own, max_steps=6)
    method = "log_probs" if own else "train"
    run = lab.start(config, MortalBackend({(role, method): {4}}), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert list(violations(read_run(run.run_dir))) == []
    assert len(run.summary["trainer_recovery_s"]) == 1 and run.summary["steps"] == 6
    assert [row["step"] for row in run.steps()] == list(range(1, 7))


@pytest.mark.parametrize("database", [False, True])
def test_a_signal_while_the_trainer_starts_anew_ends_the_run_which_can_be_resumed(lab, make_config, tmp_path, database):
    groups = {"groups_database": f"sqlite:///{tmp_path / 'groups.db'}"} if database else {}
    config = make_config(groups, max_steps=4, save_steps=1, async_generation_ratio=1)

    class Signalled(MortalBackend):
        """Has the run get a signal in the moment in which the trainer's second worker starts."""

        run = None

        async def start(self, spec):
            if spec.name == TRAINS[0] and self.calls[TRAINS]:
                self.run.interrupt()
            return await super().start(spec)

    backend = Signalled({TRAINS: {3}})
    prepared = prepare(config, lab.inventory)
    backend.run = RLVRRun(config, prepared, lab.inventory, backend)
    summary = asyncio.run(backend.run.run())
    assert summary["status"] == "interrupted" and summary["reason"].startswith("stopped immediately by a signal after step ")
    assert list(violations(read_run(prepared.run_dir))) == []
    run = lab.start(
        make_config(groups, max_steps=4, save_steps=1, async_generation_ratio=1, resume_from_checkpoint=True), LocalBackend()
    )
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["resumed_from_step"] == summary["steps"] >= 1
    assert list(violations(read_run(run.run_dir))) == []
    assert [row["step"] for row in run.steps()] == [1, 2, 3, 4]


@pytest.mark.parametrize("most", [0, 1])
def test_a_trainer_that_dies_too_often_ends_the_run(lab, make_config, most):
    run = lab.start(make_config(max_steps=4, max_trainer_restarts=most), MortalBackend({TRAINS: {1, 2}}))
    assert run.summary["status"] == "failed"
    assert "worker actor_train-0" in run.summary["reason"] and "died" in run.summary["reason"]
    assert ("max_trainer_restarts (1) are used up" in run.summary["reason"]) == bool(most)
    assert len(run.summary["trainer_recovery_s"]) == most


def test_an_error_while_all_ranks_live_ends_the_run_with_stage_item_and_cause(lab, make_config, monkeypatch):
    monkeypatch.setattr(integration_stages.Fails, "where", "on_step")
    run = lab.start(make_config({"flow.callbacks": ["integration_stages.Fails"]}, max_steps=4), MortalBackend({}))
    assert run.summary["status"] == "failed" and run.summary["trainer_recovery_s"] == []
    assert run.summary["reason"] == "train at step 1: CallbackError: Fails.on_step: LookupError: no such luck"


def test_a_reward_worker_that_dies_has_a_successor_which_judges_again(lab, make_config):
    config = make_config(max_steps=3, async_generation_ratio=1)
    run = lab.start(config, MortalBackend({REWARDS: {3, 7}}))
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    assert run.summary["reward_worker_deaths"] == 2
    assert "reward_error" not in run.summary["groups"]["dropped"]


def test_samples_that_kill_every_reward_worker_cost_their_group(lab, make_config):
    config = make_config({"rewards.sums.on_reward_error": "drop_group"}, max_steps=3)
    run = lab.start(config, MortalBackend({REWARDS: {1, 2, 3, 4, 5}}))
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    assert run.summary["groups"]["dropped"]["reward_error"] >= 1


def test_after_so_many_failures_the_run_goes_on_synchronously_and_no_group_is_lost(lab, make_config):
    config = make_config(max_steps=10, async_generation_ratio=2, async_pipeline_depth=2, synchronous_after_failures=2)
    run = lab.start(config, MortalBackend({REWARDS: {13}, GENERATES: {14}}))  # twelve groups start before a step is trained
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    since = run.summary["synchronous_since"]
    assert since is not None and since <= 6
    ratios = [row["scheduler/async_ratio"] for row in run.steps()]
    assert ratios == sorted(ratios, reverse=True) and {ratios[0], ratios[-1]} == {2.0, 0.0}
    assert "stale" not in run.summary["groups"]["dropped"], "what was under way is trained"
    lags = [row["staleness/mean"] for row in run.steps()]
    assert max(lags) > 0 and lags[since + 3 :] == [0.0] * (10 - since - 3)
