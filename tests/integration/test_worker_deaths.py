"""Workers die in the middle of a run, and the run goes on: what was trained after the newest checkpoint is trained again."""

import integration_stages
import pytest
from mortal_workers import MortalBackend

from roll.cli.verify import read_run, violations

TRAINS, REWARDS, GENERATES = ("actor_train-0", "train"), ("rewards.sums-0", "compute_rewards"), ("actor_infer-0", "generate")


@pytest.mark.parametrize(("save_steps", "goes_back_to"), [(2, 2), (1000, 0)], ids=["checkpoint", "no checkpoint"])
def test_a_run_whose_trainer_died_is_the_run_whose_trainer_did_not(lab, make_config, save_steps, goes_back_to):
    """Bit for bit, with all that is carried from step to step; also where there is no checkpoint to go back to."""
    whole = lab.run(make_config(lab.carried, exp_name="whole", max_steps=4))
    config = make_config(lab.carried, exp_name="parts", max_steps=4, save_steps=save_steps)
    parts = lab.start(config, MortalBackend({TRAINS: {4}}))
    assert parts.summary["status"] == "finished", parts.summary["reason"]
    lab.check_accounts(parts, config)
    assert parts.summary["resumed_from_step"] == goes_back_to
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
