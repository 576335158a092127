"""Makes the model of the embedded task as a mixture of experts, and its prompt files.

`python examples/embedded/make_mixture.py [--out DIR] [--force]` writes what `make_embedded.py` writes, with a Qwen3-MoE of four
layers with sixteen experts, two a token. Nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import make_embedded
from made_folder import command_line, make_folder
from make_embedded import VOCABULARY
from tiny_model import EOS, PAD
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

DEFAULT_OUT = Path(__file__).resolve().parent / "cache_mixture"


@dataclass(frozen=True)
class Settings(make_embedded.Settings):
    """All that the result depends on."""

    layers: int = 4
    experts: int = 16
    experts_per_token: int = 2
    expert_size: int = 64


def make_model(settings: Settings) -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        moe_intermediate_size=settings.expert_size,
        num_hidden_layers=settings.layers,
        num_experts=settings.experts,
        num_experts_per_tok=settings.experts_per_token,
        norm_topk_prob=True,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        head_dim=settings.hidden_size // settings.heads,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return Qwen3MoeForCausalLM(config)


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    return make_folder(out, settings, partial(make_embedded.build, model_of=make_model), force)


if __name__ == "__main__":
    command_line("Makes the embedded model as a mixture of experts (about two minutes).", DEFAULT_OUT, make)
