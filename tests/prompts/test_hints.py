"""Prompts with a hint, which a teacher gets and the policy does not."""

import json

import pytest
from tiny_models import symbol_tokenizer

from roll.core.configs.arguments import DataArguments
from roll.core.errors import PromptFileError
from roll.prompts.hints import Hint
from roll.prompts.prompt_file import read_rows
from roll.prompts.prompt_source import tokenize_prompts

TOKENIZER = symbol_tokenizer(["<pad>", "<eos>", *"0123456789+-=? abc"])
HINT = Hint("teachers.self", "solution", "{prompt} {hint}", of_truth=False)


def tokenized(tmp_path, rows, hints, template="none", **data):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_rows(DataArguments(file_name=str(path), **data))
    usable, _ = tokenize_prompts(read, TOKENIZER, template, 16, {"sums": "sums", "words": "words"}, hints=hints)
    return usable.rows


def row(number, prompt, tag="sums", **more):
    return {"id": number, "tag": tag, "prompt": prompt, "ground_truth": "7", **more}


def ids(text):
    return TOKENIZER(text).input_ids


def test_the_teachers_prompt_has_the_hint_and_the_policys_has_not(tmp_path):
    rows = tokenized(tmp_path, [row(0, "3+4=", solution="a7"), row(1, "abc", tag="words")], {"sums": HINT})
    assert [each.input_ids for each in rows] == [ids("3+4="), ids("abc")]
    assert [each.hinted_ids for each in rows] == [ids("3+4= a7"), None]
    prompt = rows[0].prompt(0)
    assert prompt.hinted_ids == ids("3+4= a7") and prompt.to_json()["hinted_ids"] == ids("3+4= a7")


def test_braces_in_texts_are_texts(tmp_path):
    hint = Hint("teachers.self", "solution", "{hint}{prompt}", of_truth=False)
    (given,) = read_rows_of(tmp_path, [row(0, "{hint}", solution="{prompt}")])
    assert hint.given(given).prompt == "{prompt}{hint}"


def read_rows_of(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return list(read_rows(DataArguments(file_name=str(path))))


def test_of_messages_the_last_of_the_user_has_it(tmp_path):
    said = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]
    (given,) = read_rows_of(tmp_path, [{"id": 0, "tag": "sums", "messages": said, "ground_truth": "7", "solution": "ab"}])
    assert [each["content"] for each in HINT.given(given).messages] == ["1", "2", "3 ab"]
    assert [each["content"] for each in given.messages] == ["1", "2", "3"]


def test_the_reference_answer_may_be_the_hint(tmp_path):
    hint = Hint("teachers.self", "ground_truth", "{prompt} {hint}", of_truth=True)
    assert tokenized(tmp_path, [row(0, "3+4=")], {"sums": hint})[0].hinted_ids == ids("3+4= 7")


@pytest.mark.parametrize(
    ("more", "told"),
    [({}, "has no 'solution'"), ({"solution": " "}, "has ' ' as its 'solution'"), ({"solution": ["a"]}, r"has \['a'\] as its")],
)
def test_a_row_without_its_hint_is_refused_with_file_and_row(tmp_path, more, told):
    with pytest.raises(PromptFileError, match=rf"rows\.jsonl:2: the row {told}.*teachers\.self \(hint_key\)"):
        tokenized(tmp_path, [row(0, "3+4=", solution="a"), row(1, "1+2=", **more)], {"sums": HINT})
