"""Values of a row's columns: as the text that a run keeps of them, and in words for errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from roll.core.errors import PromptFileError

LONGEST_SHOWN = 60
"""Characters of a value in a fix."""
_KINDS = {dict: "JSON object", list: "list", str: "text", bool: "boolean", int: "number", float: "number", type(None): "null"}


def text_of(
    content: Mapping[str, object], column: str, where: str, fix: str = "", instead: Callable[[object], str] | None = None
) -> str:
    """Returns a text or a number as text. `fix`: for a column that is missing; `instead`: returns that for any other value.
    Raises `PromptFileError`."""
    if column not in content:
        raise PromptFileError(f"{where}: column {column!r} is missing; it has {names(content)}", fix)
    value = content[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PromptFileError(f"{where}: {column} is a {kind(value)}, not text or a number", instead(value) if instead else "")
    if value != value:
        raise PromptFileError(f"{where}: {column} is NaN: the row has none", "leave the row out, or give it one")
    return str(value)


def answer_as_text(value: object) -> str:
    """Returns the fix for a ground truth that is no text. Which text it stands for is the user's to say: `true` may mean "yes",
    a list one answer of several parts, or several right answers."""
    if value is None:
        return 'a text, "" where no reward reads it'
    if isinstance(value, bool):
        return f'the text that a right response has, such as "{str(value).lower()}" or "{value}"'
    text = json.dumps(value, ensure_ascii=False)
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."
    readers = "rewards for boxes, tests and instructions read it so, a reward of your own by json.loads"
    return f"its JSON as a text, '{shown}': {readers}; or the one right answer"


def kind(value: object) -> str:
    return _KINDS[type(value)] if value != [] else "list without elements"


def names(content: Mapping[str, object]) -> str:
    return ", ".join(map(repr, content)) or "no columns"
