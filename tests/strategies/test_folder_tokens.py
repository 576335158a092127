"""Which tokens end an answer, by all that a model folder says."""

import json

import pytest
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.core.configs.arguments import GeneratingArguments
from roll.core.configs.problems import ConfigError
from roll.core.workers.infer_interface import SamplingParams, sampling_params
from roll.core.workers.response_text import response_text
from roll.plan.rules.loading import load_config
from roll.strategies.folder_tokens import end_tokens, folder_tokens
from roll.strategies.model_folder import load_tokenizer

SYMBOLS = ["<pad>", "<eos>", *"abcdefg", "<turn>"]
TURN = 9


@pytest.fixture
def folder(tmp_path):
    """A function that writes what each file names as its end of text; `...`: nothing."""

    def write(generation=..., config=..., tokenizer=None):
        tiny_qwen2(len(SYMBOLS), num_hidden_layers=1).save_pretrained(tmp_path)
        made = symbol_tokenizer(SYMBOLS, pattern=r"<turn>|[\s\S]", extra_special_tokens=["<turn>"])
        for name, value in (tokenizer or {}).items():
            setattr(made, name, value)
        made.save_pretrained(tmp_path)
        for name, value in (("generation_config.json", generation), ("config.json", config)):
            content = json.loads((tmp_path / name).read_text())
            content.pop("eos_token_id", None)
            (tmp_path / name).write_text(json.dumps(content if value is ... else content | {"eos_token_id": value}))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        (..., ..., (1, 0)),
        (TURN, ..., (1, TURN, 0)),
        ([1, TURN], [1, TURN], (1, TURN, 0)),
        (..., [TURN, 3], (1, TURN, 3, 0)),
        (None, -1, (1, 0)),
        ([0], ..., (1, 0)),
        ([TURN, 10, 4000], ..., (1, TURN, 0)),
        (["<turn>", True, 2.0, TURN], ..., (1, TURN, 0)),
    ],
)
def test_an_answer_ends_at_every_token_that_the_folder_names_and_its_model_can_write(folder, generation, config, ends):
    path = folder(generation, config)
    assert end_tokens(str(path), load_tokenizer(path)) == ends
    assert folder_tokens(str(path)).ends == ends, "the same is known before anything is loaded"


def test_the_tokens_of_a_multimodal_configuration_are_those_of_its_texts(folder):
    path = folder()
    config = json.loads((path / "config.json").read_text())
    texts = {"vocab_size": config.pop("vocab_size"), "eos_token_id": [TURN]}
    (path / "config.json").write_text(json.dumps(config | {"text_config": texts}))
    found = folder_tokens(str(path))
    assert (found.rows, found.ends) == (len(SYMBOLS), (1, TURN, 0))


def test_a_tokenizer_without_an_end_of_text_ends_answers_by_the_other_files_alone(folder):
    none = {"eos_token": None, "pad_token": None}
    assert folder_tokens(str(folder([TURN], ..., none))).ends == (TURN,)
    without = folder_tokens(str(folder(..., ..., none)))
    assert without.ends == () and not without.has_end and without.whole


def test_padding_that_is_the_end_of_text_and_padding_beyond_the_embeddings_add_nothing(folder):
    assert folder_tokens(str(folder(..., ..., {"pad_token": "<eos>"}))).ends == (1,)
    path = folder()
    tokenizer = symbol_tokenizer(SYMBOLS)
    tokenizer.add_special_tokens({"pad_token": "<filler>"})
    tokenizer.save_pretrained(path)
    found = folder_tokens(str(path), load_tokenizer(path))
    assert found.ends == (1,) and found.unknown == [] and found.unknown_ends == []


def test_the_keys_that_name_end_tokens_take_the_place_of_the_folders():
    def stops(**args):
        return sampling_params(load_config(GeneratingArguments, args), 8, (1, 0)).stop_token_ids

    assert stops() == (1, 0)
    assert stops(eos_token_id=None) == (1, 0)
    assert stops(eos_token_id=4) == (4,)
    assert stops(eos_token_id=[4, 1]) == (4, 1)
    assert stops(eos_token_id=[]) == ()


@pytest.mark.parametrize(("value", "fix"), [("151645", "write 151645"), (["2"], "write 2"), ("<eos>", ""), (-1, ""), (True, "")])
def test_an_end_token_that_is_no_id_is_refused_with_its_fix(value, fix):
    with pytest.raises(ConfigError) as refused:
        load_config(GeneratingArguments, {"eos_token_id": value})
    (problem,) = refused.value.problems
    assert problem.key.startswith("eos_token_id") and problem.fix.startswith(fix)


@pytest.mark.parametrize(("reason", "text"), [("stop", "ab"), ("length", "abc")])
def test_the_text_of_an_answer_has_no_end_token_also_where_the_tokenizer_takes_it_for_text(reason, text):
    tokenizer = symbol_tokenizer(SYMBOLS)
    ids = tokenizer("abc")["input_ids"]
    assert response_text(tokenizer, ids, SamplingParams(stop_token_ids=(1, ids[-1])), reason) == text
