"""The `roll` command: what it knows, what it says to what it does not know, and that it imports nothing early."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from roll.cli import main as command

ROOT = Path(__file__).parents[2]


def test_the_console_script_is_installed():
    (script,) = entry_points(group="console_scripts", name="roll")
    assert script.load() is command.main


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_names_every_command(arguments, capsys):
    assert command.main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name}" in out for name in command.COMMANDS)


def test_what_a_terminal_cannot_show_is_a_question_mark():
    """The plan has blocks and Greek letters."""
    given = [sys.executable, "-m", "roll.cli.main", "check", "--config_name", "rlvr_config_async"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(given, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "actor_train       ??" in done.stdout.replace("?·", "??"), done


def test_without_a_command_there_is_help_and_an_error_code(capsys):
    assert command.main([]) == command.USAGE_ERROR
    assert "usage" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys):
    from importlib.metadata import version

    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("roll")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["chekc"], "did you mean check?"),
        (["zzz"], "one of demo, init, check"),
        (["train"], "roll train rlvr"),
        (["train", "x=1"], "agentic"),
    ],
)
def test_an_unknown_command_is_one_line_with_the_nearest(arguments, told, capsys):
    assert command.main(arguments) == command.USAGE_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and told in line


def test_a_command_gets_its_arguments_and_gives_its_code(monkeypatch):
    module = type(sys)("made_up")
    module.main = lambda arguments: len(arguments)
    monkeypatch.setitem(sys.modules, "roll.cli.check", module)
    assert command.main(["check", "a", "--b", "c=d"]) == 3


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_command_has_a_function(name):
    assert callable(command.command_named(name))


@pytest.mark.parametrize(
    ("asked", "folder", "name", "right"),
    [
        ("agentic", "examples/config", "rlvr_config", "roll train rlvr"),
        ("rlvr", "pkg://qwen2.5-0.5B-agentic", "agent_val_frozen_lake_async", "roll train agentic"),
    ],
)
def test_a_configuration_of_the_other_pipeline_is_refused(asked, folder, name, right, capsys):
    assert command.main(["train", asked, "--config_path", folder, "--config_name", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"config_name = '{name}': is the configuration of the" in line and right in line


def loaded_by(*commands):
    """Heavy packages that a process of its own has loaded after each command: what is loaded is what a user waits for."""
    program = (
        "import sys\n"
        "from roll.cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    code = main(command.split())\n"
        "    heavy = [m for m in ('torch', 'transformers', 'ray', 'vllm', 'numpy', 'deepspeed') if m in sys.modules]\n"
        "    early = [m for m in ('hydra', 'yaml') if m in sys.modules]\n"
        "    print('loaded', code, *heavy, *(early if command == '--help' else []))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loaded ")]


def test_help_and_check_import_nothing_heavy(tmp_path):
    """Where the model's folder is not here; `roll demo` may have made that of the example."""
    assert loaded_by("--help", f"check pretrain={tmp_path}/model") == [["0"], ["0"]]


def test_problems_are_told_before_a_model_folder_that_is_here_is_opened(tmp_path):
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    wrong = f"check pretrain={tmp_path} max_steps=0"
    assert loaded_by(wrong) == [["1"]]
    ((_, *loaded),) = loaded_by(f"check pretrain={tmp_path}")
    assert "transformers" in loaded
