"""A folder gives its run one id, whoever comes first; and its database is where the run used it."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import yaml

from roll.core.record.run_identity import RUN, groups_address, identify, read_identity, started_in, write_identity


def test_a_folder_has_one_run_whoever_comes_first(tmp_path):
    assert read_identity(tmp_path / "run") is None
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: identify(tmp_path / "run", "run").id, range(8)))
    assert len(found) == 1 and found != {identify(tmp_path / "other", "run").id}
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = identify(tmp_path / "moved", "run")
    assert {moved.id} == found and moved.folder == str(tmp_path / "moved")
    assert [path.name for path in (tmp_path / "moved").iterdir()] == [RUN]


def test_a_checkpoint_brings_a_lost_id_back(tmp_path):
    assert identify(tmp_path, "run", known="5eed").id == "5eed"
    (tmp_path / RUN).write_text('{"id": ')
    with pytest.raises(ValueError, match=r"run.json is damaged: .*; its trainer writes it again"):
        identify(tmp_path, "run")
    assert identify(tmp_path, "run", known="5eed").id == "5eed" == read_identity(tmp_path).id


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, '{"id": 3}', '{"id": "a"}'])
def test_a_file_of_another_shape_is_one_error(tmp_path, text):
    (tmp_path / RUN).write_text(text)
    with pytest.raises(ValueError, match="is damaged"):
        read_identity(tmp_path)


def test_a_relative_database_is_where_the_run_used_it_and_not_where_the_reader_is(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    identity = identify(folder, "run")
    (folder / "config.yaml").write_text(yaml.safe_dump({"groups_database": "sqlite:///gsm8k.db"}))
    monkeypatch.chdir(elsewhere)
    (elsewhere / "gsm8k.db").touch()
    with pytest.raises(ValueError, match="is relative to the folder that the run was started in"):
        groups_address(folder)
    write_identity(folder, replace(identity, database=f"sqlite:///{tmp_path}/gsm8k.db"))
    assert groups_address(folder) == f"sqlite:///{tmp_path}/gsm8k.db"
    (folder / "config.yaml").write_text(json.dumps({"groups_database": None}))
    assert groups_address(folder) is None
    (folder / "groups.db").touch()
    assert groups_address(folder) == f"sqlite:///{folder}/groups.db"


@pytest.mark.parametrize("database", ["gsm8k.db", "output/run/own.db"])
@pytest.mark.parametrize("process", ["", "explorers/one"])
def test_a_copy_has_the_database_that_was_copied_with_it(tmp_path, database, process):
    """Beside the run, or in it; whichever process of the run noted where it is."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    run = original / "output" / "run"
    identity = replace(identify(run, "run"), database=f"sqlite:///{original}/{database}")
    write_identity(run, identity)
    own = run / process
    own.mkdir(parents=True, exist_ok=True)
    write_identity(own, identity)
    (own / "config.yaml").write_text(yaml.safe_dump({"groups_database": f"sqlite:///{database}"}))
    (original / database).touch()
    shutil.copytree(original, copy)
    assert groups_address(own) == f"sqlite:///{original}/{database}"
    copied = copy / "output" / "run" / process
    assert groups_address(copied) == f"sqlite:///{copy}/{database}"
    (copy / database).unlink()
    with pytest.raises(ValueError, match=r"is a copy of .*/original/output/run, whose database is"):
        groups_address(copied)
    shutil.rmtree(original / "output")  # then it was moved, and its database stayed
    assert groups_address(copied) == f"sqlite:///{original}/{database}"


@pytest.mark.parametrize(
    ("output_dir", "started"),
    [("./output", "work"), ("output/", "work"), (".", "work/output"), ("../output", None), ("/work/output", None), (3, None)],
)
def test_the_folder_that_relative_paths_of_a_run_were_meant_from(tmp_path, output_dir, started):
    """Also of a run that was moved since."""
    folder = tmp_path / "work" / "output" / "run"
    identify(folder, "run")
    (folder / "config.yaml").write_text(yaml.safe_dump({"output_dir": output_dir, "exp_name": "run"}))
    moved = folder.rename(tmp_path / "moved")
    assert started_in(moved) == (tmp_path / started if started else None)
    assert started_in(tmp_path) is None
