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
def megatron_models(tmp_path_factory):
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
