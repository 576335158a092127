"""A fix for a file or a command, and for what is written in Python, is followed as it is written, until all can be read."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.core.configs.problems import ConfigError
from roll.prepare.compose import load
from roll.prepare.keywords import made
from roll.prepare.yaml_files import check_files

ROUNDS = 3


def without_problems(attempt: Callable[[], object], follow: Callable[[str], None]) -> list[str]:
    """The fixes that were followed."""
    fixes: list[str] = []
    for _ in range(ROUNDS):
        try:
            attempt()
        except ConfigError as error:
            fixes.append(error.problems[0].fix)
            follow(fixes[-1])
        else:
            assert fixes, "nothing is wrong"
            return fixes
    raise AssertionError(fixes)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("seed: 0123", r"(\d+), or"),
        ("seed: 1:30", r"(\d+), or"),
        ("names: !!set {a, b}", r"a list, (\[a, b\])"),
        ("stamp: !!timestamp 2020-01-01", "a text in quotes"),
        ("seed: !mine 3", "leave it out"),
        ("seed: &a {b: *a}", "write out what it stands for"),
        ("seed: *a", "write out what it stands for"),
        ("seed: {a: b: c}", "mend that line; a text with : .* goes in quotes"),
        ("seed:\t3\n\tmore: 3", "mend that line"),
        ("seed: @3", "mend that line"),
        ("- seed: 3", "a key and its value a line: (max_steps: 100)"),
    ],
)
def test_a_line_that_is_no_configurations_is_mended_as_the_fix_says(tmp_path: Path, line: str, instead: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(line + "\n")

    def follow(fix: str) -> None:
        found = re.match(instead, fix)
        assert found, fix
        said = found[1] if found.groups() else "'3'"
        file.write_text(said if ": " in said else f"{line.partition(':')[0]}: {said}\n")

    without_problems(lambda: check_files(tmp_path, "a") or read_through(tmp_path), follow)


def read_through(folder: Path) -> None:
    """Hydra's own reading, which tells what is not YAML."""
    load_named(folder, "a", [])


def load_named(folder: Path, name: str, overrides: list[str]) -> None:
    try:
        load(folder, name, overrides)
    except ConfigError as error:
        about = [each for each in error.problems if each.key in ("config_name", "override") or "${" in str(each.value)]
        if about:
            raise ConfigError(about) from None


@pytest.mark.parametrize(
    ("files", "arguments", "fixed"),
    [
        (["a.yml"], ["--config_name", "a.yml"], "rename it to a.yaml"),
        (["a.yaml", "b.yaml"], ["--config_name", "c"], "choose one of a, b"),
        (["a.yaml", "deep/b.yaml"], ["--config_name", "a", "deep/b.yaml"], "--config_path deep --config_name b"),
        (["a.yaml", "deep/b.yaml"], ["--config_path", "deep", "--config_name", "a"], "--config_path . --config_name a"),
        (["a.yaml"], ["--config_name", "a", "steps"], "write key=value, +key=value or ~key"),
    ],
)
def test_a_file_is_found_as_the_fix_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], arguments: list[str], fixed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("max_steps: 1\n")
    given = {"words": list(arguments)}

    def attempt() -> None:
        parser = ArgumentParser()
        parser.add_argument("--config_path", default=".", type=Path)
        parser.add_argument("--config_name")
        options, overrides = parser.parse_known_args(given["words"])
        load_named(options.config_path, options.config_name, overrides)

    def follow(fix: str) -> None:
        assert fix.startswith(fixed), fix
        if found := re.fullmatch(r"rename it to (\S+)", fix):
            (tmp_path / files[0]).rename(tmp_path / found[1])
            given["words"] = ["--config_name", found[1]]
        elif found := re.match(r"choose one of (\w+)", fix):
            given["words"] = ["--config_name", found[1]]
        elif fix.startswith("--config_path"):
            given["words"] = shlex.split(fix)
        else:
            given["words"][-1] = "max_steps=2"

    without_problems(attempt, follow)


@pytest.mark.parametrize(
    ("value", "fixed"),
    [("${oc.env:ROLL_TEST_NAME}", "export ROLL_TEST_NAME"), ("${nowhere}", "give nowhere a value"), ("${a b", "")],
)
def test_a_reference_is_resolved_as_the_fix_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, fixed: str) -> None:
    monkeypatch.delenv("ROLL_TEST_NAME", raising=False)
    file = tmp_path / "a.yaml"
    file.write_text(f"exp_name: '{value}'\n")

    def follow(fix: str) -> None:
        assert fixed in fix, fix
        if fix.startswith("export"):
            monkeypatch.setenv("ROLL_TEST_NAME", "x")
        elif fix.startswith("give"):
            file.write_text(f"{file.read_text()}nowhere: x\n")
        else:
            assert "\\${ for the text itself" in fix
            file.write_text(file.read_text().replace("${", "\\${"))

    without_problems(lambda: read_through(tmp_path), follow)


def test_the_weights_of_two_rewards_are_as_many_as_the_fix_writes() -> None:
    def one(sample: object) -> float:
        return 1.0

    def two(sample: object) -> float:
        return 0.0

    with pytest.raises(ConfigError, match=r"fix: one for each, e.g. \[1.0, 1.0\]$"):
        made(model="x", data=["1"], reward=[one, two], reward_weights=[1.0])
