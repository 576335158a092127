"""Text to tokens and back, and a run's model to a folder and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from saving import saved
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.cli.main import run_command
from roll.prompts.chat_template import encode

ROOT = Path(__file__).parents[2]
SMALL = ["max_steps=2", "save_steps=2", "rollout_batch_size=2", "actor_train.training_args.per_device_train_batch_size=16"]


def test_text_comes_back_from_its_tokens(tokenizer, conversations):
    """The text that a chat template makes, special tokens included, is what its tokens spell; encoded at once or by parts that
    end at a special token."""
    for messages in conversations.values():
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        (ids,) = encode([text], tokenizer, "native")
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        head, end, tail = text.rpartition("<|im_end|>")
        assert ids == [*encode([head + end], tokenizer, "native")[0], *encode([tail], tokenizer, "native")[0]]
        assert [tokenizer.convert_ids_to_tokens(i) for i in ids].count("<|im_start|>") >= len(messages) + 1


@pytest.mark.parametrize("name", ["full", "lora"])
def test_what_a_run_has_trained_is_exported_and_read_again(name, model_path, tokenizer, tmp_path):
    """Masters of the checkpoint, exported weights and those that transformers reads are the same bits; other than the start's."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, str(ROOT / "examples/smollm2/demo.py"), "--config_name", name, "--local", *SMALL]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    told = [f"pretrain={model_path}", "validation.generating_args.max_new_tokens=4", "val_batch_size=8"]
    done = subprocess.run([*command, *told], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "after (version 2)" in done.stdout, done.stdout + done.stderr
    checkpoint = tmp_path / "output" / f"smollm2_{name}" / "checkpoints" / "step-2"
    out = tmp_path / "exported"
    assert run_command(["export", "--checkpoint", str(checkpoint), "--output", str(out)]) == 0
    masters, weights = saved(checkpoint / "trainer" / "model", "model"), saved(out, "model")
    assert masters.keys() == weights.keys() and all(torch.equal(masters[key], weights[key]) for key in masters)
    model, start = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (out, model_path))
    state, before = model.state_dict(), start.state_dict()
    assert all(torch.equal(state[key], weights[key]) for key in weights)
    if name == "lora":  # the base is held in the type that computes, whatever the folder has
        before = {key: tensor.bfloat16().float() for key, tensor in before.items()}
    changed = {key for key in weights if not torch.equal(state[key], before[key])}
    assert changed == {key for key in weights if name == "full" or key.endswith("_proj.weight")}
    assert json.loads((out / "tokenizer.json").read_text()) == json.loads((model_path / "tokenizer.json").read_text())
    assert AutoTokenizer.from_pretrained(out).chat_template == tokenizer.chat_template
