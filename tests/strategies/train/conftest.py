import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8}),
    "llama": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 2.0,
                "original_max_position_embeddings": 8,
            }
        },
    ),
}


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """A tiny random Qwen2 with tied embeddings and its tokenizer, in a folder."""
    folder = str(tmp_path_factory.mktemp("qwen2"))
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=37,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    vocab = {f"t{i}": i for i in range(config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t1").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def family_models(tmp_path_factory):
    """Tiny random models of each family, tied and untied, with a vocabulary that no even number divides."""
    folder = tmp_path_factory.mktemp("models")
    vocab = {f"t{i}": i for i in range(37)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="t0"))
    for family, (cls, config, own) in FAMILIES.items():
        for tied in (True, False):
            path = folder / f"{family}-{'tied' if tied else 'untied'}"
            torch.manual_seed(0)
            model = cls(
                config(
                    vocab_size=len(vocab),
                    hidden_size=16,
                    intermediate_size=32,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    max_position_embeddings=64,
                    tie_word_embeddings=tied,
                    initializer_range=0.2,
                    pad_token_id=None,
                    **own,
                )
            )
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:  # biases are 0 and norms 1 at first, and would hide what is wrong with them
                    torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
            model.save_pretrained(path)
            PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t1").save_pretrained(path)
    return folder


@pytest.fixture(scope="session")
def rank_program():
    """What the processes of the two-rank tests share with the tests: batches, losses, options."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("rank_program.py"))))
