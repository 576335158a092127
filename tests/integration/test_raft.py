"""Rejection sampling: a run trains the responses that it keeps, and `roll data` writes them as rows to train on."""

import json

import pytest

from roll.cli.kept import main as data
from roll.core.configs.arguments import DataArguments
from roll.core.configs.rows import SFTKeysConfig
from roll.prompts.training_rows import read_training_rows

RAFT = {
    "adv_estimator": "raft",
    "loss_agg_mode": "token-mean",
    "actor_train.pg_variant": "vanilla",
    "max_steps": 3,
    "rollout_log_per_step": "all",
}


@pytest.fixture
def run(make_config, lab):
    made = lab.run_local(make_config(RAFT))
    assert made.summary["status"] == "finished", made.summary["reason"]
    return made


def test_the_kept_responses_of_a_run_are_rows_for_sft(run, tmp_path, capsys):
    kept = [row for row in run.rows("samples") if row["status"] == "trained" and row["reward"] == 1]
    assert 0 < len(kept) < 48, "both verdicts have come"
    assert [row["advantage"] for row in kept] == [1] * len(kept)
    assert not [row for row in run.rows("samples") if row["reward"] != 1 and row["advantage"] is not None], "left out"
    answers = {(row["prompt"], row["response"]) for row in kept}
    for name in ("kept.jsonl", "kept.parquet"):
        assert data([str(run.run_dir), "--output", str(tmp_path / name)]) == 0
        assert f"{len(answers):,} responses written" in capsys.readouterr().out
        arguments = DataArguments(file_name=str(tmp_path / name), template="none")
        read = list(read_training_rows(arguments, SFTKeysConfig(), "data_args"))
        assert {tuple(each["content"] for each in row.conversations[0]) for row in read} == answers


def test_the_best_of_each_group_and_steps_can_be_chosen(run, tmp_path):
    file = tmp_path / "best.jsonl"
    assert data([str(run.run_dir), "--output", str(file), "--best", "1", "--reward", "0:", "--step", "2"]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({row["prompt_uid"] for row in rows}) == len(rows) == 4, "one of each group of the step"
    best = {}
    for row in run.rows("samples"):
        if row["step"] == 2:
            best[row["prompt_uid"]] = max(best.get(row["prompt_uid"], 0), row["reward"])
    assert {row["prompt_uid"]: row["reward"] for row in rows} == best


def test_a_folder_that_is_no_run_is_told(tmp_path, capsys):
    assert data([str(tmp_path), "--output", str(tmp_path / "a.jsonl")]) == 2
    assert "error" in capsys.readouterr().err
