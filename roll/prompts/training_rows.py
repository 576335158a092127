"""Rows that are trained as they stand: conversations (SFT), or questions with a better and a worse answer (DPO).

A row has messages, or a question (a prompt, or messages that end with one) and a response, each a text or messages. What a row
lacks ends the reading with one error; what merely makes it useless (nobody answers last, an answer without a text, two equal
answers) is told, so that it can be counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.core.configs.arguments import DataArguments
from roll.core.configs.rows import ColumnsConfig, DPOKeysConfig, SFTKeysConfig
from roll.core.errors import PromptFileError
from roll.prompts.messages import read_turns
from roll.prompts.prompt_file import as_list, contents

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    id: str
    name: str
    """Name of its set: its tag, or else the name of its file without the ending."""
    where: str
    """ "file:line", for errors."""
    conversations: list[list[Message]]
    """One, or the better and the worse one."""
    tools: list[Any] | None

    @property
    def useless(self) -> str:
        """Returns why nothing can be learnt from it; empty if something can."""
        for messages in self.conversations:
            if messages[-1]["role"] != "assistant":
                return "without_last_answer"
            if any(each["role"] == "assistant" and not (each["content"].strip() or each.get("tool_calls")) for each in messages):
                return "empty_answer"
            if not any(map(is_trained, messages)):
                return "without_answer_of_weight_1"
        return "equal_answers" if self.conversations[1:] == self.conversations[:1] else ""


def is_trained(message: Message) -> bool:
    """True for an answer, unless it has `weight: 0`, as in OpenAI's files."""
    return bool(message["role"] == "assistant" and message.get("weight", 1) != 0)


def read_training_rows(data: DataArguments, columns: ColumnsConfig, key: str) -> Iterator[TrainingRow]:
    """All rows, in the order of files and lines. `key`: the configuration's name for `data`. Raises `PromptFileError`."""
    names: dict[str, str] = {}
    for where, content in contents(data, key):
        source, _, number = where.rpartition(":")
        if source not in names:
            name = Path(source).name
            names[source] = f"{name}@{len(names)}" if name in names.values() else name
        row = _Reader(content, data, columns, where)
        tag = content.get(data.tag, data.default_tag or Path(names[source]).stem)
        if not isinstance(tag, str) or not tag or "/" in tag:
            raise PromptFileError(f"{where}: {data.tag} {tag!r} is no name of a set", "a text without '/'")
        yield TrainingRow(f"{names[source]}:{number}", tag, where, row.conversations(), row.listed(columns.tools))
    if not names:
        raise PromptFileError(f"{key}: no rows in {data.path or ', '.join(data.files) or 'an empty list of files'}")


class _Reader:
    def __init__(self, content: dict[str, object], data: DataArguments, columns: ColumnsConfig, where: str) -> None:
        self._content, self._data, self._columns, self._where = content, data, columns, where

    def conversations(self) -> list[list[Message]]:
        columns = self._columns
        if isinstance(columns, DPOKeysConfig):
            return [self._with_answer(name) for name in (columns.chosen, columns.rejected)]
        assert isinstance(columns, SFTKeysConfig)
        whole = self._messages(self._data.messages)
        asks = whole is not None and whole[-1]["role"] != "assistant" and columns.response in self._content
        return [self._with_answer(columns.response) if whole is None or asks else self._led(whole)]

    def listed(self, column: str) -> list[Any] | None:
        return as_list(self._content.get(column) or None, column, self._where)

    def _with_answer(self, column: str) -> list[Message]:
        """The question with the answer of this column, which may be the whole conversation."""
        answer = self._messages(column, "assistant")
        if answer is None:
            raise self._missing(column)
        return self._led(answer if answer[0]["role"] in ("system", "user") else [*self._asked(), *answer])

    def _asked(self) -> list[Message]:
        asked = self._messages(self._data.messages)
        asked = self._messages(self._data.prompt, "user") if asked is None else asked
        if asked is None:
            raise self._missing(self._data.prompt)
        query = self._text(self._columns.query)
        if query:
            asked = [*asked[:-1], {**asked[-1], "content": f"{asked[-1]['content']}\n{query}"}]
        system = self._text(self._columns.system)
        return [{"role": "system", "content": system}, *asked] if system else asked

    def _led(self, messages: list[Message]) -> list[Message]:
        """Behind the system message of the set, unless they have one."""
        system = self._data.system_prompt
        has_one = system is None or messages[0]["role"] == "system"
        return messages if has_one else [{"role": "system", "content": system}, *messages]

    def _messages(self, column: str, speaker: str = "") -> list[Message] | None:
        """Returns the messages of a column; a text is the `speaker`'s, and the JSON of messages where nobody is named."""
        value = self._content.get(column)
        if speaker and isinstance(value, str):
            return [{"role": speaker, "content": value}]
        listed = as_list(value, column, self._where)
        if listed is None:
            return None
        turns = read_turns(listed, f"{self._where}: {column}")
        if wrong := [each["weight"] for each in turns if each.get("weight", 1) not in (0, 1)]:
            raise PromptFileError(f"{self._where}: {column} has the weight {wrong[0]!r}", "0: an answer is not trained; or 1")
        return turns

    def _text(self, column: str | None) -> str:
        value = None if column is None else self._content.get(column)
        if value is not None and not isinstance(value, str):
            raise PromptFileError(f"{self._where}: {column} is no text")
        return value or ""

    def _missing(self, column: str) -> PromptFileError:
        data, columns = self._data, self._columns
        there = ", ".join(map(repr, self._content)) or "no columns"
        if isinstance(columns, SFTKeysConfig):
            message = f"neither {data.messages!r} nor both {data.prompt!r} and {columns.response!r} are there"
            fix = "say which columns they are: data_args: {messages: ...}, or data_args: {prompt: ...} and sft: {response: ...}"
        else:
            message, fix = f"column {column!r} is missing", "say which columns they are: dpo: {chosen: ..., rejected: ...}"
        return PromptFileError(f"{self._where}: {message}; it has {there}", fix)
