"""`roll replay` and `roll explain` on a run that was recorded, as users type them."""

import json
import os
import statistics
import subprocess
import sys

import pytest
import yaml

from roll.cli.main import main as roll
from roll.core.configs.plain import to_mapping

RECORDED = {"async_generation_ratio": 1, "rollout_log_per_step": "all", "deterministic": "training", "save_steps": 2}


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    for name in ("MKL_CBWR", "CUBLAS_WORKSPACE_CONFIG", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "path", list(sys.path))


def rows_of(run_dir):
    return [json.loads(row) for row in (run_dir / "groups.jsonl").read_text().splitlines()]


@pytest.fixture
def run(lab, make_config):
    return lab.run(make_config(RECORDED, max_steps=4))


def test_the_command_says_that_all_weights_are_equal(run, capsys):
    assert roll(["replay", str(run.run_dir), "--local", "--from", "2"]) == 0
    said = capsys.readouterr().out
    assert "weights: equal after 4 of 4 steps" in said and "checkpoint step-2: 8 files are equal (SHA-256)" in said
    assert roll(["replay", str(run.run_dir), "--local", "--from", "3", "--until", "3", "--all"]) == 0
    said = capsys.readouterr().out
    assert "weights: equal after 1 of 1 steps" in said and "tokens: " in said
    folders = sorted(path.name for path in run.run_dir.parent.glob("run*"))
    assert folders == ["run", "run.replay", "run.replay-2"], "the run itself is not touched"


def test_it_says_from_which_step_on_a_run_is_another_one(run, capsys):
    file = run.run_dir / "batches.jsonl"
    rows = [json.loads(row) for row in file.read_text().splitlines()]
    for row in rows:
        if row.get("step") == 3:
            row["parts"][0].pop()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert roll(["replay", str(run.run_dir), "--local"]) == 1
    said = capsys.readouterr().out
    assert "weights: equal after 2 of 4 steps" in said and "they differ from step 3 on" in said
    assert "checkpoint step-4: trainer/model/model.safetensors differs" in said


def test_another_trainer_gets_the_same_rollouts_from_a_step_on(run, capsys):
    changes = ["--change", "actor_train.pg_variant=reinforce", "--change", "actor_train.training_args.learning_rate=0.1"]
    assert roll(["replay", str(run.run_dir), "--local", "--from", "4", *changes]) == 0
    said = capsys.readouterr().out
    assert "loss was" in said and "ESS" in said
    changed = run.run_dir.with_name("run.changed")
    assert [row["step"] for row in map(json.loads, (changed / "metrics.jsonl").read_text().splitlines())] == [4]
    assert json.loads((run.run_dir.with_name("run.changed.before") / "replay.json").read_text())["equal"] == [3]
    assert json.loads((changed / "replay.json").read_text())["different"] == [4]
    assert yaml.safe_load((changed / "config.yaml").read_text())["actor_train"]["pg_variant"] == "reinforce"


REFUSED = {
    "--change async_generation_ratio=2": "is of the rollouts, which are recorded",
    "--change pg_variant": "must be key=value",
    "--change actor_train.pg_variant=nonsense": "nonsense",
    "--from 9": "the last step is 4",
    "--until 9": "has not recorded step 5 to 9",
    "--all --without-group 3": "compares tokens with those of the recorded weights",
}


def test_bad_input_is_told_before_anything_starts(run, capsys):
    for arguments, told in REFUSED.items():
        assert roll(["replay", str(run.run_dir), "--local", *arguments.split()]) == 2, arguments
        assert told in capsys.readouterr().err, arguments
    assert not run.run_dir.with_name("run.changed").exists()


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert roll(["replay", str(tmp_path)]) == 2
    assert "it is no folder of a run" in capsys.readouterr().err
    assert roll(["explain", str(tmp_path), "--step", "1"]) == 2


def test_a_debugger_opens_before_a_step(run, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(sys._getframe(1).f_locals["item"]))
    assert roll(["replay", str(run.run_dir), "--break", "3"]) == 0
    (step,) = seen
    assert step.number == 2 and len(step.lease.groups) == 4 and step.batch.advantages.any()


def test_a_filter_leaves_out_the_groups_that_it_drops(run, capsys):
    """A stricter one than the run had: a recorded group is left out where its rewards deviate less."""
    rows = [row for row in rows_of(run.run_dir) if row["status"] == "trained"]
    trained = {row["group_id"]: row["rewards"] for row in rows}
    deviations = {(row["step"], statistics.pstdev(row["rewards"])) for row in rows}
    of_every_step = min(max(each for step, each in deviations if step == of) for of, _ in deviations)
    least = max(each for _, each in deviations if each < of_every_step)  # each step keeps a group
    key = "rewards.sums.query_filter_config"
    changes = ["--change", f"{key}.type=std_filter", "--change", f"{key}.filter_args.std_threshold={least}"]
    assert roll(["replay", str(run.run_dir), "--local", *changes]) == 0
    assert "loss was" in capsys.readouterr().out
    left = {row["group_id"]: row["rewards"] for row in rows_of(run.run_dir.with_name("run.changed"))}
    assert left == {group: rewards for group, rewards in trained.items() if statistics.pstdev(rewards) > least}
    assert 0 < len(left) < len(trained)
    everything = ["--change", f"{key}.type=mean_filter", "--change", f"{key}.filter_args.threshold_up=-1"]
    assert roll(["replay", str(run.run_dir), "--local", *everything]) == 1
    summary = json.loads((run.run_dir.with_name("run.changed-2") / "summary.json").read_text())
    assert "what is left out, or filtered, leaves no group of it" in summary["reason"]


def test_a_step_is_explained(run, capsys):
    assert roll(["explain", str(run.run_dir), "--step", "3", "--local", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 3 and found["differs_from"] is None and len(found["samples"]) == 16
    assert roll(["explain", str(run.run_dir), "--step", "3", "--local"]) == 0
    assert "tokens, by the derivative of the loss by their log-prob" in capsys.readouterr().out
    assert roll(["explain", str(run.run_dir), "--step", "5", "--local"]) == 2


@pytest.mark.slow
def test_explorers_that_were_processes_of_their_own(make_config, tmp_path, capsys):
    config = make_config(RECORDED, max_steps=4)
    (tmp_path / "apart.yaml").write_text(yaml.safe_dump(to_mapping(config)))
    command = [sys.executable, "-m", "roll.cli.main", "train", "rlvr", "--config_path", str(tmp_path), "--config_name", "apart"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    halves = [
        subprocess.Popen([*command, "--local", *mode], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        for mode in (["mode=train"], ["mode=explore", "explorer_name=one"])
    ]
    assert [half.wait(timeout=120) for half in halves] == [0, 0]
    assert roll(["replay", config.run_dir, "--local", "--from", "3"]) == 0
    assert "weights: equal after 2 of 2 steps" in capsys.readouterr().out
