"""Size of a causal LM, from its `config.json` alone: parameters of each part and bytes of KV cache a token.

Pure: the mapping is read elsewhere. The counts are exact for the architectures named in `ARCHITECTURES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ARCHITECTURES = ("qwen2", "qwen3", "llama", "mistral")
_OF_FAMILIES = {"qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""The `model_type` of the language model inside a vision-language model -> that of the causal LM that it is."""
HEAD = "lm_head"
_SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of equal layers: attention (grouped queries, rotary positions), gated MLP, two RMS norms."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    """The output projection is the input embedding."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """An RMS norm on each query and key head."""

    @property
    def query_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of the keys of a layer, and of its values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """2·h·q + 2·h·kv + 3·h·f + 2·h, and biases and head norms where the architecture has them."""
        h, f, q, kv = self.hidden, self.intermediate, self.query_dim, self.kv_dim
        biases = self.qkv_bias * (q + 2 * kv) + self.output_bias * h + self.mlp_bias * (2 * f + h)
        return 2 * h * q + 2 * h * kv + 3 * h * f + 2 * h + biases + self.qk_norm * 2 * self.head_dim

    @property
    def outer_parameters(self) -> int:
        """Embedding V·h, the output projection again unless tied, and the last norm."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.outer_parameters

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Returns inputs and outputs of each linear map of a layer, by its path in the layer."""
        h, f, q, kv = self.hidden, self.intermediate, self.query_dim, self.kv_dim
        attention = {"q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h)}
        mlp = {"gate_proj": (h, f), "up_proj": (h, f), "down_proj": (f, h)}
        return {f"self_attn.{name}": size for name, size in attention.items()} | {
            f"mlp.{name}": size for name, size in mlp.items()
        }

    def adapter_parameters(self, target: str, rank: int) -> int:
        """Returns the number of parameters of LoRA adapters A [rank, in] and B [out, rank] on the layers that `target` names."""
        return sum(rank * (inputs + outputs) for inputs, outputs in self._adapted(target).values())

    def adapts_head(self, target: str) -> bool:
        return gets_adapters(target, HEAD)

    def _adapted(self, target: str) -> dict[str, tuple[int, int]]:
        paths = {f"model.layers.{i}.{name}": size for i in range(self.layers) for name, size in self.linear_layers.items()}
        return {path: size for path, size in {**paths, HEAD: (self.hidden, self.vocab)}.items() if gets_adapters(target, path)}

    def kv_bytes(self, element: int) -> int:
        """A token's keys and values over all layers, with `element` bytes a number: 2·layers·kv·element."""
        return 2 * self.layers * self.kv_dim * element


def gets_adapters(target: str, path: str) -> bool:
    """Returns True if `target` names the linear layer, as peft reads it: names separated by commas, a regular expression of whole
    paths, or `all-linear` (all but the output projection)."""
    if target == "all-linear":
        return path != HEAD
    names = [name.strip() for name in target.split(",")]
    if all(name.replace("_", "").isalnum() for name in names):
        return path.rpartition(".")[2] in names
    return re.fullmatch(target, path) is not None


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Returns the shape that a Hugging Face `config.json` describes; of a vision-language model, its language model's. Raises
    `ValueError` for another architecture or a missing size."""
    if "vision_config" in config:
        written = config.get("text_config") or config
        tied = config.get("tie_word_embeddings", written.get("tie_word_embeddings"))
        kind = _OF_FAMILIES.get(str(written.get("model_type")), written.get("model_type"))
        config = {**written, "model_type": kind, "tie_word_embeddings": tied}
    architecture = config.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ValueError(f"model_type {architecture!r} has no size formula here (known: {', '.join(ARCHITECTURES)})")
    sizes = {name: config.get(name) for name in _SIZES}
    wrong = [name for name, value in sizes.items() if type(value) is not int or value < 1]
    if wrong:
        raise ValueError(f"config.json has no {', '.join(wrong)}")
    layers, hidden, intermediate, heads, vocab = (int(config[name]) for name in _SIZES)
    biased = bool(config.get("attention_bias", False)) and architecture in ("qwen3", "llama")
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or (128 if architecture == "qwen3" else hidden // heads)),
        vocab=vocab,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=biased or architecture == "qwen2",
        output_bias=biased,
        mlp_bias=bool(config.get("mlp_bias", False)) and architecture == "llama",
        qk_norm=architecture == "qwen3",
    )
