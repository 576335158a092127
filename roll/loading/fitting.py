"""What a model and rows of prompts say about a run: the template, the columns, and how long prompts and responses may be."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.configs.arguments import DataArguments, Template
from roll.configs.problems import ConfigError, Problem
from roll.data.hub import cached, fetch, is_hub_name, refusal
from roll.data.prompt_file import PromptRow
from roll.errors import boundary
from roll.loading.model_files import read_model_folder

RESPONSE_LENGTH = 256
"""Tokens of a response, unless the reference answers are longer than half of that."""
MOST_ROWS = 4096
"""That are measured; a longer prompt among the others is left out of the run, and counted."""

COLUMNS = {
    "prompt": ("prompt", "question", "problem", "instruction", "query", "input"),
    "messages": ("messages", "conversation"),
    "ground_truth": ("ground_truth", "answer", "solution", "target", "output", "label"),
}
"""What columns of each kind are called, the usual name first."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    name: str
    """The folder as an absolute path, or the name on the hub."""
    tokenizer: Any
    context: int
    """Tokens that the model can attend to."""

    def template(self, rows: Sequence[Mapping[str, Any]] = ()) -> Template:
        """For rows like these."""
        if self.tokenizer.chat_template:
            return "native"
        return "chatml" if rows and "messages" in rows[0] else "none"


@dataclass(frozen=True, slots=True)
class Lengths:
    prompt: int
    response: int


def opened(model: str, key: str) -> OpenedModel:
    """A folder, or a model of the hub, which is fetched where it is not there yet. Raises `ConfigError` that names `key`."""
    named = is_hub_name(model)
    try:
        folder = (cached(model) or fetch(model)) if named else Path(model)
    except Exception as error:  # boundary: the hub, the network and the disk each have errors of their own
        raise ConfigError([Problem(key, model, *refusal(error))]) from None
    config = read_model_folder(str(folder)).config
    if config is None:
        raise ConfigError([Problem(key, model, "has no config.json", "name a Hugging Face folder, or owner/model of the hub")])
    from roll.strategies.model_folder import check_model_folder, load_tokenizer

    try:
        check_model_folder(Path(folder))
        tokenizer = load_tokenizer(Path(folder))
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(key, model, str(error), "name a complete Hugging Face folder")]) from None
    context = config.get("max_position_embeddings")
    return OpenedModel(model if named else str(folder.resolve()), tokenizer, context if isinstance(context, int) else 1 << 30)


def lengths(
    model: OpenedModel, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], template: Template, key: str
) -> Lengths:
    """Those that fit the rows. `columns`: as in `data_args`. Raises `ConfigError` that names `key`."""
    from roll.data.prompt_file import read_rows

    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.write(as_lines(rows[:MOST_ROWS], key))
        file.flush()
        try:
            read = list(read_rows(DataArguments(file_name=file.name, **dict(columns)), only_tag=""))  # type: ignore[arg-type]
            return measured(model, read, template)
        except ValueError as error:
            raise ConfigError([Problem(key, "rows", str(error).replace(file.name, "row"), "mend the row")]) from None


def measured(model: OpenedModel, rows: Sequence[PromptRow], template: Template) -> Lengths:
    """Those that fit the rows, and the model. Raises `ValueError`."""
    from roll.data.chat_template import encode, render

    prompts = encode(render(rows, model.tokenizer, template), model.tokenizer, template)
    answers = encode([row.ground_truth or "-" for row in rows], model.tokenizer, "native")
    prompt = min(_up(max(map(len, prompts))), model.context // 2)
    return Lengths(prompt, min(max(RESPONSE_LENGTH, _up(2 * max(map(len, answers)))), model.context - prompt))


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


def as_lines(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """Rows as the text of a file. Raises `ConfigError` that names `key`."""
    fix = "texts, numbers, lists and mappings"
    with boundary(lambda why: ConfigError([Problem(key, "rows", why, fix)]), say=str):
        return "".join(json.dumps(row) + "\n" for row in rows)


def _up(tokens: int) -> int:
    """Rounded up: a length that is easily remembered, and room for one more word."""
    return -(-(tokens + 1) // 32) * 32
