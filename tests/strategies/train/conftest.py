import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from programs import Programs
from tiny_models import numbered_tokenizer, tiny_qwen2
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
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

# Matrices of 12 rows are no size for grouped products.
_THREE_LAYERS = {"num_hidden_layers": 3, "moe_intermediate_size": 12}
_QWEN3_MOE = {"head_dim": 8, "norm_topk_prob": True, "tie_word_embeddings": False}
MIXTURES = {
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, _QWEN3_MOE),
    "qwen3_moe_of_three": (Qwen3MoeForCausalLM, Qwen3MoeConfig, {**_QWEN3_MOE, **_THREE_LAYERS}),
    "qwen2_moe": (
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig,
        {"shared_expert_intermediate_size": 20, "norm_topk_prob": False, "mlp_only_layers": [1], "tie_word_embeddings": True},
    ),
}


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """A tiny random Qwen2 with tied embeddings and its tokenizer, in a folder."""
    folder = str(tmp_path_factory.mktemp("qwen2"))
    tiny_qwen2(37, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2).save_pretrained(folder)
    numbered_tokenizer(37).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def family_models(tmp_path_factory):
    """Tiny random models of each family, tied and untied, with a vocabulary that no even number divides."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = numbered_tokenizer(37)
    for family, (cls, config, own) in FAMILIES.items():
        for tied in (True, False):
            path = folder / f"{family}-{'tied' if tied else 'untied'}"
            torch.manual_seed(0)
            model = cls(
                config(
                    vocab_size=37,
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
            tokenizer.save_pretrained(path)
    return folder


@pytest.fixture(scope="session")
def megatron_models(family_models, tmp_path_factory):
    """The dense families, and tiny random mixtures of four experts: Qwen3's in every layer, Qwen2's beside a shared expert in
    one of two; one of three layers, which two stages share unequally."""
    folder = tmp_path_factory.mktemp("megatron")
    for path in family_models.iterdir():
        (folder / path.name).symlink_to(path)
    tokenizer = numbered_tokenizer(37)
    for name, (cls, config, own) in MIXTURES.items():
        torch.manual_seed(0)
        model = cls(
            config(
                vocab_size=37,
                hidden_size=16,
                intermediate_size=32,
                num_experts=4,
                num_experts_per_tok=2,
                decoder_sparse_step=1,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                initializer_range=0.2,
                pad_token_id=None,
                **{"num_hidden_layers": 2, "moe_intermediate_size": 16, **own},
            )
        )
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in parameter_name else 0.0, 0.2)
            elif "experts" in parameter_name or "mlp.gate" in parameter_name:
                torch.nn.init.normal_(parameter, 0.0, 0.2)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def programs(forks, tmp_path_factory):
    """Starts ranks."""
    return Programs(tmp_path_factory.mktemp("programs"), forks)


@pytest.fixture(scope="session")
def rank_program():
    """What the processes of the two-rank tests share with the tests: batches, losses, options."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("rank_program.py"))))
