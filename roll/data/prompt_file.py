"""Prompt files: JSON Lines, one prompt a line, in ROLL's form with configurable column names.

Invariant: every row that is returned is complete and well typed, and its identity is unique among all files read together. The
first row that is not ends the reading with one error that names file, line and what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.configs.arguments import DataArguments

DEFAULT_COLUMNS = DataArguments()


class PromptFileError(ValueError):
    """A prompt file that cannot be used; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row under canonical names. At least one of `prompt` and `messages` is there."""

    id: str
    tag: str
    ground_truth: str
    prompt: str | None
    messages: list[dict[str, Any]] | None
    where: str
    """ "file:line", for errors."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The other columns (difficulty, test cases, ...)."""


def read_rows(
    paths: Sequence[str | Path], columns: DataArguments = DEFAULT_COLUMNS, key: str = "data_args.file_name"
) -> list[PromptRow]:
    """All rows, in the order of files and lines. Blank lines are skipped. `key` is the configuration key that named the files.

    A row without an id column is called "file:line". Raises `PromptFileError`."""
    rows: dict[str, PromptRow] = {}
    for path in map(Path, paths):
        for row in _file(path, columns, key):
            if row.id in rows:
                raise PromptFileError(f"{row.where}: {columns.id} {row.id!r} is that of {rows[row.id].where} too")
            rows[row.id] = row
    if not rows:
        raise PromptFileError(f"{key}: no prompts in {', '.join(map(str, paths)) or 'an empty list of files'}")
    return list(rows.values())


def _file(path: Path, columns: DataArguments, key: str) -> Iterator[PromptRow]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise PromptFileError(f"{key}: cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            content = json.loads(line)
        except ValueError as error:
            raise PromptFileError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise PromptFileError(f"{where}: a {_kind(content)}, not a JSON object")
        yield _row(content, columns, where, f"{path.name}:{number}")


def _row(content: dict[str, Any], columns: DataArguments, where: str, default_id: str) -> PromptRow:
    prompt = content.get(columns.prompt)
    if prompt is not None and not isinstance(prompt, str):
        raise PromptFileError(f"{where}: {columns.prompt} is a {_kind(prompt)}, not text")
    messages = _messages(content.get(columns.messages), columns.messages, where)
    if prompt is None and messages is None:
        raise PromptFileError(f"{where}: neither {columns.prompt!r} nor {columns.messages!r} is there; it has {_names(content)}")
    used = {columns.id, columns.tag, columns.ground_truth, columns.prompt, columns.messages}
    return PromptRow(
        id=_text(content, columns.id, where) if columns.id in content else default_id,
        tag=_text(content, columns.tag, where),
        ground_truth=_text(content, columns.ground_truth, where),
        prompt=prompt,
        messages=messages,
        where=where,
        extra={name: value for name, value in content.items() if name not in used},
    )


def _text(content: dict[str, Any], column: str, where: str) -> str:
    """A text or a number, as text."""
    if column not in content:
        raise PromptFileError(f"{where}: column {column!r} is missing; it has {_names(content)}")
    value = content[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PromptFileError(f"{where}: {column} is a {_kind(value)}, not text or a number")
    return str(value)


def _messages(value: Any, column: str, where: str) -> list[dict[str, Any]] | None:
    """A list of chat messages, given as such or as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise PromptFileError(f"{where}: {column} is not valid JSON: {error}") from error
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise PromptFileError(f"{where}: {column} is a {_kind(value)}, not a list of at least one message")
    for i, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise PromptFileError(f'{where}: {column}[{i}] is not a message {{"role": ..., "content": ...}}')
    return value


def _kind(value: Any) -> str:
    names = {dict: "JSON object", list: "list", str: "text", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names[type(value)] if value != [] else "list without elements"


def _names(content: dict[str, Any]) -> str:
    return ", ".join(map(repr, content)) or "no columns"
