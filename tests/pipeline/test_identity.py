"""Which run a process takes part in, by its folder and the checkpoint that it goes on from."""

from pathlib import Path

import pytest

from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.core.record.checkpoint import Checkpoint
from roll.core.record.run_identity import identify
from roll.prepare.beginning import standing
from roll.prepare.preparation import check_database
from roll.topologies import shared_groups


def config(folder, mode="train", resume="auto"):
    where = {"output_dir": str(folder.parent), "exp_name": folder.name, "explorer_name": "e"}
    return RLVRConfig(mode=mode, resume_from_checkpoint=resume, **where)


def checkpoint(folder, run_id):
    return Checkpoint(folder / "checkpoints" / "step-2", 2, {"run": run_id}, [])


def test_a_folder_says_which_run_it_is_unless_a_new_one_begins_there(tmp_path):
    run = tmp_path / "run"
    assert standing(config(run), None) is None
    identity = identify(run, "run")
    own, of_others = checkpoint(run, identity.id), checkpoint(tmp_path / "other", "0ther")
    assert own.is_of(run) and not of_others.is_of(run)
    for mode in ("train", "explore", "both"):
        assert standing(config(run, mode), None) == identity
    assert standing(config(run, "both", True), own) == identity
    assert standing(config(run, "both", str(of_others.path)), of_others) is None
    assert standing(config(run, "both", False), None) is None, "its folder is moved aside"
    assert standing(config(run, "bench"), None) is None


def test_a_checkpoint_says_it_where_the_folder_does_not_and_another_runs_is_refused(tmp_path):
    run = tmp_path / "run"
    found = standing(config(run), checkpoint(run, "5eed"))
    assert found is not None and found.id == "5eed"
    identify(run, "run", known="0ther")
    with pytest.raises(ValueError, match=r"step-2 is of another run \(5eed\) than this folder \(0ther\)"):
        standing(config(run), checkpoint(run, "5eed"))
    Path(run / "run.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        standing(config(run), None)
    assert standing(config(run), checkpoint(run, "5eed")).id == "5eed"


def test_a_run_that_another_process_begins_while_this_one_looks_is_joined(tmp_path, monkeypatch):
    """An explorer and the trainer are started at the same time: the folder named no run yet, the database does."""
    run, asked = tmp_path / "run", []
    identity = identify(run, "run")

    def check(config, address, contract, claim, checkpoint):
        asked.append(claim.identity)
        if claim.identity is None:
            raise ConfigError([Problem("groups_database", address, "the database is that of another run")])

    monkeypatch.setattr(shared_groups, "check_database", check)
    explorer = config(run, "explore")
    check_database(explorer, {}, None, None, False)
    assert asked == [None, identity]
    (run / "run.json").unlink()
    with pytest.raises(ConfigError, match="that of another run"):
        check_database(explorer, {}, None, None, False)
