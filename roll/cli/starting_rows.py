"""The prompts that `roll init` writes: additions as the embedded model reads them, or in words, or rows of a user's file."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roll.configs.arguments import DataArguments
from roll.configs.problems import ConfigError, Problem
from roll.data.prompt_file import PromptFileError, read_rows

Row = dict[str, Any]
TRAIN_ROWS, VALIDATION_ROWS = 1024, 128
VALIDATION_SHARE = 10
"""Of a user's rows one in so many is for validation, and no more than VALIDATION_ROWS."""
COLUMNS = {
    "prompt": ("prompt", "question", "problem", "instruction", "query", "input"),
    "messages": ("messages", "conversation"),
    "ground_truth": ("ground_truth", "answer", "solution", "target", "output", "label"),
}
"""What columns of each kind are called, the usual name first."""


@dataclass(frozen=True, slots=True)
class StartingRows:
    train: list[Row]
    validation: list[Row]
    domain: str
    columns: dict[str, str] = field(default_factory=dict)
    """Of `data_args`, where a column has another name than the usual one."""
    tags: list[str] = field(default_factory=list)
    """Where they are not the domain's name."""


def additions(words: str) -> StartingRows:
    """Different additions of two-digit numbers. `words`: the question, with {a} and {b}."""
    problems = random.Random(42).sample([(a, b) for a in range(10, 100) for b in range(10, 100)], TRAIN_ROWS + VALIDATION_ROWS)
    rows = [
        {"id": f"add-{a}-{b}", "prompt": words.format(a=a, b=b), "ground_truth": str(a + b), "tag": "addition"}
        for a, b in problems
    ]
    return StartingRows(rows[:TRAIN_ROWS], rows[TRAIN_ROWS:], "addition")


def of_file(path: Path) -> StartingRows:
    """The rows of a JSON Lines file, in an order that a seed decides. Raises `ConfigError`."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise _wrong(path, f"cannot be read: {error}", "name a file with a JSON object a line") from None
    if len(rows) < 2 or not all(isinstance(row, dict) for row in rows):
        raise _wrong(path, f"has {len(rows)} rows", "name a file with two JSON objects at least, one a line")
    columns = usual_columns(rows[0], "--task jsonl", str(path))
    if "ground_truth" not in rows[0] and "ground_truth" not in columns:
        names = ", ".join(COLUMNS["ground_truth"])
        raise _wrong(path, f"has no column with a reference answer: {', '.join(rows[0])}", f"call it one of {names}")
    data = replace(DataArguments(file_name=str(path)), **columns)  # type: ignore[arg-type]
    try:
        tags = sorted({row.tag for row in read_rows(data, only_tag="")} - {""})
    except PromptFileError as error:
        raise _wrong(path, str(error), "mend the row") from None
    random.Random(42).shuffle(rows)
    held_out = max(1, min(VALIDATION_ROWS, len(rows) // VALIDATION_SHARE))
    domain = "answers"
    return StartingRows(rows[held_out:], rows[:held_out], domain, columns, [] if tags == [domain] else tags)


def usual_columns(row: Mapping[str, Any], key: str, value: object) -> dict[str, str]:
    """Of `data_args`: what the columns are called that have another name than `COLUMNS` begins with. Raises `ConfigError`, about
    this key and its value, where there is no prompt."""
    found = {kind: next((name for name in names if name in row), None) for kind, names in COLUMNS.items()}
    if found["messages"] is not None:
        found["prompt"] = None
    if found["prompt"] is None and found["messages"] is None:
        names = ", ".join((*COLUMNS["prompt"], *COLUMNS["messages"]))
        message = f"has no column with a prompt: {', '.join(map(str, row)) or 'it is empty'}"
        raise ConfigError([Problem(key, value, message, f"call it one of {names}")])
    return {kind: name for kind, name in found.items() if name is not None and name != kind}


def _wrong(path: Path, message: str, fix: str) -> ConfigError:
    return ConfigError([Problem("--task jsonl", str(path), message, fix)])
