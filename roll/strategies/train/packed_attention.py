"""Attention over a row of samples, of which those that begin alike share their prefix, as one call of a kernel for sequences of
any lengths: no padding, no masks, and no copies of keys and values where nothing is shared. On accelerators alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from roll.core.data.transfer import Move

WIDEST_HEAD, HEAD_STEP = 256, 8
"""Limit of the kernel, whose heads are multiples of the second."""
LEAST_CAPABILITY = (8, 0)
ARGUMENTS = {"scale", "window_size", "enable_gqa"}
"""Arguments of the kernel; torch 2.11 lacks some."""


def packs(device: torch.device, dtype: torch.dtype, config: Any) -> bool:
    """True if torch has such a kernel (FlashAttention) for layers that compute in `dtype` there."""
    if device.type != "cuda" or torch.version.hip is not None or dtype not in (torch.bfloat16, torch.float16):
        return False
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    fits = head <= WIDEST_HEAD and head % HEAD_STEP == 0 and signature(varlen_attn).parameters.keys() >= ARGUMENTS
    return fits and torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Ends of sequences in the rows that hold them one after the other."""

    ends: Tensor
    """[S + 1] int32, from 0 on."""
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> _Sequences:
        return cls(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), max(lengths))

    def each(self, move: Move) -> _Sequences:
        return _Sequences(move(self.ends), self.longest)


class PackedAttention:
    """The call for a row, the same in every layer: each sample's own tokens attend to the path that ends with them."""

    def __init__(self, index: Tensor, lengths: Sequence[int], shared: Sequence[int]) -> None:
        """As `ForestAttention`."""
        own = [length - first for length, first in zip(lengths, shared, strict=True)]
        asking = [i for i, tokens in enumerate(own) if tokens]
        self._queries = _Sequences.of([own[i] for i in asking])
        self._keys = _Sequences.of([lengths[i] for i in asking])
        paths = torch.cat([index[i, : lengths[i]] for i in asking])
        self._paths = paths if any(shared) else None
        """[K] the place in the row of each key; None: the row itself is the keys."""
        self.layers = 0
        """Layers that have attended."""

    def each(self, move: Move) -> PackedAttention:
        self._queries, self._keys = self._queries.each(move), self._keys.each(move)
        self._paths = None if self._paths is None else move(self._paths)
        return self

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
        self.layers += 1
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        if self._paths is not None:
            k, v = k.index_select(0, self._paths), v.index_select(0, self._paths)
        out: Any = varlen_attn(
            q,
            k,
            v,
            self._queries.ends,
            self._keys.ends,
            self._queries.longest,
            self._keys.longest,
            scale=scaling,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        row: Tensor = out[None]
        return row
