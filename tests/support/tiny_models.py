"""Tiny random models and tokenizers, made by the tests that need them: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

FOR_VLLM = {"hidden_size": 64, "intermediate_size": 96, "initializer_range": 0.15, "max_position_embeddings": 512}
"""With heads of 32 numbers, the fewest that vLLM knows on CPUs."""


def tiny_qwen2(vocab_size: int, *, seed: int = 0, **changes: Any) -> Qwen2ForCausalLM:
    """`changes`: of a configuration with two layers of two heads, tied embeddings and no token that ends a text."""
    config: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocab_size, **{**config, **changes})).eval()


def tiny_mixture(vocab_size: int, *, seed: int = 0, **changes: Any) -> Qwen3MoeForCausalLM:
    """`changes`: of a configuration with three layers of eight experts, two a token."""
    config: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 3,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    torch.manual_seed(seed)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=vocab_size, **{**config, **changes})).eval()


def numbered_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """t0, t1, ...; for models whose texts nobody reads."""
    core = Tokenizer(models.WordLevel({f"t{i}": i for i in range(size)}, unk_token="t0"))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="t1")


def symbol_tokenizer(symbols: Iterable[str], pattern: str = r"[\s\S]", **options: Any) -> PreTrainedTokenizerFast:
    """One token a symbol, numbered in their order, <pad> and <eos> among them. `pattern` says what a text is cut into."""
    vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", **options)


def tiny_classifier(vocab_size: int, *, seed: int = 0, **changes: Any) -> Qwen2ForSequenceClassification:
    """As `tiny_qwen2`, with a head of one output."""
    torch.manual_seed(seed)
    config = tiny_qwen2(vocab_size, seed=seed, tie_word_embeddings=False, **changes).config
    config.num_labels = 1
    return Qwen2ForSequenceClassification(config).eval()
