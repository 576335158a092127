"""An answer that a row has begun is gone on from: its prompt ends inside the assistant's turn."""

import pytest
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.core.configs.problems import ConfigError
from roll.core.errors import PromptFileError
from roll.prepare.keywords import made
from roll.prompts.chat_template import render
from roll.prompts.prompt_file import PromptRow
from roll.prompts.prompt_source import tokenize_prompts

SYMBOLS = ["<pad>", "<eos>", "<unk>", "<turn>", *"abcdefghijklmnopqrstuvwxyz0123456789+=: \n"]
PLAIN = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<turn>\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
TRIMS = PLAIN.replace("m.content", "m.content | trim")
ALTERNATES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% endfor %}" + PLAIN
)
ASKED = {"role": "user", "content": "1+1="}


def tokenizer(template):
    made = symbol_tokenizer(SYMBOLS, pattern=r"<turn>|[\s\S]", unk_token="<unk>")
    made.chat_template = template
    return made


def row(*messages, where="p.jsonl:1"):
    return PromptRow("a", "t", "2", None, [*messages], where)


def begun(text):
    return row(ASKED, {"role": "assistant", "content": text})


@pytest.mark.parametrize(
    ("template", "form", "text", "prompt"),
    [
        (PLAIN, "native", "it is", "user:1+1=<turn>\nassistant:it is"),
        (PLAIN, "native", "it is ", "user:1+1=<turn>\nassistant:it is "),
        (PLAIN, "native", "1+1=", "user:1+1=<turn>\nassistant:1+1="),
        (TRIMS, "native", "it is ", "user:1+1=<turn>\nassistant:it is"),
        (None, "chatml", "it is", "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\nit is"),
    ],
)
def test_the_prompt_ends_where_the_answer_is_to_go_on(template, form, text, prompt):
    made = tokenizer(template)
    assert render([begun(text)], made, form) == [prompt]
    usable, _ = tokenize_prompts([begun(text)], made, form, 99, {"t": "d"})
    (read,) = usable
    assert read.input_ids[-1] != made.convert_tokens_to_ids("<turn>")
    assert read.conversation == begun(text).messages, "rewards see what is begun"
    (whole,), _ = tokenize_prompts([row(ASKED)], made, form, 99, {"t": "d"})
    assert whole.conversation == []


def test_a_template_that_leaves_out_what_is_begun_is_told_by_file_and_line():
    drops = tokenizer("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(PromptFileError, match=r"p.jsonl:1: the tokenizer's chat template refuses the messages: .*final message"):
        render([begun("it is")], drops, "native")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([ASKED, ASKED], "Conversation roles must alternate"),
        ([{"role": "system", "content": "s"}, ASKED], "System role not supported"),
    ],
)
def test_a_template_that_refuses_the_order_of_a_row_names_the_row_and_what_to_do(messages, said):
    with pytest.raises(
        PromptFileError, match=f"p.jsonl:2: the tokenizer's chat template refuses the messages: .*{said}"
    ) as refused:
        render([row(ASKED), row(*messages, where="p.jsonl:2")], tokenizer(ALTERNATES), "native")
    assert "leave it out" in refused.value.fix


def test_messages_that_say_nothing_are_left_out_like_prompts_that_say_nothing():
    rows = [row({"role": "system", "content": "s"}, {"role": "user", "content": " "}), row(ASKED)]
    usable, skipped = tokenize_prompts(rows, tokenizer(PLAIN), "native", 99, {"t": "d"})
    assert (len(usable), skipped) == (1, {"empty": 1})


def test_rows_in_memory_are_read_like_those_of_a_file(tmp_path):
    tiny_qwen2(len(SYMBOLS), num_hidden_layers=1, max_position_embeddings=512).save_pretrained(tmp_path)
    tokenizer(PLAIN).save_pretrained(tmp_path)
    rows = [{"messages": [ASKED], "answer": "2"}, {"messages": begun("it is").messages, "answer": "2"}]
    given = {"model": tmp_path, "data": rows, "reward": len, "output_dir": str(tmp_path / "output")}
    with pytest.raises(ConfigError, match=r"row:2: messages\[1\] is the assistant's"):
        made(**given)
    config = made(**given, actor_train={"data_args": {"continue_final_message": True}})
    assert config.actor_train.data_args.continue_final_message
    rows[1]["messages"] = [{"role": "user", "content": None}]
    with pytest.raises(ConfigError, match=r"row:2: messages\[0\] has null for a content"):
        made(**given)
