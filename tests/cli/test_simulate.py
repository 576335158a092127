"""`roll simulate`: what it prints, as data too, and what it refuses."""

import json

import pytest

from roll.cli.main import main
from roll.reports import learning_curve

COSTS = "tokens_per_s: {1: 20, 64: 1280}\nresponse_tokens: 8\nreward_s: 1\ntrain_s: 2\n"
FEW = ["max_steps=6", "rollout_batch_size=2", "num_return_sequences_in_group=2", "eval_steps=1000", "validation=null"]
FEW += ["actor_train.training_args.per_device_train_batch_size=2", "num_gpus_per_node=2", "rewards.arithmetic.max_concurrency=64"]


@pytest.fixture
def costs(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_curve, "plot", lambda *_: False)
    (tmp_path / "costs.yaml").write_text(COSTS)
    return ["--costs", str(tmp_path / "costs.yaml")]


def test_a_sweep_is_a_table_with_the_frontier_of_time_against_staleness(costs, capsys):
    """0.4 s of rollout, 1 s of reward, 2 s of training: 3.4 s one after the other, 2 s where they overlap."""
    assert main(["simulate", *costs, *FEW, "--sweep", "async_generation_ratio=0,1"]) == 0
    head, synchronous, ahead, frontier, cost = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["async_generation_ratio", "step"]
    assert synchronous.split()[:3] == ["0", "3.4", "s"] and ahead.split()[:3] == ["1", "2", "s"]
    assert frontier.endswith("async_generation_ratio=1: 2 s at lag 1.00; async_generation_ratio=0: 3.4 s at lag 0.00")
    assert "virtual seconds" in cost


def test_as_data_it_has_every_step_and_other_devices(costs, capsys):
    assert main(["simulate", *costs, *FEW, "--engines", "3", "--trainers", "2", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["status"] == "finished" and found["summary"]["steps"] == 6
    assert len(found["summary"]["engines"]) == 3
    assert [row["step"] for row in found["steps"]] == list(range(1, 7))
    assert found["steady"]["step_s"] == pytest.approx(2.0, rel=0.01)


def test_a_run_that_it_kept_is_one_that_it_can_be_calibrated_by(costs, tmp_path, capsys):
    kept = tmp_path / "kept"
    assert main(["simulate", *costs, *FEW, "--keep", str(kept)]) == 0
    assert main(["verify", str(kept / "simulated")]) == 0
    capsys.readouterr()
    assert main(["simulate", "--trace", str(kept / "simulated"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["costs"]["reward_s"]["mean"] == pytest.approx(1.0, rel=0.01)
    assert told["predictions"][0]["steady"]["step_s"] == pytest.approx(2.0, rel=0.05)


def test_episodes_are_simulated_by_the_same_command(costs, tmp_path, capsys):
    """Of 3 turns of 0.4 s, with 0.2 s for a reset and each step: 2 s, and 2 s of training."""
    episodes = ["max_steps=6", "rollout_batch_size=8", "eval_steps=1000", "val_batch_size=8"]
    episodes += ["train_env_manager.num_env_groups=2", "actor_train.training_args.per_device_train_batch_size=8"]
    table = tmp_path / "episodes.yaml"
    table.write_text(COSTS + "turns: 3\nenvironment_s: 0.2\nprompt_tokens: 8\n")
    named = ["--config_name", "agent_val_frozen_lake_async", "sequence_length=512", "max_tokens_per_step=32"]
    ratios = ["--sweep", "async_generation_ratio=0,1", "--json"]
    assert main(["simulate", "--costs", str(table), *named, *episodes, *ratios]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [each["steady"]["step_s"] for each in found] == [pytest.approx(4.0, rel=0.01), pytest.approx(2.0, rel=0.01)]
    assert found[0]["steady"]["samples_per_s"] == pytest.approx(8 / 4, rel=0.01)


def test_explorers_are_set_apart_and_their_engines_are_told_of(costs, capsys):
    assert main(["simulate", *costs, *FEW, "--explorers", "2", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["status"] == "finished" and found["steps"][-1]["scheduler/explorers"] == 2
    assert found["steady"]["step_s"] == pytest.approx(2.0, rel=0.01)
    assert 0.5 < found["steady"]["idle"]["actor_infer"] < 1 and found["steady"]["idle"]["actor_train"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing says how long anything takes"),
        (["--trace", "nowhere"], "nowhere"),
        (["--costs", "nowhere.yaml"], "--costs = 'nowhere.yaml': cannot be read"),
        (["--costs", "COSTS", "--engines", "0"], "--engines = 0"),
        (["--costs", "COSTS", "--explorers", "0"], "--explorers = 0"),
        (["--costs", "COSTS", "--sweep", "engines=1,many"], "engines = 'many': is no number"),
        (["--costs", "COSTS", "mode=train", "groups_database=sqlite:///x.db"], "mode"),
        (["--costs", "COSTS", "--config_name", "agent_program_async"], "programs take real time"),
    ],
)
def test_what_it_cannot_simulate_is_one_error_that_names_the_key(costs, tmp_path, capsys, arguments, said):
    given = [costs[1] if each == "COSTS" else each for each in arguments]
    assert main(["simulate", *given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("train_secs: 1", "costs.train_secs = 1: unknown figure"),
        ("train_s: -1", "costs.train_s = -1: is no amount"),
        ("reward_s: {mean: 1, sd: 2}", "costs.reward_s"),
        ("response_tokens: []", "costs.response_tokens"),
        ("tokens_per_s: {0: 5}", "costs.tokens_per_s"),
        ("pass_rate: 1.5", "costs.pass_rate = 1.5"),
        ("- 1", "is not a mapping"),
        ("a: [", "--costs"),
    ],
)
def test_a_table_with_a_mistake_is_refused_by_the_name_of_the_figure(tmp_path, capsys, table, said):
    (tmp_path / "costs.yaml").write_text(table)
    assert main(["simulate", "--costs", str(tmp_path / "costs.yaml")]) == 2
    assert said in capsys.readouterr().err
