from pathlib import Path

import pytest

from roll.prepare.yaml_files import files, origins


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "main").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "envs.yaml").write_text("size: 1\nenv:\n  lake: {type: a}\n")
    (tmp_path / "main" / "base.yaml").write_text("a: 1\nb:\n  c: 2\n  d: 3\n")
    (tmp_path / "main" / "db").mkdir()
    (tmp_path / "main" / "db" / "small.yaml").write_text("width: 1\n")
    return tmp_path / "main"


def write(folder: Path, text: str) -> None:
    (folder / "run.yaml").write_text(text)


def test_later_entries_of_the_defaults_list_win_and_the_file_itself_comes_last(folder):
    write(folder, "defaults:\n  - base@_here_\n  - ../shared/envs@_here_\nhydra: {x: 1}\na: 5\nb:\n  d: 6\nl: [x,\n  {y: 1}]\n")
    assert origins(folder, "run") == {
        "a": "run.yaml:5",
        "b": "run.yaml:6",
        "b.c": "base.yaml:3",
        "b.d": "run.yaml:7",
        "size": "../shared/envs.yaml:1",
        "env": "../shared/envs.yaml:2",
        "env.lake": "../shared/envs.yaml:3",
        "env.lake.type": "../shared/envs.yaml:3",
        "l": "run.yaml:8",
        "l[0]": "run.yaml:8",
        "l[1]": "run.yaml:9",
        "l[1].y": "run.yaml:9",
    }


def test_self_has_its_place_in_the_list(folder):
    write(folder, "defaults: [_self_, base@_here_]\na: 5\n")
    assert origins(folder, "run")["a"] == "base.yaml:1"


def test_packages_and_groups(folder):
    write(folder, "defaults:\n  - base@inner.block\n  - db: small\n  - db/small@_global_\n")
    found = origins(folder, "run")
    assert found["inner.block.b.c"] == "base.yaml:3"
    assert found["db.width"] == found["width"] == "db/small.yaml:1"


def test_overrides_come_last(folder):
    write(folder, "a: 5\n")
    found = origins(folder, "run", ["a=1", "+b.c=2", "++d=3"])
    assert {key: found[key] for key in ("a", "b.c", "d")} == dict.fromkeys(("a", "b.c", "d"), "command line")


def test_files_that_cannot_be_read_are_left_out(folder):
    write(folder, "defaults: [nowhere@_here_]\na: 1\n")
    assert origins(folder, "run") == {"a": "run.yaml:2"}
    write(folder, "a: [1\n")
    assert origins(folder, "run") == {}


def test_top_level_keys_by_file(folder):
    write(folder, "defaults: [base@_here_]\nz: 1\n")
    assert files(folder, "run") == {"run.yaml": {"z"}, "base.yaml": {"a", "b"}}
