"""`roll check --data`: rows, lengths, prompts as the model gets them, and what reference answers earn."""

import json

import pytest
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.cli.data import one_for_all
from roll.cli.main import main

REWARDS = "roll.pipeline.rlvr.rewards"
MATH = f"{REWARDS}.math_rule_reward_worker.MathRuleRewardWorker"
EXACT = f"{REWARDS}.exact_match_reward_worker.ExactMatchRewardWorker"


def row(tag, prompt, truth):
    return {"tag": tag, "prompt": prompt, "ground_truth": truth}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tokenizer = symbol_tokenizer("0123456789+=abcdefghijklmnopqrstuvwxyz ")
    tokenizer.save_pretrained(folder / "model")
    tiny_qwen2(len(tokenizer)).save_pretrained(folder / "model")
    rows = [
        row("sums", "1+1=", "2"),
        row("math", "x", "work \\frac12 #### \\frac{1}{2}"),
        row("math", "far too long a prompt", "1"),
    ]
    (folder / "train.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in [*rows, row("math", "y", "no number at all")])
    )
    lines = [
        f"pretrain: {folder}/model",
        "rollout_batch_size: 2",
        "num_return_sequences_in_group: 2",
        "prompt_length: 8",
        "response_length: 8",
        f"actor_train: {{device_mapping: '0', training_args: {{per_device_train_batch_size: 4}}, "
        f"data_args: {{file_name: {folder}/train.jsonl, template: none}}}}",
        "actor_infer: {device_mapping: '1'}",
        f"rewards: {{sums: {{worker_cls: {EXACT}}}, math: {{worker_cls: {MATH}}}}}",
    ]
    (folder / "run.yaml").write_text("\n".join(lines))
    return folder


def test_it_says_what_a_run_would_train_on(folder, capsys):
    assert main(["check", "--data", "--config_path", str(folder), "--config_name", "run"]) == 0
    shown = capsys.readouterr().out
    assert (
        "actor_train: 4 rows of" in shown
        and "1 too long (prompt_length is 8, " in shown
        and "a success is a reward of 1 or more" in shown
    )
    assert "an epoch is 1.5 steps of 2 prompts" in shown
    assert "sums: 1 prompts (sums 1)" in shown and "math: 2 prompts (math 2)" in shown
    math = shown[shown.index("  math:") : shown.index("  sums:")]
    assert "tokens: 1 at least" in math and "as responses: " in math
    assert "train.jsonl:1 (sums), 4 tokens, ground truth '2':\n    | 1+1=" in shown


def test_a_model_folder_that_is_none_is_told_as_such(folder, tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    given = ["check", "--data", "--config_path", str(folder), "--config_name", "run", f"pretrain={tmp_path}"]
    assert main(given) == 1
    (told, _) = capsys.readouterr().err.splitlines()
    assert f"pretrain = '{tmp_path}'" in told and "has no weights (*.safetensors)" in told


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        ("nowhere.reward", "No module named 'nowhere'"),
        (f"{REWARDS}.http_reward_worker.HTTPRewardWorker", "reward_args.url is missing"),
    ],
)
def test_a_reward_that_cannot_be_made_is_one_line(folder, capsys, worker, says):
    given = ["check", "--data", "--config_path", str(folder), "--config_name", "run", f"rewards.sums.worker_cls={worker}"]
    assert main(given) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and "rewards.sums.worker_cls" in told[0] and says in told[0], told


def test_the_same_is_data(folder, capsys):
    assert main(["check", "--data", "--json", "--config_path", str(folder), "--config_name", "run"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["epoch_steps"]) == (4, 1.5)
    math, sums = told["domains"]
    assert (math["prompts"], sums["prompts"], sums["judged"], sums["earned"]) == (2, 1, 1, {"1": 1})
    assert told["examples"][0]["text"] == "1+1="


def test_a_constant_that_is_right_more_often_than_chance_is_told():
    (told,) = one_for_all("quiz", ["A"] * 700 + ["B"] * 300)
    assert told.startswith("rewards.quiz: one answer for all prompts, 'A', is that of 70% of them, and a drawn one of 58%")
    for answers in (["A"] * 260 + ["B"] * 250 + ["C"] * 245 + ["D"] * 245, ["A"] * 50, [str(i) for i in range(50)], ["A", "B"]):
        assert not list(one_for_all("quiz", answers))


def test_an_agentic_run_has_no_prompts(capsys):
    assert main(["check", "--data", "--config_name", "agent_val_frozen_lake_async"]) == 1
    assert "has no prompts; fix: roll env check" in capsys.readouterr().err


def test_it_warns_of_reference_answers_that_earn_something_odd(folder, capsys):
    given = ["--config_path", str(folder), "--config_name", "run", "rewards.sums.success_at=2"]
    assert main(["check", "--data", *given]) == 0
    shown = capsys.readouterr().out
    assert "warning: rewards.sums: reference answers earn 1, and 1 of 1 are no success; validation counts a reward of 2" in shown
    assert "a success is a reward of 2 or more" in shown


def test_a_file_of_which_nothing_is_left_is_refused_as_by_the_start(folder, capsys):
    (folder / "long.jsonl").write_text(json.dumps(row("sums", "far too long a prompt", "1")) + "\n")
    given = ["--config_path", str(folder), "--config_name", "run", f"actor_train.data_args.file_name={folder}/long.jsonl"]
    assert main(["check", "--data", *given]) == 1
    assert "none of 1 prompts can be used: 1 too long (prompt_length is 8, " in capsys.readouterr().err


def test_rows_that_cannot_be_read_are_one_line(folder, capsys):
    given = ["--config_path", str(folder), "--config_name", "run", "rewards.math.tag_included=[other]"]
    assert main(["check", "--data", *given]) == 1
    told = capsys.readouterr().err
    assert "tag 'math' of row 'train.jsonl:2' is in no rewards.*.tag_included" in told
    assert "actor_train.data_args.file_name = " in told and "; fix: " in told
