"""`roll init` and `roll demo`: a folder that trains as it is, and a demo that makes its model only where it is missing."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from roll.cli import demo, embedded
from roll.cli.main import main

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def roll(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roll.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=150)


def summary(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "summary.json").read_text()))


@pytest.mark.slow
def test_what_init_makes_is_checked_and_trained_as_it_is(embedded_task, forks, tmp_path):
    made = roll("init", "mine", "--model", str(embedded_task / "model"), folder=tmp_path)
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "mine"
    assert {"mine.yaml", "reward.py", "prompts.jsonl", "validation.jsonl"} == {path.name for path in folder.iterdir()}
    named = ("--config_path", ".", "--config_name", "mine")
    checked = roll("check", *named, folder=folder)
    assert checked.returncode == 0 and checked.stdout.startswith("mine: rlvr"), checked.stderr
    train = ["-m", "roll.cli.main", "train", "rlvr", *named, "--local", "max_steps=2"]
    forks.run(train, folder, environment(), tmp_path / "log.txt")
    assert summary(folder / "output" / "mine")["status"] == "finished"
    rows = [json.loads(line) for line in (folder / "output/mine/samples.jsonl").read_text().splitlines()]
    assert rows and all(row["reward"] is not None for row in rows), "the reward of reward.py has judged"


@pytest.mark.slow
@pytest.mark.ray
def test_a_file_gets_no_colours_also_from_workers(embedded_task, forks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine", "--model", str(embedded_task / "model")]) == 0
    reward = tmp_path / "mine" / "reward.py"
    reward.write_text(reward.read_text().replace("        said, right", "        print('graded here')\n        said, right"))
    named = ("--config_path", ".", "--config_name", "mine")
    small = ("max_steps=1", "rollout_batch_size=4", "actor_train.training_args.per_device_train_batch_size=32", "eval_steps=1")
    train = ["-m", "roll.cli.main", "train", "rlvr", *named, *small]
    told = forks.run(train, tmp_path / "mine", environment(), tmp_path / "log.txt")
    assert any("graded here" in line and "pid=" in line for line in told.splitlines()), told
    assert "\x1b" not in told
    assert [line.split()[1] for line in told.splitlines() if line.startswith("step ")][-1] == "1/1"


def test_init_refuses_a_name_a_full_folder_and_a_model_that_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for arguments, told in (
        (["a b"], "is not a valid name for a run"),
        (["full"], "exists already and is not empty"),
        (["new", "--model", "nowhere"], "has no config.json"),
    ):
        assert main(["init", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line and "fix:" in line
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "thesis.tex"]


def test_init_makes_the_embedded_model_in_the_folder(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(embedded.EmbeddedModel, "make", lambda self: asked.append(self))
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    (model,) = asked
    assert model.folder == Path("mine/embedded/cache") and model.script.is_file()
    assert 'pretrain: "embedded/cache/model"' in (tmp_path / "mine" / "mine.yaml").read_text()


@pytest.mark.slow
def test_the_demo_trains_the_model_that_is_there(embedded_task, forks, tmp_path):
    (tmp_path / "examples" / "embedded").mkdir(parents=True)
    (tmp_path / "examples" / "embedded" / "cache").symlink_to(embedded_task)
    demo = ["-m", "roll.cli.main", "demo", "--local", "max_steps=2", "eval_steps=2"]
    assert "making the embedded model" not in forks.run(demo, tmp_path, environment(), tmp_path / "log.txt")
    assert summary(tmp_path / "output" / "rlvr_embedded_async")["steps"] == 2


@pytest.mark.parametrize(
    ("arguments", "script", "folder"),
    [
        ([], "make_embedded.py", "examples/embedded/cache"),
        (["rlvr", "max_steps=3"], "make_embedded.py", "examples/embedded/cache"),
        (["agentic"], "make_frozen_lake.py", "examples/embedded/cache_frozen_lake"),
        (["agentic", "--config_name", "agent_val_sokoban"], "make_sokoban.py", "examples/embedded/cache_sokoban"),
    ],
)
def test_the_demo_makes_the_model_that_its_configuration_names(arguments, script, folder, tmp_path, monkeypatch, capsys):
    """With a maker that fails: nothing is trained then."""
    made = []

    def fail(self: embedded.EmbeddedModel) -> None:
        made.append(self)
        raise subprocess.CalledProcessError(1, self.command)

    monkeypatch.setattr(embedded.EmbeddedModel, "make", fail)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == demo.FAILED
    out, err = capsys.readouterr()
    (model,) = made
    assert (model.script.name, model.folder.as_posix()) == (script, folder)
    assert f"making the embedded model in {folder}" in out and "could not be made" in err


def test_the_reward_of_init_judges_as_it_says():
    spec = importlib.util.spec_from_file_location("reward", ROOT / "roll" / "cli" / "starter" / "reward.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    worker = module.DigitsRewardWorker({"timeout_s": 1, "max_concurrency": 1, "reward_args": {"length_penalty": 0.1}})

    def grade(said: str) -> float:
        sample = SimpleNamespace(response_text=said, prompt=SimpleNamespace(ground_truth="231"))
        return float(asyncio.run(worker.grade(sample)))

    assert [grade(said) for said in ("231", "230", "2310", "")] == pytest.approx([1, 2 / 3, 0.9, 0])
