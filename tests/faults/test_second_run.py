"""A second experiment on what is a first one's: its database, its folder. It is refused and told whose that is; the first one
goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections import Counter

import pytest

from roll.cli.show import main as status
from roll.cli.verify import main as verify
from roll.cli.verify import read_run, violations

APART = ("num_gpus_per_node=1", "resume_from_checkpoint=auto", "member_timeout=5")
TRAINER = ("mode=train", "actor_train.device_mapping=0", *APART)
EXPLORER = ("mode=explore", "actor_infer.device_mapping=0", *APART)


def errors(run):
    return [line for line in run.output.splitlines() if line.startswith("error: ")]


def check_refused(second, *says):
    assert second.end() == 2, second.output
    (line,) = errors(second)
    assert "Traceback" not in second.output and "starting" not in second.output
    for each in says:
        assert each in line, line


@pytest.fixture
def database(tmp_path):
    return f"groups_database=sqlite:///{tmp_path / 'shared.db'}"


def rows(tmp_path, query):
    with sqlite3.connect(f"file:{tmp_path / 'shared.db'}?mode=ro", uri=True, timeout=30) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
def test_a_second_run_on_the_database_of_one_that_runs_is_refused_and_the_first_one_ends_as_it_would_have(
    launch, accounts, database, tmp_path
):
    trainer, explorer = launch(*TRAINER, database), launch(*EXPLORER, database)
    trainer.wait_for_steps(2)
    ways = ("groups_database", f"output_dir {tmp_path / 'output'}, exp_name run, resume_from_checkpoint: auto")
    whose = ("that of the run run in", f"its trainer is alive (process {trainer.process.pid} on", *ways)
    others = [launch(*half, database, f"exp_name=other{number}") for number, half in enumerate((TRAINER, EXPLORER, ()))]
    for other in others:
        check_refused(other, *whose)
    assert (trainer.end(), explorer.end()) == (0, 0), trainer.output + explorer.output
    accounts(trainer.dir, validated=None)
    assert not rows(tmp_path, "SELECT 1 FROM groups WHERE reason = 'rolled_back'")
    check_refused(launch(*TRAINER, database, "exp_name=later"), "finished, step 12 of 12, 48 groups trained", "is not running")


@pytest.mark.slow
def test_a_run_that_was_killed_is_gone_on_with_by_its_own_trainer_alone_and_at_once(launch, accounts, database):
    trainer, explorer = launch(*TRAINER, database), launch(*EXPLORER, database)
    trainer.wait_for_checkpoint(2)
    trainer.signal(signal.SIGKILL)
    trainer.end()
    check_refused(launch(*TRAINER, database, "exp_name=other"), "its trainer gives no sign of life")
    again = launch(*TRAINER, database, "member_timeout=100")
    again.wait_for("step", lambda: len(again.steps()) > 2)
    assert "waiting 100 s" not in again.output, "it is known to be dead"
    assert (again.end(), explorer.end()) == (0, 0), again.output + explorer.output
    accounts(again.dir, validated=None)


@pytest.mark.slow
def test_one_driver_that_was_killed_before_its_first_checkpoint_begins_again_on_its_database_if_it_is_to_go_on(
    launch, accounts, database
):
    first = launch(database, "resume_from_checkpoint=auto", "save_steps=100")
    first.wait_for_steps(2)
    first.signal(signal.SIGKILL)
    first.end()
    check_refused(launch(database, "resume_from_checkpoint=false"), "that of the run run in", "a database of its own")
    assert not first.dir.with_name("run.old-1").exists()
    again = launch(database, "resume_from_checkpoint=auto", "save_steps=100")
    assert again.end() == 0, again.output
    accounts(again.dir)


@pytest.mark.slow
def test_a_copy_of_a_run_does_not_push_out_the_trainer_that_is_alive(launch, accounts, database):
    trainer, explorer = launch(*TRAINER, database), launch(*EXPLORER, database)
    trainer.wait_for_checkpoint(2)
    trainer.signal(signal.SIGSTOP)
    shutil.copytree(trainer.dir, trainer.dir.with_name("copy"))
    trainer.signal(signal.SIGCONT)
    check_refused(launch(*TRAINER, database, "exp_name=copy"), f"a trainer of this run is alive: process {trainer.process.pid}")
    assert (trainer.end(), explorer.end()) == (0, 0), trainer.output + explorer.output
    accounts(trainer.dir, validated=None)


@pytest.mark.slow
def test_a_trainer_without_its_checkpoints_undoes_nothing(launch, accounts, database, tmp_path):
    trainer, explorer = launch(*TRAINER, database), launch(*EXPLORER, database)
    trainer.wait_for_checkpoint(2)
    trainer.wait_for("database that knows of it", lambda: rows(tmp_path, "SELECT saved FROM runs") > [(0,)])
    trainer.signal(signal.SIGKILL)
    trainer.end()
    checkpoints = trainer.dir / "checkpoints"
    checkpoints.rename(tmp_path / "kept")
    check_refused(
        launch(*TRAINER, database),
        "does not go on from its checkpoint of step",
        "resume_from_checkpoint: auto, and bring its checkpoints back",
    )
    shutil.rmtree(checkpoints, ignore_errors=True)
    (tmp_path / "kept").rename(checkpoints)
    again = launch(*TRAINER, database)
    assert (again.end(), explorer.end()) == (0, 0), again.output + explorer.output
    accounts(again.dir, validated=None)


@pytest.mark.slow
def test_the_trainer_says_how_many_steps_there_are_and_task_sets_of_one_name_stay_apart(
    launch, world, faults, tmp_path, monkeypatch, capsys
):
    """Three processes as Trinity prints them: epochs are given, not steps; each task set is a folder's train.jsonl."""
    sets = {"trainer": 48, "explorer": 30, "second": 3}
    for name, count in sets.items():
        (tmp_path / name).mkdir()
        lines = [{**faults.prompt_row(i), "prompt": f"{i + len(name)}+1="} for i in range(count)]
        for row in lines:
            del row["id"]
        faults.write_rows(tmp_path / name / "train.jsonl", lines)
    (tmp_path / "world").mkdir()
    config = (world.folder / "run.yaml").read_text().replace("max_steps: 12", "total_epochs: 1")
    (tmp_path / "world" / "run.yaml").write_text(config)
    monkeypatch.setattr(world, "folder", tmp_path / "world")
    database = f"groups_database=sqlite:///{os.path.relpath(tmp_path / 'shared.db', faults.REPO)}"

    def data(name):
        return f"actor_train.data_args.file_name={tmp_path / name / 'train.jsonl'}"

    second = launch(*EXPLORER, database, data("second"), "explorer_name=second")
    second.wait_for("its first groups", (second.dir / "run.json").exists)
    trainer = launch(*TRAINER, database, data("trainer"))
    explorer = launch(*EXPLORER, database, data("explorer"))
    ends = trainer.end(), explorer.end(), second.end()
    assert ends == (0, 0, 0), trainer.output + explorer.output + second.output
    assert trainer.summary()["steps"] == 12, "48 prompts of the trainer's own, 4 groups a step"
    journal = [json.loads(line) for line in (trainer.dir / "groups.jsonl").read_text().splitlines()]
    by_set = Counter(row["prompt_uid"].split("/")[0] for row in journal)
    assert len(by_set) == 2 and all(name.startswith("even@") for name in by_set), by_set
    explored = json.loads((trainer.dir / "explorers" / "second" / "summary.json").read_text())
    assert explored["steps"] == 12
    monkeypatch.chdir(tmp_path)
    assert list(violations(read_run(trainer.dir))) == []
    assert status([str(trainer.dir)]) == 0 and verify([str(trainer.dir)]) == 0
    told = capsys.readouterr().out
    assert "second has left" in told and "steps     12 of 12" in told and "not looked into" not in told


def begun(tmp_path):
    return (tmp_path / "shared.db").exists() and bool(rows(tmp_path, "SELECT 1 FROM sqlite_master WHERE name = 'runs'"))


@pytest.mark.slow
def test_a_process_whose_tokens_are_others_is_refused(launch, database, world, tmp_path):
    """The numbers that it reads and writes would be another text to the others, or end elsewhere."""
    trainer = launch(*TRAINER, database)
    trainer.wait_for("a run", lambda: begun(tmp_path) and rows(tmp_path, "SELECT 1 FROM runs"))
    other = tmp_path / "model"
    shutil.copytree(world.folder / "model", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, two = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    explorers = [launch(*EXPLORER, database, f"pretrain={other}", "explorer_name=other")]
    explorers.append(launch(*EXPLORER, database, "actor_infer.generating_args.eos_token_id=[0]", "explorer_name=ending"))
    check_refused(explorers[0], "tokenizer of pretrain = ", "the run was begun with", "write what the run's other processes have")
    check_refused(explorers[1], "tokens that end an answer = [0]", "the run was begun with")
    trainer.signal(signal.SIGINT)
    trainer.end()
