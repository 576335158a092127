"""Ulysses: the ranks of a group divide the tokens of a micro-batch, and around attention tokens are exchanged for heads.

A rank computes its stretch of the row in everything but attention. There it gets all tokens of its share of the heads, so any
`Attention` of the whole row is right as it is, and the result goes back. Where keys have fewer heads than there are ranks, or a
number that they do not divide, each is repeated as often as needed: a rank's queries then find their keys beside them.

Each rank takes the gradient of what it computed. The sum over all ranks is that of the batch, as with data-parallel ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, PreTrainedModel

from roll.core.data.kept_tokens import KeptSets
from roll.core.data.transfer import Move
from roll.strategies.model_folder import load_config
from roll.strategies.train.forest_attention import Attention, attends_by_forest
from roll.strategies.vision.families import sees

V = TypeVar("V", Tensor, KeptSets)


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The trained tokens of a micro-batch that this rank of the group scores."""

    group: dist.ProcessGroup
    own: Tensor
    """[K_rank] int64, ascending, among the K trained tokens."""
    count: int
    """K"""

    def each(self, move: Move) -> ScoredTokens:
        return ScoredTokens(self.group, move(self.own), self.count)

    def of(self, values: V) -> V:
        """Returns this rank's among K tokens."""
        return values[self.own]

    def whole(self, values: Tensor) -> Tensor:
        """[K, ..] of [K_rank, ..] on every rank. All make the same loss of it, and each has the gradient of its part."""
        placed = values.new_zeros(self.count, *values.shape[1:]).index_copy(0, self.own, values)
        joined: Tensor = _Joined.apply(placed, self.group)
        return joined


def check_folder(folder: Path, ranks: int) -> None:
    """`check_model` of the model in a Hugging Face folder, of which no weight is read."""
    if sees(folder):
        raise ValueError("a model that sees computes images whole: nothing divides them among ranks")
    with torch.device("meta"):
        check_model(AutoModelForCausalLM.from_config(load_config(folder), attn_implementation="sdpa"), ranks)


def check_model(model: PreTrainedModel, ranks: int) -> None:
    """`ValueError` unless all that mixes a model's tokens is attention whose heads so many ranks can divide."""
    config: Any = model.config.get_text_config()
    if not attends_by_forest(model):
        raise ValueError(
            f"layers of a {config.model_type} mix tokens by more than attention of the interface, or not as sdpa does"
        )
    if config.num_attention_heads % ranks:
        raise ValueError(f"{ranks} ranks do not divide the model's num_attention_heads {config.num_attention_heads}")


class DividedAttention:
    """The `whole` row's attention, of this rank's tokens: its stretch of a row that is padded until all are equally long."""

    def __init__(self, whole: Any, tokens: int, group: dist.ProcessGroup) -> None:
        """`whole`: also has `each`. `tokens`: of the row before it is padded."""
        self._whole, self._tokens, self._group = whole, tokens, group

    @property
    def layers(self) -> int:
        attention: Attention = self._whole
        return attention.layers

    def each(self, move: Move) -> DividedAttention:
        return DividedAttention(self._whole.each(move), self._tokens, self._group)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
        ranks = self._group.size()
        repeats = ranks // math.gcd(key.shape[1], ranks)
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        q, k, v = (_by_heads(each[0], self._group)[None, :, : self._tokens] for each in (query, key, value))
        out = self._whole(q, k, v, scaling, window)[0]
        out = pad(out, (0, 0, 0, 0, 0, query.shape[2] * ranks - self._tokens))
        return _by_tokens(out, self._group)[None]


def _by_heads(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[heads / n, tokens, d] of this rank's [heads, tokens / n, d]."""
    _, tokens, width = own.shape
    received: Tensor = _Exchange.apply(own.view(group.size(), -1, tokens, width), group)
    return received.transpose(0, 1).reshape(-1, group.size() * tokens, width)


def _by_tokens(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[tokens / n, heads, d] of this rank's [tokens, heads / n, d]."""
    tokens, heads, width = own.shape
    received: Tensor = _Exchange.apply(own.view(group.size(), -1, heads, width), group)
    return received.transpose(0, 1).reshape(tokens // group.size(), -1, width)


class _Exchange(torch.autograd.Function):
    """[n, ..]: part i goes to rank i, and what rank i sends here becomes part i; so do the gradients, back."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(gradients[0], ctx.group), None


class _Joined(torch.autograd.Function):
    """The sum over the ranks, of which all make the same. Each has the whole gradient then, for what it added."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        joined = values.clone()
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
