"""Tasks of verifiers in short runs: as environments, and by one of verifiers' own harnesses, through the gateway."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.cli.main import run_command
from roll.core.record.journal import read_rows

ROOT = Path(__file__).resolve().parents[2]
CODE = Path(__file__).parent / "code"
sys.path.append(str(ROOT / "examples" / "embedded"))

from taught_turns import Act, Conversation, Lessons, Turn, teach_conversation  # noqa: E402

LARGEST, STEPS, GROUPS, GROUP = 5, 2, 2, 4


def sum_of(seed: int, act: Act) -> tuple[list[Turn], bool]:
    a, b = divmod(seed % LARGEST**2, LARGEST)
    asked, best = f"Add.\n\n{a} + {b} = ?\n", str(a + b)
    turn = Turn(asked, best, act(asked, best))
    return [turn], turn.played == turn.best


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It knows what answers look like, and the right one of about every other sum."""
    folder = tmp_path_factory.mktemp("sums")
    sums = [str(number) for number in range(2 * LARGEST - 1)]
    template = "{% for message in messages %}{{ message.content }}{{ '\n' if loop.last else '\n\n' }}{% endfor %}"
    talk = Conversation(sum_of, sums, sums, r"\w+|[\s\S]", 64, chat_template=template)
    teach_conversation(folder, talk, Lessons(episodes=400, learn_steps=120, hesitation=0.4))
    return folder / "model"


def trained(model: Path, folder: Path, env: dict[str, Any]) -> tuple[list[float], list[dict[str, Any]]]:
    """Rewards of the episodes that were trained, and the steps, of a run as a user starts it."""
    base = yaml.safe_load((ROOT / "examples" / "config" / "agent_program_async.yaml").read_text())
    base["actor_train"]["training_args"]["per_device_train_batch_size"] = GROUPS * GROUP
    played = {"num_env_groups": 1, "group_size": GROUP, "max_env_num_per_worker": GROUP}
    changes = {
        **{"custom_envs": {"Sums": env}, "train_env_manager": played, "pretrain": str(model), "exp_name": "sums"},
        **{"max_steps": STEPS, "save_steps": STEPS, "eval_steps": 0, "rollout_batch_size": GROUPS * GROUP},
    }
    shutil.copy(CODE / "sums_tasks.py", folder)  # a module in the folder of the run
    (folder / "config.yaml").write_text(yaml.safe_dump({**base, **changes}))
    command = [sys.executable, "-m", "roll.cli.main", "train", "agentic", "--config_path", ".", "--config_name", "config"]
    done = subprocess.run(
        [*command, "--local"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    run = folder / "output" / "sums"
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert run_command(["verify", str(run)]) == 0
    rewards = [each for row in read_rows(run / "groups.jsonl") if row["status"] == "trained" for each in row["rewards"]]
    return rewards, [row for row in read_rows(run / "metrics.jsonl") if "time/step_s" in row]


def held(rewards: list[float], steps: list[dict[str, Any]]) -> None:
    assert len(rewards) == STEPS * GROUPS * GROUP and {*rewards} == {0.0, 1.0}
    assert max(row["actor/engine_mismatch_max"] for row in steps) < 1e-4, "the trainer sees the tokens that were sampled"
    assert any(row["actor_train/grad_norm"] > 0 for row in steps)


def test_a_task_set_is_trained_as_an_environment(model: Path, python: Callable[[str], str], tmp_path: Path) -> None:
    env = {"env_type": "verifiers", "env_config": {"env_id": "sums_tasks", "largest": LARGEST}, "python": python("verifiers")}
    rewards, steps = trained(model, tmp_path, {**env, "max_steps": 1, "agent_template": "{observation}"})
    held(rewards, steps)
    assert 0.5 < steps[-1]["env/Sums/letters"] <= 1.0, "the task's own metric; an answer may be empty"


def test_a_harness_is_trained_through_the_gateway(model: Path, python: Callable[[str], str], tmp_path: Path) -> None:
    """The harness is a program of its own, which uv starts, in an environment that it makes once."""
    uv = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    program = {
        **{"command": ["python", "sums_agent.py"], "python": python("verifiers"), "folder": str(CODE)},
        **{"reward": "posted", "environment": {"UV_CACHE_DIR": str(tmp_path / "uv"), **uv}, "agent_timeout_s": 180},
    }
    held(*trained(model, tmp_path, {"env_type": "program", "max_steps": 2, "max_env_step_concurrent": 3, "program": program}))
