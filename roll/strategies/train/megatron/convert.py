"""Hugging Face weights and Megatron's: how a parameter of a tensor-parallel rank is made of named tensors, and back.

A Megatron parameter is one tensor or a fusion of several (q, k and v; gate and up). Tensors are cut over the tensor-parallel
ranks first and fused then, so both directions are one line per parameter, exact to the bit, and the same for weights and for the
moments of the optimiser. Experts have names of their own, as in the files of published models. Written here, not taken from
mbridge: that one knows the names of Transformer Engine's layers only, gathers by pickled objects, reads every kind of rotary
scaling as linear, and keeps one model's tying for the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

Fusion = Literal["none", "qkv", "gate_up"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Sources of a parameter."""

    names: tuple[str, ...]
    """Hugging Face tensors."""
    dim: int | None = None
    """Dimension of each of them that is divided over the tensor-parallel ranks; None: every rank holds all."""
    fusion: Fusion = "none"
    vocabulary: bool = False
    """Dimension 0 is the vocabulary, padded with zeros until it can be divided."""
    copy: bool = False
    """Another parameter holds the same tensor (a tied embedding on the last of several pipeline stages)."""
    by_expert_rank: tuple[tuple[str, ...], ...] = ()
    """Part of an expert: `names` as they are on each of the expert-parallel ranks, which hold different experts."""

    @property
    def of_expert(self) -> bool:
        return bool(self.by_expert_rank)


EMBEDDING = Piece(("model.embed_tokens.weight",), 0, vocabulary=True)
OUTSIDE = {
    "embedding.word_embeddings.weight": EMBEDDING,
    "decoder.final_layernorm.weight": Piece(("model.norm.weight",)),
    "output_layer.weight": Piece(("lm_head.weight",), 0, vocabulary=True),
    "value_head.weight": Piece(("lm_head.weight",)),
    "value_head.bias": Piece(("lm_head.bias",)),
}
IN_LAYER = {
    "input_layernorm.weight": Piece(("input_layernorm.weight",)),
    "self_attention.linear_qkv.weight": Piece(tuple(f"self_attn.{x}_proj.weight" for x in "qkv"), 0, "qkv"),
    "self_attention.linear_qkv.bias": Piece(tuple(f"self_attn.{x}_proj.bias" for x in "qkv"), 0, "qkv"),
    "self_attention.q_layernorm.weight": Piece(("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": Piece(("self_attn.k_norm.weight",)),
    "self_attention.linear_proj.weight": Piece(("self_attn.o_proj.weight",), 1),
    "pre_mlp_layernorm.weight": Piece(("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.weight": Piece(("mlp.gate_proj.weight", "mlp.up_proj.weight"), 0, "gate_up"),
    "mlp.linear_fc2.weight": Piece(("mlp.down_proj.weight",), 1),
    "mlp.router.weight": Piece(("mlp.gate.weight",)),
    "mlp.shared_experts.linear_fc1.weight": Piece(
        ("mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"), 0, "gate_up"
    ),
    "mlp.shared_experts.linear_fc2.weight": Piece(("mlp.shared_expert.down_proj.weight",), 1),
    "mlp.shared_experts.gate_weight": Piece(("mlp.shared_expert_gate.weight",)),
}


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """The position of a rank among the ranks that divide a tensor, and the experts of a layer."""

    tensor_size: int = 1
    tensor_rank: int = 0
    expert_size: int = 1
    expert_rank: int = 0
    expert_tensor_size: int = 1
    """Ranks that divide the matrices of one expert."""
    expert_tensor_rank: int = 0


class WeightMap:
    """The parameters of one pipeline stage of a model with grouped-query attention, and a gated MLP or a mixture of them."""

    def __init__(self, hf_config: Any, place: ShardPosition, first_layer: int, tied: bool) -> None:
        """`first_layer`: index in the whole model of this stage's first layer. `tied`: the output layer's weights are the
        embedding's."""
        self._tied = tied
        self._groups = hf_config.num_key_value_heads // place.tensor_size
        self._heads_per_group = hf_config.num_attention_heads // hf_config.num_key_value_heads
        self._vocab_size = int(hf_config.vocab_size)
        self._experts_per_rank = (getattr(hf_config, "num_experts", None) or 0) // place.expert_size
        self._place, self._first_layer = place, first_layer

    def pieces(self, model: nn.Module) -> Iterator[tuple[Piece, nn.Parameter]]:
        """Yields every parameter of the stage with its sources."""
        for name, parameter in model.named_parameters():
            yield self._piece(name), parameter

    def _piece(self, name: str) -> Piece:
        if name == "output_layer.weight" and self._tied:
            return replace(EMBEDDING, copy=True)
        if name in OUTSIDE:
            return OUTSIDE[name]
        match = re.fullmatch(r"decoder\.layers\.(\d+)\.(?:mlp\.experts\.local_experts\.(\d+)\.(.+)|(.+))", name)
        inside = match and (f"mlp.{match[3]}" if match[2] else match[4])
        if match is None or inside not in IN_LAYER:
            raise ValueError(f"no Hugging Face name is known for Megatron's parameter '{name}'")
        piece = IN_LAYER[inside]
        prefix = f"model.layers.{self._first_layer + int(match[1])}."
        names = tuple(prefix + each for each in piece.names)
        if match[2] is None:
            return replace(piece, names=names)
        experts = range(int(match[2]), self._place.expert_size * self._experts_per_rank, self._experts_per_rank)
        by_rank = tuple(tuple(each.replace("mlp.", f"mlp.experts.{expert}.") for each in names) for expert in experts)
        return replace(piece, names=by_rank[self._place.expert_rank], by_expert_rank=by_rank)

    def shard(self, piece: Piece, tensors: Sequence[Tensor]) -> Tensor:
        """This rank's parameter, from the whole tensors `piece.names`."""
        if piece.dim is None:
            return tensors[0]
        place = self._place
        if piece.vocabulary:
            missing = padded_vocab(self._vocab_size, place.tensor_size) - self._vocab_size
            tensors = [nn.functional.pad(w, (0, 0, 0, missing)) for w in tensors]
        size, rank = (
            (place.expert_tensor_size, place.expert_tensor_rank) if piece.of_expert else (place.tensor_size, place.tensor_rank)
        )
        return self._fuse(piece.fusion, [w.chunk(size, piece.dim)[rank] for w in tensors])

    def unshard(self, piece: Piece, shards: Sequence[Tensor]) -> list[Tensor]:
        """The whole tensors `piece.names`, from the parameters of all ranks that divide them, in their order."""
        if piece.dim is None:
            return [shards[0]]
        parts = zip(*(self._unfuse(piece.fusion, shard) for shard in shards), strict=True)
        whole = [torch.cat(of_tensor, piece.dim) for of_tensor in parts]
        return [w[: self._vocab_size] for w in whole] if piece.vocabulary else whole

    def _fuse(self, fusion: Fusion, parts: list[Tensor]) -> Tensor:
        if fusion == "qkv":  # for each group: its query heads, its key head, its value head
            rest = parts[0].shape[1:]
            return torch.cat([w.reshape(self._groups, -1, *rest) for w in parts], 1).flatten(0, 1)
        return torch.cat(parts) if fusion == "gate_up" else parts[0]

    def _unfuse(self, fusion: Fusion, shard: Tensor) -> list[Tensor]:
        if fusion == "qkv":
            by_group = shard.unflatten(0, (self._groups, -1))
            head = by_group.shape[1] // (self._heads_per_group + 2)
            return [w.flatten(0, 1) for w in by_group.split([self._heads_per_group * head, head, head], 1)]
        return list(shard.chunk(2)) if fusion == "gate_up" else [shard]


def padded_vocab(vocab_size: int, tp_size: int) -> int:
    """The vocabulary, enlarged until it divides over the tensor-parallel ranks."""
    return -(-vocab_size // tp_size) * tp_size
