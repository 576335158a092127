"""What is carried from step to step outside the model (running reward moments, the KL coefficient) is in a checkpoint."""

import json

import pytest

from roll.core.configs.problems import ConfigError
from roll.reports.printed_summary import print_summary


def test_a_resumed_run_is_the_run_that_was_not_interrupted(lab, make_config):
    whole = lab.run(make_config(lab.carried, exp_name="whole", max_steps=4))
    lab.run(make_config(lab.carried, exp_name="parts", max_steps=2))
    config = make_config(lab.carried, exp_name="parts", max_steps=4, resume_from_checkpoint=True)
    parts = lab.run_local(config)
    assert parts.summary["status"] == "finished", parts.summary["reason"]
    assert parts.summary["resumed_from_step"] == 2
    expected, found = lab.weights(whole, 4), lab.weights(parts, 4)
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    coefficients = [row["critic/kl_coef"] for row in whole.steps()]
    assert coefficients == [row["critic/kl_coef"] for row in parts.steps()]
    assert coefficients[0] == 0.1 and len(set(coefficients)) == 4, "it has to move, or the comparison means nothing"


@pytest.mark.parametrize("change", [{"norm_mean_type": None}, {"add_token_level_kl": False, "target_kl": None}])
def test_each_of_them_changes_what_is_learnt(lab, make_config, change):
    """So the run above depends on both."""
    base = lab.run(make_config(lab.carried, exp_name="base", max_steps=2))
    other = lab.run(make_config({**lab.carried, **change}, exp_name="other", max_steps=2))
    assert any(not lab.weights(base, 2)[name].equal(tensor) for name, tensor in lab.weights(other, 2).items())


MEASURED = {
    "actor_train.data_args.pass_rate_curriculum": {"least": 0.1, "visits": 1},
    "rewards.sums.worker_cls": "integration_rewards.FourthRows",
    "deterministic": True,
}


def test_pass_rates_are_measured_leave_prompts_out_and_go_on_with_a_checkpoint(lab, make_config, material, tmp_path):
    """Every fourth of twelve prompts always passes, the others sometimes."""
    rows = (material / "train.jsonl").read_text().splitlines(keepends=True)[:12]
    (tmp_path / "twelve.jsonl").write_text("".join(rows))
    changes = {**MEASURED, "actor_train.data_args.file_name": str(tmp_path / "twelve.jsonl")}
    whole = lab.run(make_config(changes, exp_name="whole", max_steps=9))
    lab.run(make_config(changes, exp_name="parts", max_steps=4, save_steps=4))
    parts = lab.run_local(make_config(changes, exp_name="parts", max_steps=9, resume_from_checkpoint=True))
    assert parts.summary["resumed_from_step"] == 4
    trained = [row["prompt_uid"] for row in whole.rows("groups")]
    assert trained == [row["prompt_uid"] for row in parts.rows("groups")] and len(set(trained)) == 36
    always = [uid for uid in trained if int(uid.rpartition("/")[2]) % 4 == 0]
    assert len(always) / len(trained) < 0.25, "its share without the curriculum"
    measured = [
        [{name: value for name, value in row.items() if name.startswith("pass_rate/")} for row in run.steps()]
        for run in (whole, parts)
    ]
    assert measured[0] == measured[1]
    last = measured[0][-1]
    assert whole.summary["prompts_left_out"] == parts.summary["prompts_left_out"]
    assert sum(whole.summary["prompts_left_out"]["sums"].values()) > 0, "and `roll verify` counts them"
    assert last["pass_rate/new/prompts"] == 0 and last["pass_rate/always/prompts"] >= 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"total_epochs": 2.0, "max_steps": 500}, "how long an epoch is, is measured on the way"),
        ({"groups_database": "sqlite:////tmp/none.db"}, "is not kept in a database of groups"),
    ],
)
def test_where_pass_rates_cannot_decide_that_is_said(lab, make_config, changes, says):
    with pytest.raises(ConfigError, match=says):
        lab.run_local(make_config({**MEASURED, **changes}))


def test_the_error_of_an_earlier_start_does_not_stay_with_a_run_that_went_on(lab, make_config):
    """The page says of a folder with this file that an error ended the run."""
    run = lab.run(make_config(max_steps=1))
    (run.run_dir / "traceback.txt").write_text("of a start that found its disk full")
    again = lab.run_local(make_config(max_steps=2, resume_from_checkpoint=True))
    assert again.summary["status"] == "finished" and not (again.run_dir / "traceback.txt").exists()


def test_a_run_that_has_more_steps_behind_it_than_it_is_to_have_says_that_it_trains_nothing(lab, make_config, capsys):
    lab.run(make_config(max_steps=2))
    capsys.readouterr()
    again = lab.run_local(make_config(max_steps=1, resume_from_checkpoint=True))
    assert again.summary["status"] == "finished" and again.summary["steps"] == 2
    assert "nothing is trained: the run goes on from step 2, and max_steps is 1" in capsys.readouterr().out


@pytest.mark.parametrize("ends_before_a_step", [False, True])
def test_a_start_that_trains_nothing_keeps_what_was_measured(lab, make_config, capsys, ends_before_a_step):
    """A finished run that is started again; one with a step to go that fails before it."""
    first = lab.run(make_config(max_steps=2)).summary
    stage = {"after": "generate", "name": "fails", "worker": "integration_stages.divides_by_zero"}
    more = {"max_steps": 3, "flow.stages": [stage]} if ends_before_a_step else {"max_steps": 2}
    again = lab.run_local(make_config(more, resume_from_checkpoint="auto"))
    assert again.summary["status"] == ("failed" if ends_before_a_step else "finished")
    assert first["throughput"]["samples_per_s"] > 0
    measured = ("throughput", "idle_share", "wall_s", "started_s", "weight_updates", "steps")
    assert {name: again.summary[name] for name in measured} == {name: first[name] for name in measured}
    written = json.loads((again.run_dir / "summary.json").read_text())
    assert written["throughput"] == first["throughput"] and written["status"] == again.summary["status"]
    print_summary(again.summary, again.run_dir)
    assert "steps            0 of 2: all were trained before this start" in capsys.readouterr().out


def test_the_figures_of_a_start_that_trains_are_its_own(lab, make_config):
    first = lab.run(make_config(max_steps=2)).summary
    again = lab.run_local(make_config(max_steps=3, resume_from_checkpoint="auto")).summary
    assert again["throughput"] != first["throughput"] and (again["resumed_from_step"], again["steps"]) == (2, 3)


def test_adapters_that_a_checkpoint_does_not_have_are_refused_before_its_run_is_touched(lab, make_config):
    """With fewer adapters the run would go on, and lose what the others had learnt."""
    adapters = {"actor_train.model_args.lora_target": "q_proj,v_proj"}
    run = lab.run(make_config(adapters, max_steps=1))
    summary = (run.run_dir / "summary.json").read_bytes()
    for changes in ({}, {"actor_train.model_args.lora_target": "q_proj"}, {**adapters, "actor_train.model_args.lora_rank": 4}):
        with pytest.raises(ConfigError, match=r"resume_from_checkpoint = True: .*step-1 was made with lora_"):
            lab.run_local(make_config(changes, max_steps=2, resume_from_checkpoint=True))
    assert (run.run_dir / "summary.json").read_bytes() == summary
    again = lab.run_local(make_config(adapters, max_steps=2, resume_from_checkpoint=True))
    assert again.summary["status"] == "finished", again.summary["reason"]
