"""The load of `rlvr_vs_trl.py`, the same for both sides: a random model whose responses have long-tailed lengths, prompts.

The next token of a freshly initialised model is nearly uniform, so with a vocabulary of 40 tokens each token is the end of the
sequence with probability 1/40: lengths are geometric, mean about 38 when cut off at 160, a quarter of the longest.
Only the standard library is needed to import this file: the two sides live in different environments.
"""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

EOS = "<eos>"
CHARACTERS = string.ascii_lowercase + string.digits + " .,"
PROMPTS_PER_STEP, GROUP = 16, 8
LONGEST_PROMPT, LONGEST_RESPONSE = 24, 160
LEARNING_RATE = 1e-6
WARM_UP = 4
"""Steps left out at the beginning."""
TRL_OPTIONS: dict[str, Any] = {"bf16": False}


def reward(text: str) -> float:
    """Share of the letter a."""
    return text.count("a") / max(len(text), 1)


def rewards() -> list[Any]:
    """For TRL."""

    def letter_reward(completions: list[str], **_: Any) -> list[float]:
        return [reward(text) for text in completions]

    return [letter_reward]


def make(folder: Path, hidden: int, layers: int, prompts: int) -> int:
    """Writes `model/` and `prompts.jsonl`; returns the number of the model's parameters."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocabulary = [EOS, *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=EOS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS).save_pretrained(folder / "model")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(vocabulary),
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LONGEST_PROMPT + LONGEST_RESPONSE,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
    )
    model.save_pretrained(folder / "model")
    draw = random.Random(0)
    with (folder / "prompts.jsonl").open("w") as file:
        for i in range(prompts):
            text = "".join(draw.choices(CHARACTERS, k=draw.randint(8, LONGEST_PROMPT)))
            file.write(json.dumps({"id": str(i), "tag": "letters", "prompt": text, "ground_truth": "-"}) + "\n")
    return int(model.num_parameters())
