"""Why a user's code could not be imported by its dotted path."""

import importlib
import sys

import pytest

from roll.core.configs.dotted_path import import_object


@pytest.mark.parametrize("form", ["file", "package", "folder"])
@pytest.mark.parametrize("name", ["random", "json", "time"])
def test_a_module_of_pythons_that_hides_a_file_is_named(tmp_path, monkeypatch, name, form):
    monkeypatch.syspath_prepend(tmp_path)
    sys.path.append(sys.path.pop(0))  # behind Python's own, as a command appends the folder of its start
    if form == "file":
        (tmp_path / f"{name}.py").write_text("def reward(sample): return 1.0")
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / ("__init__.py" if form == "package" else "mine.py")).write_text("def reward(sample): return 1.0")
    importlib.import_module(name)
    with pytest.raises(ValueError, match=f"the module {name} is Python's own, which hides {tmp_path}.*another name"):
        import_object(f"{name}.reward" if form != "folder" else f"{name}.mine.reward")


def test_a_package_that_hides_a_file_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pytest.py").write_text("def reward(sample): return 1.0")
    with pytest.raises(ValueError, match=r"the module pytest is another one, .*pytest.*, which hides"):
        import_object("pytest.reward")


@pytest.mark.parametrize("path", ["random.reward", "json.reward.f", "mine_alone.absent", "nowhere_at_all.f"])
def test_where_nothing_is_hidden_nothing_is_said_of_it(tmp_path, monkeypatch, path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_alone.py").write_text("present = 1")
    with pytest.raises(ValueError, match="cannot be imported") as caught:
        import_object(path)
    assert "hides" not in str(caught.value)
