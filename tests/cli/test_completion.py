"""What a shell offers after the words typed so far, and that the scripts ask for it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roll.cli.completion import SCRIPTS, candidates
from roll.cli.main import COMMANDS, main
from roll.core.configs.losses import POLICY_LOSSES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("roll |", sorted(COMMANDS)),
        ("roll tr|", ["train"]),
        ("roll train |", ["agentic", "dpo", "rlvr", "sft"]),
        ("roll train rlvr --con|", ["--config_name", "--config_path"]),
        ("roll doctor --js|", ["--json"]),
        ("roll train rlvr --config_name rlvr_c|", ["rlvr_config", "rlvr_config_async"]),
        ("roll check --config_path pkg://qwen2.5-0.5B-agentic --config_name |", ["agent_val_frozen_lake_async"]),
        ("roll train rlvr async_gen|", ["async_generation_ratio="]),
        ("roll train rlvr actor_tra|", ["actor_train."]),
        ("roll train rlvr actor_train.training_args.lr|", ["actor_train.training_args.lr_scheduler_type="]),
        ("roll train rlvr rewards.math.worker|", ["rewards.math.worker_cls="]),
        ("roll train rlvr +rewards.math.worker|", ["+rewards.math.worker_cls="]),
        ("roll train rlvr deterministic=|", ["deterministic=false", "deterministic=training", "deterministic=true"]),
        ("roll train agentic adv_estimator=gi|", ["adv_estimator=gigpo"]),
        ("roll train rlvr adv_estimator=gi|", []),
        ("roll train agentic custom_envs.Lake.env_ty|", ["custom_envs.Lake.env_type="]),
        ("roll train rlvr custom_en|", []),
        ("roll train rlvr no_such.block.|", []),
        ("roll env |", ["add", "audit", "check", "list", "play", "prompts"]),
        ("roll env check frozen|", ["frozen_lake"]),
        ("roll env audit frozen|", ["frozen_lake"]),
        ("roll env audit --pro|", ["--prompts"]),
        ("roll env play --max_s|", ["--max_steps"]),
        ("roll show output/run sa|", ["samples"]),
        ("roll show output/run samples --so|", ["--sort"]),
        ("roll show output/run --js|", ["--json"]),
        ("roll completion |", ["bash", "fish", "zsh"]),
        ("roll no-such-command |", []),
    ],
)
def test_what_may_follow(line, offered, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert candidates(line.removesuffix("|").split(" ")) == offered


def test_every_loss_is_offered():
    assert candidates(["roll", "check", "actor_train.pg_variant="]) == sorted(
        f"actor_train.pg_variant={name}" for name in POLICY_LOSSES
    )


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_reads_its_script(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "roll completion words -- " in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", "/dev/stdin"], input=script, text=True, check=True, timeout=20)


def test_bash_completes_with_it(tmp_path):
    """As the shell does it: the function is called with the words, and leaves the candidates."""
    command = tmp_path / "roll"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m roll.cli.main "$@"\n')
    command.chmod(0o755)
    program = SCRIPTS["bash"] + (
        "compopt() { echo nospace; }\n"
        "ask() { COMP_LINE=$1; COMP_POINT=${#1}; COMPREPLY=(); _roll_words; printf '%s\\n' \"${COMPREPLY[@]}\"; }\n"
        "ask 'roll train rlvr actor_train.pg_variant=gs'\n"
        "ask 'roll train rlvr actor_tr'\n"
        "ask 'roll '\n"
    )
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["gspo", "nospace", "actor_train.", *sorted(COMMANDS)], done.stderr


def test_nothing_heavy_is_imported_between_two_keystrokes():
    program = (
        "import sys\n"
        "from roll.cli.main import main\n"
        "main(['completion', 'words', '--', 'roll', 'train', 'rlvr', 'actor_train.'])\n"
        "assert not {'torch', 'numpy', 'hydra', 'ray'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "actor_train.pg_variant=" in done.stdout.split(), done.stderr
