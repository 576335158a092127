import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


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
def rank_program():
    """What the processes of the two-rank tests share with the tests: batches, losses, options."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("rank_program.py"))))
