"""Tokens of training rows, and which of them are trained."""

import json

import pytest
from rows_world import END, START, TEMPLATE, sums, tokenizer, write

from roll.core.configs.arguments import DataArguments
from roll.core.configs.rows import DPOKeysConfig, SFTKeysConfig
from roll.core.errors import PromptFileError
from roll.prompts.row_tokens import RowTokenizer
from roll.prompts.stored_rows import ANSWERS
from roll.prompts.training_rows import read_training_rows

ASK = {"role": "user", "content": "1+2="}
SAY = {"role": "assistant", "content": "3"}


def made(path, rows, loss_on="assistant", template="native", longest=99, columns=None, spoken=None, **data):
    if not path.exists():
        write(path, rows)
    spoken = spoken or tokenizer()
    arguments = DataArguments(file_name=str(path), template=template, **data)
    read = read_training_rows(arguments, columns or SFTKeysConfig(loss_on=loss_on), "data_args")
    return RowTokenizer(spoken, template, loss_on, [spoken.eos_token_id], None).rows(read, longest, True, None)


def shown(row, which=0):
    """The text of a row, its trained tokens in brackets."""
    names = tokenizer().convert_ids_to_tokens
    ids, mask, _ = row.extra[ANSWERS][which]
    told = [f"({name})" if own else name for name, own in zip(names(ids), mask, strict=True)]
    return "".join([*names(row.input_ids), "|", *told]).replace(START, "<").replace(END, ">")


@pytest.mark.parametrize(
    ("loss_on", "expected"),
    [
        ("assistant", "<u1+2=>\n<a|(3)(>)\n<u1+2=>\n<a(3)(>)"),
        ("last", "<u1+2=>\n<a3>\n<u1+2=>\n<a|(3)(>)"),
        ("all", "<|" + "".join(f"({c})" for c in "u1+2=>\n<a3>\n<u1+2=>\n<a3>\n")),
    ],
)
def test_answers_are_trained_with_the_token_that_ends_them_and_nothing_behind_it(tmp_path, loss_on, expected):
    usable, _ = made(tmp_path / "rows.jsonl", [{"messages": [ASK, SAY, ASK, SAY]}], loss_on)
    (row,) = usable
    assert shown(row) == expected


def test_an_answer_of_weight_0_is_read_and_not_trained(tmp_path):
    unheard = SAY | {"weight": 0}
    rows = [{"messages": [ASK, SAY | {"weight": 1}, ASK, unheard]}, {"messages": [ASK, unheard]}]
    usable, left_out = made(tmp_path / "rows.jsonl", rows)
    assert [shown(row) for row in usable] == ["<u1+2=>\n<a|(3)(>)"]
    assert left_out == {"without_answer_of_weight_1": 1}
    with pytest.raises(PromptFileError, match=r"rows\.jsonl:1: a message has weight 0, and loss_on all"):
        made(tmp_path / "rows.jsonl", rows, "all")
    with pytest.raises(PromptFileError, match=r"messages has the weight 0\.5"):
        made(tmp_path / "half.jsonl", [{"messages": [ASK, SAY | {"weight": 0.5}]}])


def test_a_prompt_and_a_response_are_a_conversation_with_system_and_query(tmp_path):
    row = {"instruction": "1+2=", "input": "4", "output": "3", "system": "00"}
    columns = SFTKeysConfig(response="output", query="input", system="system")
    usable, _ = made(tmp_path / "rows.jsonl", [row], columns=columns, prompt="instruction")
    assert shown(next(iter(usable))) == "<s00>\n<u1+2=\n4>\n<a|(3)(>)"


def test_messages_that_end_with_a_question_take_the_response_behind_them(tmp_path):
    usable, _ = made(tmp_path / "rows.jsonl", [{"messages": [ASK], "response": "3"}])
    assert shown(next(iter(usable))) == "<u1+2=>\n<a|(3)(>)"


def test_the_template_none_takes_texts_as_they_stand_and_adds_the_end_of_text(tmp_path):
    usable, _ = made(tmp_path / "rows.jsonl", [{"prompt": "1+2=", "response": "3"}], template="none")
    assert shown(next(iter(usable))) == "1+2=|(3)(>)"


def test_tools_are_shown_by_the_template_given_as_a_list_or_as_json(tmp_path):
    tools = [{"type": "function", "function": {"name": "add"}}]
    rows = [{"messages": [ASK, SAY], "tools": given} for given in (tools, json.dumps(tools))]
    usable, _ = made(tmp_path / "rows.jsonl", rows)
    assert [shown(row) for row in usable] == ["[1]<u1+2=>\n<a|(3)(>)"] * 2


def test_an_answer_that_calls_a_tool_is_one_though_it_says_nothing(tmp_path):
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": "{}"}}],
    }
    usable, left_out = made(tmp_path / "rows.jsonl", [{"messages": [ASK, call]}])
    assert len(usable) == 1 and not left_out


def test_rows_that_teach_nothing_are_counted_by_reason(tmp_path):
    long = [{"role": "user", "content": "1+" * 40}, SAY]
    rows = [
        {"messages": each} for each in ([ASK, SAY], [ASK], [ASK, {**SAY, "content": " "}], [ASK, {**SAY, "content": ""}], long)
    ]
    usable, left_out = made(tmp_path / "rows.jsonl", rows, longest=40)
    assert (len(usable), dict(left_out)) == (1, {"without_last_answer": 1, "empty_answer": 2, "too_long": 1})
    told = left_out.told(40, "sequence_length")
    assert told == "1 without last answer, 2 empty answer, 1 too long (sequence_length is 40, 88 would do)"


def test_turns_that_a_template_rewrites_are_not_trained_as_if_they_had_been_said(tmp_path):
    hides = TEMPLATE.replace("m['content']", "('' if m['role'] == 'assistant' and not loop.last else m['content'])")
    rows = [{"messages": [ASK, SAY, ASK, SAY]}, {"messages": [ASK, SAY]}]
    usable, left_out = made(tmp_path / "rows.jsonl", rows, spoken=tokenizer(hides))
    assert (len(usable), dict(left_out)) == (1, {"with_earlier_turns_rewritten_by_the_template": 1})
    usable, left_out = made(tmp_path / "rows.jsonl", rows, "last", spoken=tokenizer(hides))
    assert len(usable) == 2 and not left_out


def test_answers_that_no_token_ends_are_counted(tmp_path):
    endless = tokenizer(
        "{% for m in messages %}{{ m['role'][0] + m['content'] }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
    )
    _, left_out = made(tmp_path / "rows.jsonl", sums(4), spoken=endless)
    assert left_out.endless == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"messages": [', "rows.jsonl:1: not valid JSON"),
        ('{"question": "1+2="}', "neither 'messages' nor both 'prompt' and 'response' are there; it has 'question'"),
        ('{"prompt": "1+2="}', "neither 'messages' nor both 'prompt' and 'response' are there; it has 'prompt'"),
        ('{"messages": "nobody"}', "rows.jsonl:1: messages is not valid JSON"),
        ('{"messages": [{"role": "human", "content": "1"}]}', "has the role 'human'"),
        ('{"messages": []}', "messages is a list without elements"),
    ],
)
def test_a_row_that_cannot_be_read_ends_the_reading_with_its_place(tmp_path, line, says):
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    with pytest.raises(PromptFileError) as error:
        made(tmp_path / "rows.jsonl", [])
    assert says in str(error.value)


def test_pairs_share_their_question_in_each_of_their_forms(tmp_path):
    rows = [
        {"prompt": "1+2=", "chosen": "3", "rejected": "33"},
        {"prompt": "1+2=", "chosen": [SAY], "rejected": [{**SAY, "content": "33"}]},
        {"prompt": "1+2=", "chosen": [ASK, SAY], "rejected": [ASK, {**SAY, "content": "33"}]},
        {"messages": [ASK], "chosen": "3", "rejected": "33"},
        {"prompt": "1+2=", "chosen": "3", "rejected": "3"},
    ]
    usable, left_out = made(tmp_path / "rows.jsonl", rows, "last", columns=DPOKeysConfig())
    for row in usable:
        # The common beginning of both answers is trained, and belongs to what they share.
        assert (shown(row), shown(row, 1)) == ("<u1+2=>\n<a|(3)(>)", "<u1+2=>\n<a|(3)(3)(>)")
    assert (len(usable), dict(left_out)) == (4, {"equal_answers": 1})


def test_a_pair_without_an_answer_names_the_column(tmp_path):
    with pytest.raises(PromptFileError, match="column 'rejected' is missing"):
        made(tmp_path / "rows.jsonl", [{"prompt": "1", "chosen": "2"}], "last", columns=DPOKeysConfig())
