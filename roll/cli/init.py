"""`roll init <name>`: a folder to start from, with a configuration, a reward of one's own and prompts. It runs as it is."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from roll.cli.embedded import EmbeddedModel, embedded_model
from roll.cli.options import Parser, complain
from roll.configs.problems import ConfigError, Problem

STARTER = Path(__file__).parent / "starter"
EMBEDDED = "embedded/cache/model"
"""Where the folder has its model if the user names none."""
TRAIN_ROWS, VALIDATION_ROWS = 1024, 128
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 made, 1 the embedded model could not be made, 2 bad input."""
    parser = Parser(prog="roll init", description="Makes a folder to start from: YAML, reward.py, prompts.jsonl.")
    parser.add_argument("name", help="the folder; its last part names the run")
    parser.add_argument("--model", metavar="FOLDER", help="Hugging Face folder to train (default: the embedded model is made)")
    try:
        options = parser.parse_args(arguments)
        folder = Path(options.name)
        write(folder, options.model)
        model = None if options.model else embedded_model(str(folder / EMBEDDED))
        if model is not None:
            _make(model)
    except ConfigError as error:
        complain(error.problems)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: the embedded model could not be made: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {folder.name}.yaml  reward.py  prompts.jsonl  validation.jsonl\n")
    print(f"  cd {folder}\n  roll check --config_path . --config_name {folder.name}")
    print(f"  roll train rlvr --config_path . --config_name {folder.name} --local max_steps=2")
    return 0


def write(folder: Path, model: str | None) -> None:
    """Raises `ConfigError` for a name that is no name of a run, a folder that is not empty, and a model that is not there."""
    name = folder.name
    if not _NAME.fullmatch(name):
        raise ConfigError([Problem("name", str(folder), "is not a valid name for a run", "letters, digits, _, - and .")])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError([Problem("name", str(folder), "exists already and is not empty", "name another folder")])
    if model is not None and not (Path(model) / "config.json").is_file():
        raise ConfigError([Problem("--model", model, "has no config.json", "name a local Hugging Face folder")])
    pretrain = EMBEDDED if model is None else str(Path(model).resolve())
    text = (STARTER / "run.yaml").read_text().replace("{name}", name).replace("{model}", json.dumps(pretrain))
    rows = [_row(*problem) for problem in _problems(TRAIN_ROWS + VALIDATION_ROWS)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)
        (folder / "reward.py").write_text((STARTER / "reward.py").read_text())
        (folder / "prompts.jsonl").write_text("".join(rows[:TRAIN_ROWS]))
        (folder / "validation.jsonl").write_text("".join(rows[TRAIN_ROWS:]))
    except OSError as error:
        raise ConfigError([Problem("name", str(folder), f"cannot be written: {error}", "name another folder")]) from None


def _make(model: EmbeddedModel) -> None:
    """Raises `subprocess.CalledProcessError`."""
    print(f"making the embedded model in {model.folder} ({model.takes} on one core)", flush=True)
    model.make()


def _problems(count: int) -> list[tuple[int, int]]:
    """Different additions of two-digit numbers."""
    return random.Random(42).sample([(a, b) for a in range(10, 100) for b in range(10, 100)], count)


def _row(a: int, b: int) -> str:
    """The embedded model says the digits of a sum last digit first."""
    row = {"id": f"add-{a}-{b}", "prompt": f"{a}+{b}=", "ground_truth": str(a + b)[::-1], "tag": "addition"}
    return json.dumps(row) + "\n"


if __name__ == "__main__":
    sys.exit(main())
