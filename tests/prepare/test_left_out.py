"""Lengths and the chat template, where a file leaves them out: from the model and the prompts, and never over what is written."""

import json

import pytest
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.prepare.compose import load

LONGEST, ANSWER = 40, 300


@pytest.fixture
def folder(tmp_path):
    """A model that attends to 512 tokens, a token each character, and prompts of up to 40 with answers of up to 300."""
    symbol_tokenizer(["<pad>", "<eos>", *"0123456789+="]).save_pretrained(tmp_path / "model")
    tiny_qwen2(14, eos_token_id=1, pad_token_id=0, max_position_embeddings=512).save_pretrained(tmp_path / "model")
    rows = [{"prompt": "1" * length, "ground_truth": "2" * ANSWER} for length in (3, LONGEST)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [
        f"pretrain: {tmp_path}/model",
        f"actor_train: {{data_args: {{file_name: {tmp_path}/train.jsonl}}}}",
        f"validation: {{data_args: {{file_name: {tmp_path}/train.jsonl}}}}",
        "rewards: {sums: {worker_cls: roll.pipeline.rlvr.rewards.exact_match_reward_worker.ExactMatchRewardWorker}}",
    ]
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    return tmp_path


def test_lengths_and_template_follow_from_model_and_prompts(folder):
    config, report = load(folder, "run")
    prompt = 64  # 40 and one more token, rounded up to a multiple of 32
    assert (config.prompt_length, config.response_length) == (prompt, 512 - prompt)  # twice the answer would not fit the model
    assert {config.actor_train.data_args.template, config.validation.data_args.template} == {"none"}
    assert sorted(note.key for note in report.derived) == [
        "actor_train.data_args.template",
        "prompt_length",
        "response_length",
        "validation.data_args.template",
    ]
    assert report.told == report.derived  # a run says them at its start


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (["response_length=7"], (1024, 7, None, "none")),
        (["sequence_length=2000"], (1024, None, 2000, "none")),
        (["prompt_length=100"], (100, 412, None, "none")),
        (["response_length=7", "actor_train.data_args.template=native"], (1024, 7, None, "native")),
    ],
)
def test_what_is_written_stays(folder, written, found):
    config, _ = load(folder, "run", written)
    lengths = (config.prompt_length, config.response_length, config.sequence_length)
    assert (*lengths, config.actor_train.data_args.template) == found


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("prompt_length=512", "prompt_length 512 leaves no room in the 512 tokens of the model"),
        ("actor_train.data_args.file_name=none.jsonl", "actor_train.data_args.file_name: cannot read none.jsonl"),
        ("pretrain=no-one/no-model", "no-one/no-model is not here"),
    ],
)
def test_what_keeps_lengths_from_being_known_is_said(folder, written, why, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(folder / "cache"))
    config, report = load(folder, "run", [written])
    assert config.response_length is None, "the rules tell it, with what else is wrong"
    assert why in next(note for note in report.derived if note.key == "response_length").message
