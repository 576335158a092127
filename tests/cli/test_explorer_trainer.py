"""examples/async_gsm8k: its files fit each other, and its script ends as what it starts ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roll.cli import check as command
from roll.cli.options import config_folder
from roll.core.distributed.machine import Machine
from roll.plan.contract import contract
from roll.plan.rules.validation import check_config
from roll.prepare.check import check, planned_devices
from roll.prepare.compose import load

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "async_gsm8k"
NAMES = ("trainer", "explorer", "explorer_new")
MACHINE = Machine(cpus=2, memory=1 << 34, accelerators=())
PROCESS = """\
#!{python}
import os, signal, sys
name = sys.argv[sys.argv.index("--config_name") + 1]
told = dict(argument.split("=") for argument in sys.argv if "=" in argument)
ends = (signal.SIGINT, signal.SIGTERM)
if name in told.get("waits", "").split("+"):
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    os.write(1, f"{{name}} waits\\n".encode())
    if "2" in told.values():
        open({fifo!r}, "w").close()
    got = signal.Signals(signal.sigwait(ends)).name
    if name == "trainer" and got == "SIGINT" and signal.sigtimedwait(ends, 1.0):  # the explorer has ended meanwhile
        got = "a second signal"
    os.write(1, f"{{name}} got {{got}}\\n".encode())
    sys.exit(130)
if "waits" in told and told.get(name) == "2":
    open({fifo!r}).read()  # fails when the other is ready
sys.exit(int(told.get(name, 0)))
"""


@pytest.fixture
def config():
    return {name: load(FOLDER, name)[0] for name in NAMES}


def test_the_files_have_no_problem_and_processes_of_one_run_agree(config, monkeypatch):
    monkeypatch.chdir(ROOT.parent)
    assert config_folder("pkg://async_gsm8k") == FOLDER
    for each in config.values():
        assert check_config(each, planned_devices(each, MACHINE)) == []
        assert check(each, MACHINE).plan.roles
    trainer, explorer, new = (config[name] for name in NAMES)
    assert contract(trainer) == contract(explorer) == contract(new)
    assert trainer.groups_address == explorer.groups_address == new.groups_address
    assert (trainer.mode, explorer.mode, new.mode) == ("train", "explore", "explore")
    assert not set(trainer.actor_train.devices) & set(explorer.actor_infer.devices)
    assert len({explorer.run_dir, new.run_dir, trainer.run_dir}) == 3
    assert explorer.actor_train.data_args.files != new.actor_train.data_args.files


def test_an_explorer_needs_no_devices_of_the_trainer_and_plans_no_training(config):
    explorer = config["explorer"]
    assert explorer.actor_train.device_mapping is None
    names = {each.name for each in check(explorer, MACHINE).plan.quantities}
    assert "weight updates" in names and not names & {"optimiser steps", "checkpoints"}


@pytest.mark.parametrize("name", NAMES)
def test_only_an_explorer_needs_an_engine_on_its_machine(name, monkeypatch, capsys):
    monkeypatch.setattr("roll.cli.found_here.engine_problems", lambda key, strategy: ["no such engine"])
    assert command.main(["--config_path", str(FOLDER), "--config_name", name]) == 0
    assert ("would be refused: no such engine" in capsys.readouterr().out) == (name != "trainer")


def test_weights_are_published_every_ten_steps_worth_of_tasks(config):
    (updates,) = [each for each in check(config["trainer"], MACHINE).plan.quantities if each.name == "weight updates"]
    assert updates.run == 12, "versions 10, 20, ..., 110 and 116"


@pytest.fixture
def script(tmp_path):
    """`script(*overrides)` starts run.sh; the two processes that it starts are small programs that end as the overrides say."""
    os.mkfifo(tmp_path / "ready")
    (tmp_path / "python").write_text(PROCESS.format(python=sys.executable, fifo=str(tmp_path / "ready")))
    (tmp_path / "python").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    processes = []

    def start(*overrides, **variables):
        command, given = ["bash", str(FOLDER / "run.sh"), *overrides], environment | variables
        processes.append(subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()  # one that still runs tells its own
        process.communicate(timeout=60)


def test_the_script_is_well_formed():
    subprocess.run(["bash", "-n", FOLDER / "run.sh"], check=True)


@pytest.mark.parametrize(("trainer", "explorer", "code"), [(0, 0, 0), (3, 0, 3), (0, 4, 4)])
def test_the_script_ends_with_the_exit_code_of_what_failed(script, trainer, explorer, code):
    process = script(f"trainer={trainer}", f"explorer={explorer}")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors


@pytest.mark.parametrize(("fails", "waits"), [("trainer", "explorer"), ("explorer", "trainer")])
def test_the_first_that_fails_ends_the_other_and_gives_the_exit_code(script, fails, waits):
    process = script(f"waits={waits}", f"{fails}=2")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert f"{waits} got SIGTERM" in output and f"{fails} ended with exit code 2" in errors


def test_ctrl_c_reaches_both_once_and_nobody_is_told_twice(script):
    process = script("waits=trainer+explorer")
    assert process.stdout is not None
    assert {process.stdout.readline(), process.stdout.readline()} == {"trainer waits\n", "explorer waits\n"}
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert set(output.splitlines()) == {"trainer got SIGINT", "explorer got SIGINT"}


def test_ctrl_c_reaches_a_process_that_the_script_has_started_a_moment_before(script, tmp_path):
    """The script stands still between the start of the explorer and noting its process id."""
    fifo = tmp_path / "noted"
    os.mkfifo(fifo)
    slow = tmp_path / "slow.sh"
    slow.write_text(f"set -T\ntrap '[[ $BASH_COMMAND == running* && $1 == explorer ]] && read -r < {fifo}' DEBUG\n")
    process = script("waits=trainer+explorer", BASH_ENV=str(slow))
    assert {process.stdout.readline(), process.stdout.readline()} == {"trainer waits\n", "explorer waits\n"}
    process.send_signal(signal.SIGINT)
    fifo.write_text("go on\n")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert set(output.splitlines()) == {"trainer got SIGINT", "explorer got SIGINT"}
