"""A program and its run: `python tests/agents_real/train.py openai_loop --steps 12 --batch 32 --validate 4` shows what it learns.

Interpreters are looked for in build/agents (`make test-agents` makes them), or in the folder that AGENTS_PYTHONS names.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(HERE), str(ROOT)]

import yaml  # noqa: E402
from lessons import Settings, env_of, make_model, record  # noqa: E402
from roster import AGENTS, Agent  # noqa: E402

EPISODES = [(number, 0.0) for number in range(4)] + [(number, 0.4) for number in range(4, 10)]
"""A perfect one of each task, and six of a player who wanders."""


def python_of(agent: Agent) -> Path:
    pythons = Path(os.environ.get("AGENTS_PYTHONS") or ROOT / "build" / "agents")
    return pythons.absolute() / agent.interpreter / "bin" / "python"


def train(name: str, model: Path, folder: Path, **changes: Any) -> Path:
    """Runs the agentic pipeline as a user does. Returns the run's folder. Raises `CalledProcessError`."""
    config = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
    config |= {"custom_envs": {"Agent": env_of(name, AGENTS[name], python_of(AGENTS[name]))}, "pretrain": str(model), **changes}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "HF_HUB_OFFLINE": "1"}
    command = [
        sys.executable,
        "-m",
        "roll.cli.main",
        "train",
        "agentic",
        "--config_path",
        ".",
        "--config_name",
        "config",
        "--local",
    ]
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    return folder / "output" / config["exp_name"]


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=AGENTS)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--validate", type=int, default=0, help="every so many steps; 0: never")
    parser.add_argument("--hesitation", type=float, default=Settings.hesitation)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    given = parser.parse_args()
    agent, folder = AGENTS[given.name], Path(tempfile.mkdtemp(prefix=f"{given.name}_"))
    played = record(given.name, agent, python_of(agent), EPISODES)
    lessons = [each for episode in played for each in episode.lessons]
    print(f"{folder}: {len(played)} episodes played; a good answer has", end=" ", flush=True)
    print(f"{make_model(folder / 'model', lessons, agent.player, Settings(hesitation=given.hesitation)):.2f}", flush=True)
    base = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
    base["actor_train"]["training_args"] |= {"learning_rate": given.learning_rate, "per_device_train_batch_size": given.batch}
    base["train_env_manager"] |= {"num_env_groups": given.batch // 4, "max_env_num_per_worker": given.batch}
    base["val_env_manager"] |= {"num_env_groups": 2 * given.batch, "max_env_num_per_worker": 2 * given.batch}
    changes = {name: base[name] for name in ("actor_train", "train_env_manager", "val_env_manager")}
    began = time.perf_counter()
    run = train(
        given.name, folder / "model", folder, max_steps=given.steps, save_steps=given.steps,
        rollout_batch_size=given.batch, val_batch_size=2 * given.batch, eval_steps=given.validate, **changes,
    )  # fmt: skip
    for row in rows(run / "metrics.jsonl"):
        print({name: round(row[name], 3) for name in row if name in SHOWN})
    print(f"{time.perf_counter() - began:.0f} s; {run}")


SHOWN = ("step", "critic/score/mean", "val_correct/all/mean", "tokens/response_length/clip", "val/score/mean")

if __name__ == "__main__":
    main()
