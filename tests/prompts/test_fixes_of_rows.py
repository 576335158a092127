"""A fix for a row, or for the keys that say how rows are read, is followed as it is written, until the rows can be used."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import numbered_tokenizer

from roll.core.configs.arguments import DataArguments
from roll.core.errors import PromptFileError
from roll.prompts.prompt_file import read_rows
from roll.prompts.prompt_source import tokenize_prompts

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
USER = {"role": "user", "content": "1"}
SAID = {"role": "assistant", "content": "2"}
ROUNDS = 3
DATA = re.compile(r"(?:e\.g\. )?data_args(?:: \{(\w+): (\w+)\}|\.(\w+): (\w+))")


def usable(file: Path, data: DataArguments, template: str | None) -> int:
    """Raises `PromptFileError`."""
    tokenizer = numbered_tokenizer(64)
    tokenizer.chat_template = template
    rows = read_rows(replace(data, file_name=str(file)), only_tag=None)
    return len(tokenize_prompts(rows, tokenizer, data.template, 200, {"t": "t"})[0])


def with_keys(data: DataArguments, fix: str) -> DataArguments | None:
    """The arguments that the fix writes out; None if it speaks of the row."""
    if (found := DATA.search(fix)) is None:
        return None
    key, value = found[1] or found[3], found[2] or found[4]
    return replace(data, **{key: value == "true" if value in ("true", "false") else value})


def user_of(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "role": "user"}


MENDED: list[tuple[str, Callable[[list[Any]], list[Any]]]] = [
    (r"^write (\w+)$", lambda messages: [{**messages[0], "role": "user"}]),
    (r"^one of developer, system, user", lambda messages: [user_of(messages[0])]),
    (r"end the row with a user's message", lambda messages: [*messages, USER]),
    (r"else leave it out of the row|leave the message out of the row", lambda messages: messages[:-1]),
    (r"join it to the first message", lambda messages: [messages[1], messages[0]]),
    (r"tool_calls in the message before it", lambda messages: [{**SAID, "tool_calls": [CALL]}, *messages[1:]]),
]
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("row", "data", "template"),
    [
        ({"question": "1", "ground_truth": "1"}, {}, PLAIN),
        ({"prompt": "1", "answer": "1"}, {}, PLAIN),
        ({"prompt": [USER], "ground_truth": "1"}, {}, PLAIN),
        ({"prompt": "1", "ground_truth": "1"}, {}, None),
        ({"messages": [USER], "ground_truth": "1"}, {}, None),
        ({"messages": [USER], "ground_truth": "1"}, {"template": "none"}, PLAIN),
        ({"messages": [USER], "ground_truth": "1"}, {"template": "none"}, None),
        ({"messages": [USER, SAID], "ground_truth": "1"}, {}, PLAIN),
    ],
)
def test_the_keys_that_a_fix_writes_out_read_the_row(tmp_path, row, data, template):
    file, arguments = tmp_path / "rows.jsonl", DataArguments(template="native", default_tag="t")
    file.write_text(json.dumps(row) + "\n")
    arguments, found = replace(arguments, **data), []
    for _ in range(ROUNDS):
        try:
            assert usable(file, arguments, template) == 1
        except PromptFileError as error:
            found.append(f"{error}; fix: {error.fix}")
            arguments = with_keys(arguments, error.fix)
            assert arguments is not None, found
        else:
            assert found, "nothing is wrong"
            return
    raise AssertionError(found)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "human", "content": "1"}],
        [{"role": "asker", "content": "1"}],
        [{"role": "system", "content": "1"}],
        [USER, SAID],
        [USER, {**SAID, "content": None}],
        [USER, {**SAID, "tool_calls": [CALL]}],
        [USER, {"role": "system", "content": "1"}],
        [USER, {"role": "tool", "content": "1"}],
    ],
)
def test_messages_that_are_mended_as_the_fix_says_are_a_prompt(tmp_path, messages):
    file, arguments = tmp_path / "rows.jsonl", DataArguments(template="native", default_tag="t")
    found: list[str] = []
    for _ in range(ROUNDS):
        file.write_text(json.dumps({"messages": messages, "ground_truth": "1"}) + "\n")
        try:
            assert usable(file, arguments, PLAIN) == 1
        except PromptFileError as error:
            found.append(f"{error}; fix: {error.fix}")
            mend = next((mend for said, mend in MENDED if re.search(said, error.fix)), None)
            assert mend is not None, found
            messages = mend(messages)
        else:
            assert found, "nothing is wrong"
            return
    raise AssertionError(found)


def test_a_table_with_another_sign_between_its_columns_is_told_of_the_sign(tmp_path):
    arguments = DataArguments(template="native", default_tag="t")
    for sign in (";", "\t", "|"):
        file = tmp_path / "rows.csv"
        file.write_text(f"prompt{sign}ground_truth\n1{sign}2\n")
        with pytest.raises(PromptFileError) as error:
            usable(file, arguments, PLAIN)
        assert error.value.fix == "commas between the columns of a .csv, tabs of a .tsv"
        file.write_text(file.read_text().replace(sign, ","))
        assert usable(file, arguments, PLAIN) == 1


def test_a_command_that_a_fix_names_makes_the_file_readable(tmp_path):
    rows = [{"prompt": str(i), "ground_truth": "1"} for i in range(3)]
    arguments = DataArguments(template="native", default_tag="t")
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    with pytest.raises(PromptFileError) as error:
        usable(packed, arguments, PLAIN)
    subprocess.run(error.value.fix.split(), check=True)
    assert usable(packed.with_suffix(""), arguments, PLAIN) == 3


GEMMA = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
)
LAST_ONLY = (
    "{% for m in messages %}{% if loop.last or messages[loop.index].role != m.role %}{{ m.content }}{% endif %}{% endfor %}"
)
CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (GEMMA, "refuses the messages: .*Conversation roles must alternate"),
        (LAST_ONLY, "does not show the user's message '1'"),
        ("{{ messages[0].content }}", "does not show the user's message '2  3'"),
        (CHATML, None),
    ],
)
def test_two_messages_of_a_user_in_a_row_are_shown_or_the_row_is_refused(tmp_path, template, says):
    file, arguments = tmp_path / "rows.jsonl", DataArguments(template="native", default_tag="t")
    rows = [[USER], [USER, {**USER, "content": " 2  3\n"}]]
    file.write_text("".join(json.dumps({"messages": each, "ground_truth": "1"}) + "\n" for each in rows))
    if says is None:
        assert usable(file, arguments, template) == 2
        return
    with pytest.raises(PromptFileError, match=f"rows.jsonl:2: the tokenizer's chat template {says}"):
        usable(file, arguments, template)
    file.write_text(json.dumps({"messages": [{**USER, "content": "1 2  3"}], "ground_truth": "1"}) + "\n")
    assert usable(file, arguments, template) == 1
