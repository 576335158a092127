"""Good rows under any column names; a broken row names its file and line."""

import csv
import gzip
import json
import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from roll.core.configs.arguments import DataArguments
from roll.core.configs.problems import Collector, ConfigError
from roll.core.errors import PromptFileError
from roll.prompts.prompt_file import read_rows


def read(paths, columns=None, **options):
    """All rows of files."""
    return list(read_rows(replace(columns or DataArguments(), file_name=[str(path) for path in paths]), **options))


GOOD = {"id": "a", "tag": "math", "prompt": "1+1=", "ground_truth": "2", "difficulty": 3}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rows_in_order_with_their_other_columns(tmp_path: Path) -> None:
    first = write(tmp_path / "1.jsonl", GOOD, "", {**GOOD, "id": 7, "ground_truth": 2.5})
    second = write(tmp_path / "2.jsonl", {"tag": "math", "ground_truth": "", "messages": '[{"role": "user", "content": "hé"}]'})
    rows = read([first, str(second)])
    assert [row.id for row in rows] == ["a", "7", "2.jsonl:1"]
    assert [row.ground_truth for row in rows] == ["2", "2.5", ""]
    assert rows[0].extra == {"difficulty": 3} and rows[0].messages is None
    assert rows[2].messages == [{"role": "user", "content": "hé"}] and rows[2].prompt is None
    assert rows[1].where == f"{first}:3"


def test_configured_column_names(tmp_path: Path) -> None:
    columns = DataArguments(id="key", tag="source", prompt="question", messages="chat", ground_truth="answer")
    chat = [{"role": "user", "content": "q"}]
    row = {"key": "k", "source": "aime", "question": "q", "chat": chat, "answer": "42", "tag": "other"}
    (found,) = read([write(tmp_path / "p.jsonl", row)], columns)
    assert (found.id, found.tag, found.prompt, found.messages, found.ground_truth) == ("k", "aime", "q", chat, "42")
    assert found.extra == {"tag": "other"}


def test_rows_without_a_tag_have_the_only_one_there_is(tmp_path: Path) -> None:
    """As in GSM8K, whose rows are a question and an answer."""
    row = {"question": "q", "answer": "1+1=2\n#### 2"}
    path = write(tmp_path / "gsm8k.jsonl", row, {**row, "tag": "own"})
    columns = DataArguments(prompt="question", ground_truth="answer")
    rows = read([path], columns, only_tag="math")
    assert [(row.id, row.tag, row.prompt) for row in rows] == [("gsm8k.jsonl:1", "math", "q"), ("gsm8k.jsonl:2", "own", "q")]
    with pytest.raises(PromptFileError, match="column 'tag' is missing"):
        read([path], columns)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ('{"id": "b", ', "not valid JSON"),
        ("[1]", "a list, not a JSON object"),
        ({**GOOD, "prompt": 5}, "prompt is a number, not text"),
        (
            {"id": "b", "tag": "math", "ground_truth": "2"},
            "neither 'prompt' nor 'messages' is there; it has 'id', 'tag', 'ground_truth'",
        ),
        ({"id": "b", "prompt": "x", "ground_truth": "2"}, "column 'tag' is missing; it has 'id', 'prompt', 'ground_truth'"),
        ({**GOOD, "ground_truth": None}, "ground_truth is a null, not text or a number"),
        ({**GOOD, "ground_truth": float("nan")}, "ground_truth is NaN: the row has none"),
        ({**GOOD, "id": "b", "tag": True}, "tag is a boolean, not text or a number"),
        ({**GOOD, "messages": "hello"}, "messages is not valid JSON"),
        ({**GOOD, "messages": []}, "not a list of at least one message"),
        ({**GOOD, "messages": [{"role": "human", "content": "x"}]}, "messages[0] has the role 'human'"),
        ({**GOOD, "messages": [{"content": "x"}]}, "messages[0] is not a message"),
        (GOOD, "id 'a' is that of "),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, row: Any, what: str) -> None:
    path = write(tmp_path / "p.jsonl", GOOD, row)
    with pytest.raises(PromptFileError, match=re.escape(f"{path}:2: ") + ".*" + re.escape(what)):
        read([path])


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (True, 'the text that a right response has, such as "true" or "True"'),
        (None, 'a text, "" where no reward reads it'),
        (["4", "four"], """its JSON as a text, '["4", "four"]': rewards for boxes, tests and instructions read it so, """),
        ({"inputs": ["1 " * 99]}, """its JSON as a text, '{"inputs": ["1 1 1 1 """),
    ],
)
def test_a_ground_truth_that_is_no_text_is_refused_with_what_to_write(tmp_path: Path, value: object, fix: str) -> None:
    with pytest.raises(PromptFileError, match="ground_truth is a ") as refused:
        read([write(tmp_path / "p.jsonl", {**GOOD, "ground_truth": value})])
    assert refused.value.fix.startswith(fix) and len(refused.value.fix) < 250


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(PromptFileError, match=re.escape(f"{path}:1: not valid JSON")):
        read([path])


def test_a_compressed_file_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a"}'))
    with pytest.raises(PromptFileError, match=re.escape(f"{path}:1: the file is compressed")):
        read([path])


def test_a_missing_file_is_named_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    with pytest.raises(PromptFileError, match=re.escape(f"validation.data_args.file_name: cannot read {path}: No such file")):
        read([path], key="validation.data_args")


@pytest.mark.parametrize(
    ("pattern", "files"), [("*.jsonl", "a.jsonl, b.jsonl"), ("[ab].jsonl", "a.jsonl"), ("none*", "a.jsonl, b.jsonl")]
)
def test_a_pattern_is_no_file_and_a_list_is_asked_for(tmp_path: Path, pattern: str, files: str) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(PromptFileError, match="no pattern is read here") as caught:
        list(read_rows(DataArguments(file_name=str(tmp_path / pattern))))
    assert all(file in caught.value.fix for file in files.split(", ")) and caught.value.fix.startswith("a list of files: [")


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    for paths in [[], [write(tmp_path / "empty.jsonl", "", "  ")]]:
        with pytest.raises(PromptFileError, match=r"k: no prompts in "):
            read(paths, key="k")


TABLE = [
    {"id": "a", "question": "1+1=", "answer": "2", "tag": "math"},
    {"id": "b", "question": 'é, "quoted"\nline', "answer": "007", "tag": "math"},
]
ASKED = DataArguments(prompt="question", ground_truth="answer")


def as_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1)


def as_arrow_stream(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def as_arrow_file(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)


@pytest.mark.parametrize(
    ("name", "written"),
    [("t.csv", as_csv), ("t.tsv", as_csv), ("t.parquet", as_parquet), ("t.arrow", as_arrow_stream), ("t.arrow", as_arrow_file)],
)
def test_tables_hold_the_rows_that_lines_hold(tmp_path: Path, name: str, written: Any) -> None:
    written(tmp_path / name, TABLE)
    expected = read([write(tmp_path / "t.jsonl", *TABLE)], ASKED)
    rows = read([tmp_path / name], ASKED)
    assert [(row.id, row.tag, row.prompt, row.ground_truth) for row in rows] == [
        (row.id, row.tag, row.prompt, row.ground_truth) for row in expected
    ]
    assert rows[1].where == f"{tmp_path / name}:2"


def test_what_json_has_no_form_for_is_text_and_bytes_are_left_out(tmp_path: Path) -> None:
    row = {**TABLE[0], "image": {"bytes": b"\x89PNG", "path": "x"}, "raw": b"1", "day": date(2026, 1, 2), "hard": [1, 2]}
    row |= {"images": [{"bytes": b"x"}], "took": timedelta(seconds=90)}
    row["messages"] = [{"role": "user", "content": "q"}]
    as_parquet(tmp_path / "t.parquet", [row])
    (found,) = read([tmp_path / "t.parquet"], ASKED)
    assert found.extra == {"day": "2026-01-02", "hard": [1, 2], "took": "0:01:30"}
    assert found.messages == [{"role": "user", "content": "q"}]


def test_a_value_of_a_csv_file_may_be_long(tmp_path: Path) -> None:
    """As test cases are: Python's own limit is 131,072 characters."""
    as_csv(tmp_path / "t.csv", [{**TABLE[0], "tests": "x" * 200_000}])
    assert [len(row.extra["tests"]) for row in read([tmp_path / "t.csv"], ASKED)] == [200_000]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("t.parquet", b"PAR1 no parquet", "cannot read"),
        ("t.arrow", b"nothing", "cannot read"),
        ("t.csv", b"id,question\na,b,c\n", "line 2 has another number of values"),
        ("t.csv", b'id,question\na,"b\n', "unexpected end of data"),
        ("t.csv", b"id,question\n\xff,b\n", "cannot read"),
    ],
)
def test_a_table_that_is_none_is_one_line(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PromptFileError, match=what) as refused:
        read([tmp_path / name], ASKED)
    assert "\n" not in str(refused.value) and name in str(refused.value)


def test_a_tag_for_rows_without_one_and_a_system_message(tmp_path: Path) -> None:
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]
    bare = {"ground_truth": "2", "prompt": "q"}
    path = write(tmp_path / "p.jsonl", bare, {"ground_truth": "2", "tag": "x", "messages": own})
    rows = read([path], DataArguments(default_tag="sums", system_prompt="be short"), only_tag="other")
    assert [row.tag for row in rows] == ["sums", "x"]
    assert rows[0].messages == [{"role": "system", "content": "be short"}, {"role": "user", "content": "q"}]
    assert rows[1].messages == own


def test_messages_may_stand_in_the_column_that_is_called_prompt(tmp_path: Path) -> None:
    """As in the data sets of TRL and verl."""
    messages = [{"role": "user", "content": "x"}]
    path = write(tmp_path / "a.jsonl", {**GOOD, "prompt": messages}, {**GOOD, "id": "b", "prompt": json.dumps(messages)})
    rows = read([path], DataArguments(messages="prompt"))
    assert [(row.prompt, row.messages) for row in rows] == [(None, messages)] * 2


def test_a_column_may_be_an_entry_of_another_as_in_verls_files(tmp_path: Path) -> None:
    """Unless a column has just that name. What holds the entry stays among the others."""
    columns = DataArguments(messages="prompt", tag="data_source", ground_truth="reward_model.ground_truth")
    holder = {"style": "rule", "ground_truth": "42"}
    row = {"data_source": "gsm8k", "prompt": [{"role": "user", "content": "q"}], "reward_model": holder}
    pq.write_table(pa.Table.from_pylist([row]), table := tmp_path / "p.parquet")
    (found,) = read([table], columns)
    assert (found.tag, found.ground_truth, found.extra) == ("gsm8k", "42", {"reward_model": holder})
    (flat,) = read([write(tmp_path / "p.jsonl", {**row, "reward_model.ground_truth": "7"})], columns)
    assert flat.ground_truth == "7"
    with pytest.raises(PromptFileError, match=r"column 'reward_model\.ground_truth' is missing"):
        read([write(tmp_path / "q.jsonl", {**row, "reward_model": {"style": "rule"}})], columns)


def test_files_that_number_their_rows_each_for_itself(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1.jsonl", GOOD), write(tmp_path / "2.jsonl", GOOD)
    assert [row.id for row in read([first, second])] == ["a", "2.jsonl:a"]
    with pytest.raises(PromptFileError, match=r"is that of .*1\.jsonl:1 too"):
        read([write(tmp_path / "1.jsonl", GOOD, GOOD)])


@pytest.mark.parametrize(
    ("row", "fix"),
    [
        ("[1]", "one object a line"),
        ("[", "one object a line"),
        ({"question": "x", "answer": "2", "tag": "math"}, "data_args: {prompt: question}"),
        ({"prompt": "x", "answer": "2", "tag": "math"}, "data_args: {ground_truth: answer}"),
        ({"prompt": "x", "ground_truth": "2"}, "data_args.default_tag"),
        ({"prompt": [{"role": "user", "content": "x"}], "ground_truth": "2"}, "data_args: {messages: prompt}"),
    ],
)
def test_what_is_wrong_with_a_row_comes_with_its_own_fix(tmp_path, row, fix):
    path = tmp_path / "p.jsonl"
    path.write_text(row if isinstance(row, str) else json.dumps(row))
    collect = Collector()
    collect("data", str(path), lambda: read([path]), "another file")
    with pytest.raises(ConfigError) as refused:
        collect.raise_if_any()
    assert fix in refused.value.problems[0].fix


USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "4"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def one(tmp_path: Path, messages: object, **columns: Any) -> list[dict[str, Any]]:
    (found,) = read([write(tmp_path / "p.jsonl", {**GOOD, "messages": messages})], DataArguments(**columns))
    assert found.messages is not None
    return found.messages


def test_parts_of_text_are_joined_and_roles_and_calls_have_the_form_of_templates(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}]
    assert one(tmp_path, [{"role": "user", "content": parts}]) == [{"role": "user", "content": "What is 2+2?"}]
    assert one(tmp_path, [{"role": "developer", "content": "s"}, USER])[0] == {"role": "system", "content": "s"}
    calls = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "3", "name": "add"}]
    read_calls = one(tmp_path, calls)
    assert read_calls[1]["content"] == "" and read_calls[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert read_calls[2] == calls[2]
    without = {"role": "assistant", "tool_calls": [CALL]}
    assert one(tmp_path, [USER, without, {"role": "tool", "content": "3"}, {"role": "tool", "content": "4"}])[1]["content"] == ""
    assert len(one(tmp_path, [USER, USER])) == 2, "two turns of a user are the template's to take or refuse"


@pytest.mark.parametrize(
    ("messages", "message", "fix"),
    [
        ([USER, ASSISTANT], "messages[1] is the assistant's: the prompt would have an answer already", "continue_final_message"),
        ([{"role": "user", "content": None}], "messages[0] has null for a content", "a text"),
        ([{"role": "assistant", "content": None}, USER], "messages[0] has null for a content", "a text"),
        ([{"role": "assistant", "content": None, "tool_calls": []}, USER], "messages[0] has null for a content", "a text"),
        (
            [{"role": "user", "content": 7}],
            "messages[0]: the content of a message is a text or a list of parts",
            '"type": "text"',
        ),
        ([{"role": "user", "content": {"text": "q"}}], "messages[0]: the content of a message", '"type": "text"'),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
            "a part of type 'image_url'",
            '"type": "text"',
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": None}]}],
            "a part of type 'text' cannot be shown",
            '"type": "text"',
        ),
        ([{"role": "critic", "content": "q"}], "messages[0] has the role 'critic'", "one of developer, system, user"),
        ([{"role": "User", "content": "q"}], "messages[0] has the role 'User'", "one of developer, system, user"),
        ([{"role": "gpt", "content": "q"}], "messages[0] has the role 'gpt'", "write assistant"),
        ([USER, {"role": "ipython", "content": "q"}], "messages[1] has the role 'ipython'", "write tool"),
        ([USER, {"role": "system", "content": "s"}, USER], "messages[1] is the system's, which comes first", "join it"),
        ([{"role": "system", "content": "s"}], "messages[0] is the system's, and nobody asks anything", "a user's message"),
        ([USER, {"role": "tool", "content": "3"}], "messages[1] is a tool's, and no message before it calls one", "tool_calls"),
        ([USER, {**ASSISTANT, "tool_calls": "add"}, USER], "messages[1].tool_calls is no list of calls", ""),
    ],
)
def test_messages_that_are_no_conversation_are_refused_by_file_line_and_place(
    tmp_path: Path, messages: object, message: str, fix: str
) -> None:
    path = write(tmp_path / "p.jsonl", GOOD, {**GOOD, "id": "b", "messages": messages})
    with pytest.raises(PromptFileError) as refused:
        read([path])
    assert f"{path}:2: " in str(refused.value) and message in str(refused.value) and fix in refused.value.fix


def test_an_answer_that_is_begun_may_end_the_messages_where_that_is_asked_for(tmp_path: Path) -> None:
    assert one(tmp_path, [USER, ASSISTANT], continue_final_message=True) == [USER, ASSISTANT]
    assert one(tmp_path, [USER], continue_final_message=True) == [USER]
    with pytest.raises(PromptFileError, match="calls tools, and nobody goes on from that"):
        one(tmp_path, [USER, {**ASSISTANT, "tool_calls": [CALL]}], continue_final_message=True)
