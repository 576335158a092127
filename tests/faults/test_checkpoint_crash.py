"""A checkpoint is complete or absent, and what is resumed from one is the same run."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file

from roll.cli.train import main
from roll.cli.verify import read_run, violations

AUTO = "resume_from_checkpoint=auto"


def weights(run_dir, step):
    return load_file(run_dir / f"checkpoints/step-{step}/trainer/model/model.safetensors")


@pytest.fixture
def in_process(world, tmp_path, monkeypatch, capsys):
    """The command line in this process; returns its exit code and what it wrote to standard error."""
    monkeypatch.syspath_prepend(str(world.workers))

    def run(*overrides, output="output"):
        code = main(["--local", *world.arguments(f"output_dir={tmp_path / output}", *overrides)])
        return code, capsys.readouterr().err

    yield run
    torch.use_deterministic_algorithms(False)


def test_killed_while_saving(launch, in_process, accounts, tmp_path):
    run = launch("actor_train.worker_cls=fault_trainers.StuckInSave")
    run.wait_for("half a checkpoint", (tmp_path / "half-written").exists)
    run.wait_for_steps(7)
    run.signal(signal.SIGKILL)
    run.end()
    (partial,) = (run.dir / "checkpoints").glob(".step-6.*.partial")
    assert (partial / "trainer/model/model.safetensors").exists() and not (run.dir / "checkpoints/step-6").exists()

    # Asked for by name, the half-written one is refused, and so it is when someone moved it to its final place.
    shutil.copytree(partial, run.dir / "checkpoints/step-6")
    for path in (partial, run.dir / "checkpoints/step-6"):
        code, err = in_process(f"resume_from_checkpoint={path}")
        assert code == 2 and len(err.splitlines()) == 1, err
        assert "no manifest.json" in err and f"the last complete one is {run.dir / 'checkpoints/step-4'}" in err
    run.wait_for_epitaph()

    shutil.copytree(run.dir, tmp_path / "again/run")
    for output in ("output", "again"):
        code, err = in_process(AUTO, output=output)
        assert (code, err) == (0, "")
        accounts(tmp_path / output / "run")


def damage(checkpoint):
    with (checkpoint / "trainer/model/model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")


def test_a_damaged_checkpoint_is_left_out_and_said_to_be(launch, in_process, accounts, tmp_path):
    """`auto` goes to the newest good one; with only bad ones it is an error, never a new start."""
    assert in_process("max_steps=4")[0] == 0
    checkpoints = tmp_path / "output/run/checkpoints"
    shutil.copytree(tmp_path / "output", tmp_path / "bad")
    damage(checkpoints / "step-4")
    resumed = launch(AUTO)
    assert resumed.end() == 0, resumed.output
    assert "left out: step-4: file trainer/model/model.safetensors is not what was saved (hash differs)" in resumed.output
    assert resumed.summary()["resumed_from_step"] == 2
    accounts(resumed.dir)

    for step in (2, 4):
        damage(tmp_path / f"bad/run/checkpoints/step-{step}")
    before = (tmp_path / "bad/run/groups.jsonl").read_bytes()
    for wish in (AUTO, "resume_from_checkpoint=true"):
        code, err = in_process(wish, output="bad")
        assert code == 2 and len(err.splitlines()) == 1
        assert "step-4: " in err and "step-2: " in err and "start over with false" in err
    assert (tmp_path / "bad/run/groups.jsonl").read_bytes() == before and not (tmp_path / "bad/run.old-1").exists()


@pytest.mark.parametrize("what", ["checkpoints", "checkpoints/step-4"])
def test_checkpoints_on_another_disk_are_the_runs_own(in_process, accounts, tmp_path, what):
    """A link in the run's folder: the run goes on where it is, with its journals."""
    assert in_process("max_steps=4")[0] == 0
    run_dir = tmp_path / "output/run"
    shutil.move(run_dir / what, tmp_path / "disk")
    (run_dir / what).symlink_to(tmp_path / "disk")
    assert in_process(AUTO, "max_steps=8") == (0, "")
    assert in_process(AUTO) == (0, "")
    assert not (tmp_path / "output/run.old-1").exists()
    accounts(run_dir, validated=(0, 4, 6, 8, 12))


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


def lost(rows):
    """What a disk loses is the end; rows after the checkpoint may be lost."""
    return rows[:1]


def changed(rows):
    """Of the same length, so that neither size nor line borders tell."""
    other = [re.sub(rb'"(step|lag)": \d', rb'"\1": 9', rows[0], count=1), *rows[1:]]
    assert other != rows
    return other


@pytest.mark.parametrize("damage", [lost, changed])
def test_the_statuses_of_groups_cannot_be_done_without_and_a_start_that_is_refused_changes_nothing(in_process, tmp_path, damage):
    assert in_process("max_steps=4")[0] == 0
    journal = tmp_path / "output/run/groups.jsonl"
    journal.write_bytes(b"".join(damage(journal.read_bytes().splitlines(keepends=True))))
    before = contents(tmp_path / "output")
    for wish in (AUTO, f"resume_from_checkpoint={tmp_path}/output/run/checkpoints/step-4"):
        code, err = in_process(wish, "max_steps=6")
        assert code == 2 and len(err.splitlines()) == 1, err
        assert "groups.jsonl" in err and ("rows were lost" in err or "were changed or lost" in err)
    assert contents(tmp_path / "output") == before


def test_the_newest_checkpoint_that_the_statuses_of_groups_reach_is_found(in_process, accounts, tmp_path):
    assert in_process("max_steps=4")[0] == 0
    run_dir = tmp_path / "output/run"
    position = json.loads((run_dir / "checkpoints/step-2/pipeline.json").read_text())["record"]["groups"]
    (run_dir / "groups.jsonl").write_bytes((run_dir / "groups.jsonl").read_bytes()[: position + 20])
    assert in_process(AUTO)[0] == 0
    assert (run_dir / "checkpoints/rolled-back-step-4").is_dir()
    accounts(run_dir, validated=(0, 6, 12))


@pytest.mark.parametrize("damage", [lost, changed])
@pytest.mark.parametrize("name", ["samples", "metrics"])
def test_a_log_that_lost_rows_or_has_others_is_set_aside_and_the_run_goes_on(in_process, tmp_path, name, damage, caplog):
    assert in_process("max_steps=4")[0] == 0
    run_dir = tmp_path / "output/run"
    journal = run_dir / f"{name}.jsonl"
    left = damage(journal.read_bytes().splitlines(keepends=True))
    journal.write_bytes(b"".join(left))
    assert in_process(AUTO, "max_steps=6")[0] == 0
    [warning] = [record.getMessage() for record in caplog.records if "; the run goes on" in record.getMessage()]
    assert f"{name}.jsonl" in warning
    assert json.loads((run_dir / "summary.json").read_text())["steps"] == 6
    kept = b"".join(path.read_bytes() for path in run_dir.glob(f"{name}*.jsonl"))
    assert all(line in kept for line in left), "rows are moved, and not lost"


def removed(database):
    database.unlink()


def without_header(database):
    database.write_bytes(bytes(100) + database.read_bytes()[100:])


def older(database):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE runs SET seq = 3")


@pytest.mark.parametrize("damage", [removed, without_header, older])
def test_a_database_is_restored_from_the_checkpoint(in_process, accounts, tmp_path, damage, caplog):
    database = tmp_path / "output/run/groups.db"
    inside = f"groups_database=sqlite:///{database}"
    assert in_process(inside)[0] == 0
    damage(database)
    left = database.read_bytes() if database.exists() else None
    step_4 = f"resume_from_checkpoint={database.parent}/checkpoints/step-4"
    assert in_process(step_4, inside, "rollout_batch_size=8")[0] == 2, "the contract of the run is that of the copy"
    assert in_process(step_4, inside)[0] == 0
    accounts(tmp_path / "output/run")
    assert "it was restored from step-4" in caplog.text
    aside = database.with_name("damaged-1-groups.db")
    assert (aside.read_bytes() if aside.exists() else None) == left


def test_a_damaged_database_that_no_checkpoint_has_a_copy_of_is_refused_and_nothing_is_changed(in_process, tmp_path):
    database = tmp_path / "output/groups.db"
    inside = f"groups_database=sqlite:///{database}"
    assert in_process("max_steps=4", inside)[0] == 0
    without_header(database)
    before = contents(tmp_path / "output")
    code, err = in_process("exp_name=other", "max_steps=4", inside)
    assert code == 2 and len(err.splitlines()) == 1 and "groups_database = " in err and "the database is damaged" in err, err
    assert contents(tmp_path / "output") == before


DETERMINISTIC = ("deterministic=true", "async_generation_ratio=0", "max_steps=8")


def test_resumed_run_equals_the_uninterrupted_one(in_process, tmp_path):
    """Bit for bit: ratio 0, deterministic. Twice from the same checkpoint, too."""
    assert in_process(*DETERMINISTIC, output="whole") == (0, "")
    assert in_process(*DETERMINISTIC[:2], "max_steps=4", output="first")[0] == 0
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    expected = weights(tmp_path / "whole/run", 8)
    start = weights(tmp_path / "whole/run", 2)
    assert any(not torch.equal(expected[name], start[name]) for name in expected), "nothing was learnt: the test is blind"
    for output in ("first", "second"):
        assert in_process(*DETERMINISTIC, AUTO, output=output) == (0, "")
        resumed = weights(tmp_path / output / "run", 8)
        assert resumed.keys() == expected.keys()
        assert all(torch.equal(resumed[name], expected[name]) for name in expected)


def test_going_back_to_an_older_checkpoint(in_process, accounts, tmp_path):
    """The later checkpoints belong to a course that was given up: `auto` must not pick them up afterwards."""
    run_dir = tmp_path / "output/run"
    assert in_process("max_steps=6")[0] == 0
    assert in_process(f"resume_from_checkpoint={run_dir / 'checkpoints/step-2'}", "max_steps=3", "save_steps=100")[0] == 0
    assert sorted(path.name for path in (run_dir / "checkpoints").glob("step-*")) == ["step-2", "step-3"]
    assert in_process(AUTO) == (0, "")
    accounts(run_dir, validated=(0, 3, 6, 12))


def test_starting_from_another_runs_checkpoint(in_process, tmp_path):
    """Weights and position are taken over, journals are not; an earlier run of the same name is moved aside whole."""
    assert in_process("max_steps=2", output="other")[0] == 0
    assert in_process("max_steps=4")[0] == 0
    path = tmp_path / "other/run/checkpoints/step-2"
    assert in_process(f"resume_from_checkpoint={path}", "max_steps=4")[0] == 0
    assert (tmp_path / "output/run.old-1/summary.json").exists()
    rows = (tmp_path / "output/run/metrics.jsonl").read_text()
    assert '"step": 3' in rows and '"step": 1,' not in rows
    assert list(violations(read_run(tmp_path / "output/run"))) == []
    assert in_process(AUTO, "max_steps=6") == (0, "")
    assert list(violations(read_run(tmp_path / "output/run"))) == []


def test_changed_batch_size_is_refused(in_process):
    assert in_process("max_steps=2")[0] == 0
    code, err = in_process(AUTO, "rollout_batch_size=8")
    assert code == 2 and len(err.splitlines()) == 1
    assert "resume_from_checkpoint" in err and "4 groups a step, not 8 (rollout_batch_size)" in err
    fix = re.search(r"; fix: (rollout_batch_size): (\d+), or another exp_name", err)
    assert fix is not None and in_process(AUTO, f"{fix[1]}={fix[2]}", "max_steps=3")[0] == 0, "the fix is the old number"
