"""`roll init <name>`: a folder to start from, with a configuration, prompts, and a reward or an environment of one's own. It runs
as it is: with the embedded model, or with settings that fit the model that was named."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roll.cli.options import Parser, answering
from roll.core.configs.arguments import DataArguments, Template
from roll.core.configs.problems import ConfigError, Problem
from roll.core.errors import PromptFileError
from roll.prepare.fitting import COLUMNS, lengths, opened, usual_columns
from roll.prepare.packaged import embedded_model
from roll.prompts.prompt_file import contents, read_rows

Row = dict[str, Any]
TRAIN_ROWS, VALIDATION_ROWS = 1024, 128
VALIDATION_SHARE = 10
"""One in this many of a user's rows is for validation, at most VALIDATION_ROWS."""
STARTER = Path(__file__).parent / "starter"
EMBEDDED = "embedded/cache/model"
"""Place of the folder's model if the user names none."""
IN_WORDS = {
    "native": "What is {a} + {b}? Answer with the number alone.",
    "none": "Question: What is {a} + {b}? Answer with the number alone.\nAnswer:",
}
AGENT_SEQUENCE = 1024
"""Tokens of an episode."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Fit:
    """The settings that depend on the model and on the data."""

    pretrain: str
    template: Template
    prompt_length: int
    response_length: int
    sequence_length: int
    learning_rate: str = "1.0e-6"
    of_learning_rate: str = "usual where all weights of a pretrained model are trained"
    prompts: int = 8
    micro: int = 8


EMBEDDED_FIT = Fit(EMBEDDED, "none", 16, 8, 64, "3.0e-4", "of the tiny embedded model; 1.0e-6 is usual for real ones", 32, 256)


@answering
def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 made, 1 the embedded model could not be made, 2 bad input."""
    parser = Parser(prog="roll init", description="Makes a folder to start from: YAML, reward.py, prompts.jsonl.")
    parser.add_argument("name", help="the folder; its last part names the run")
    parser.add_argument("--model", metavar="FOLDER", help="Hugging Face folder to train (default: the embedded model is made)")
    parser.add_argument(
        "--task",
        nargs="+",
        default=["rlvr"],
        metavar=("rlvr|agent|jsonl", "FILE"),
        help="rlvr: additions, and a reward (default); agent: an environment; jsonl FILE: prompts of your own (or .csv, ...)",
    )
    try:
        options = parser.parse_args(arguments)
        folder = Path(options.name)
        task = _task(options.task)
        made = write(folder, options.model, *task)
        model = None if options.model else embedded_model(str(folder / EMBEDDED))
        if model is not None and not model.is_made:
            model.make()
    except subprocess.CalledProcessError as error:
        print(f"error: the embedded model could not be made: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {'  '.join(made)}\n")
    print(f"  cd {folder}\n  roll check --config_path . --config_name {folder.name}")
    pipeline = "agentic" if task[0] == "agent" else "rlvr"
    print(f"  roll train {pipeline} --config_path . --config_name {folder.name} --local max_steps=2")
    return 0


def write(folder: Path, model: str | None, task: str = "rlvr", file: Path | None = None) -> list[str]:
    """Returns the names of the written files. Raises `ConfigError` for a name that is no name of a run, a folder that is not
    empty, a model that is not there, and a file of prompts that cannot be read."""
    name = folder.name
    if not _NAME.fullmatch(name):
        raise ConfigError([Problem("name", str(folder), "is not a valid name for a run", "letters, digits, _, - and .")])
    # The embedded model may be there already, from elsewhere.
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {Path(EMBEDDED).parts[0]}):
        raise ConfigError([Problem("name", str(folder), "exists already and is not empty", "name another folder")])
    files = _agent(name, model) if task == "agent" else _rlvr(name, model, file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file_name, text in files.items():
            (folder / file_name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError([Problem("name", str(folder), f"cannot be written: {error}", "name another folder")]) from None
    return list(files)


def _task(given: Sequence[str]) -> tuple[str, Path | None]:
    """Raises `ConfigError`."""
    if given[0] == "jsonl" and len(given) == 2:
        return "jsonl", Path(given[1])
    if len(given) == 1 and given[0] in ("rlvr", "agent"):
        return given[0], None
    raise ConfigError([Problem("--task", " ".join(given), "is no task", "rlvr, agent, or jsonl FILE")])


def _rlvr(name: str, model: str | None, file: Path | None) -> dict[str, str]:
    """Text by file name."""
    rows = None if file is None else of_file(file)
    if model is None:
        if file is not None:
            raise ConfigError([Problem("--task jsonl", str(file), "the embedded model reads digits alone", "name your --model")])
        fit, rows = EMBEDDED_FIT, additions("{a}+{b}=")
    else:
        fit, rows = _fitted(model, rows)
    embedded = model is None
    reward, source = ("DigitsRewardWorker", "reward.py") if embedded else ("AnswerRewardWorker", "answer_reward.py")
    columns = [f"{kind}: {column}" for kind, column in rows.columns.items()]
    values = _values(name, fit) | {
        "domain": rows.domain,
        "columns": "".join(f"\n    {each}" for each in columns),
        "columns_in_line": "".join(f", {each}" for each in columns),
        "tags": f"\n    tag_included: {json.dumps(rows.tags)}" if rows.tags else "",
        "reward": reward,
        "reward_args": "\n    reward_args: {length_penalty: 0.1}" if embedded else "",
    }
    return {
        f"{name}.yaml": _filled("run.yaml", values),
        "reward.py": (STARTER / source).read_text(),
        "prompts.jsonl": "".join(json.dumps(row) + "\n" for row in rows.train),
        "validation.jsonl": "".join(json.dumps(row) + "\n" for row in rows.validation),
    }


def _agent(name: str, model: str | None) -> dict[str, str]:
    fit = EMBEDDED_FIT if model is None else _fitted(model, None)[0]
    template = '\n    agent_system_template: "" # the embedded model reads no instructions' if model is None else ""
    length = "1" if model is None else str(min(fit.response_length, 64))
    values = _values(name, fit) | {"agent_template": template, "response_length": length}
    return {f"{name}.yaml": _filled("agent.yaml", values), "environment.py": (STARTER / "environment.py").read_text()}


def _values(name: str, fit: Fit) -> dict[str, str]:
    samples, episodes = 8 * fit.prompts, 32
    return {
        "name": name,
        "model": json.dumps(fit.pretrain),
        "template": fit.template,
        "prompts": str(fit.prompts),
        "prompt_length": str(fit.prompt_length),
        "response_length": str(fit.response_length),
        "sequence_length": str(fit.sequence_length),
        "learning_rate": fit.learning_rate,
        "of_learning_rate": fit.of_learning_rate,
        "batch": str(min(fit.micro, samples)),
        "accumulation": str(samples // min(fit.micro, samples)),
        "agent_batch": str(min(fit.micro, episodes)),
        "agent_accumulation": str(episodes // min(fit.micro, episodes)),
    }


def _filled(name: str, values: dict[str, str]) -> str:
    text = (STARTER / name).read_text()
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def _fitted(name: str, rows: StartingRows | None) -> tuple[Fit, StartingRows]:
    """The settings for a model, and the rows, additions in words where none are given. Raises `ConfigError`."""
    model = opened(name, "--model")
    template = model.template(rows.train if rows is not None else ())
    rows = rows or additions(IN_WORDS[template])
    found = lengths(model, [*rows.train, *rows.validation], rows.columns, template, "--task jsonl")
    return Fit(model.name, template, found.prompt, found.response, min(AGENT_SEQUENCE, model.context)), rows


@dataclass(frozen=True, slots=True)
class StartingRows:
    train: list[Row]
    validation: list[Row]
    domain: str
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of `data_args`, where one has an unusual name."""
    tags: list[str] = field(default_factory=list)
    """Tags, where they are not the domain's name."""


def additions(words: str) -> StartingRows:
    """Returns different additions of two-digit numbers. `words`: the question, with {a} and {b}."""
    problems = random.Random(42).sample([(a, b) for a in range(10, 100) for b in range(10, 100)], TRAIN_ROWS + VALIDATION_ROWS)
    rows = [
        {"id": f"add-{a}-{b}", "prompt": words.format(a=a, b=b), "ground_truth": str(a + b), "tag": "addition"}
        for a, b in problems
    ]
    return StartingRows(rows[:TRAIN_ROWS], rows[TRAIN_ROWS:], "addition")


def of_file(path: Path) -> StartingRows:
    """Reads the rows of a file of prompts, in an order that a seed decides. Raises `ConfigError`."""
    try:
        rows = [row for _, row in contents(DataArguments(file_name=str(path)), "--task jsonl")]
    except PromptFileError as error:
        raise _wrong(path, str(error), error.fix or "mend the file") from None
    if len(rows) < 2:
        raise _wrong(path, f"has {len(rows)} rows", "name a file with two rows at least")
    columns = usual_columns(rows[0], "--task jsonl", str(path))
    if "ground_truth" not in rows[0] and "ground_truth" not in columns:
        names = ", ".join(COLUMNS["ground_truth"])
        raise _wrong(path, f"has no column with a reference answer: {', '.join(rows[0])}", f"call it one of {names}")
    data = replace(DataArguments(file_name=str(path)), **columns)  # type: ignore[arg-type]
    try:
        tags = sorted({row.tag for row in read_rows(data, only_tag="")} - {""})
    except PromptFileError as error:
        raise _wrong(path, str(error), error.fix or "mend the row") from None
    random.Random(42).shuffle(rows)
    held_out = max(1, min(VALIDATION_ROWS, len(rows) // VALIDATION_SHARE))
    domain = "answers"
    return StartingRows(rows[held_out:], rows[:held_out], domain, columns, [] if tags == [domain] else tags)


def _wrong(path: Path, message: str, fix: str) -> ConfigError:
    return ConfigError([Problem("--task jsonl", str(path), message, fix)])
