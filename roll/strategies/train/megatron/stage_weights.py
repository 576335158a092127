"""The parameters of a divided model as whole Hugging Face tensors: gathered one at a time, or read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roll.strategies.train.megatron.convert import Piece, WeightMap
from roll.strategies.train.megatron.parallel import ModelParallel

Value = Callable[[nn.Parameter], Tensor]
"""Parameter -> a tensor of its shape: the weight, or a moment of it."""
Read = Callable[[str], Tensor]
"""Hugging Face name -> the whole tensor; `KeyError` if there is none."""


class StageWeights:
    """The parameters of this rank's stage."""

    def __init__(self, weights: WeightMap, model: nn.Module, parallel: ModelParallel) -> None:
        self._weights, self._parallel = weights, parallel
        self._pieces: list[tuple[Piece, nn.Parameter]] = list(weights.pieces(model))

    def gather(self, value: Value, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors of the stage, of `dtype`, tied ones once, one after another, on every rank of the stage. A collective of
        these ranks; `value` may be one, too."""
        for piece, parameter in self._pieces:
            local = value(parameter).to(dtype)  # also of a copy
            if not piece.copy:
                yield from self._whole(piece, local)

    def check(self, meta: Read) -> None:
        """Raises `ValueError` if a tensor is missing or of another shape; those of `meta` need no contents."""
        for piece, parameter in self._pieces:
            try:
                fits = self._weights.shard(piece, [meta(name) for name in piece.names]).shape == parameter.shape
            except (KeyError, RuntimeError):  # no such tensor, or one that cannot be cut or fused
                fits = False
            if not fits:
                raise ValueError(f"'{piece.names[0]}' is missing or of another shape")

    def scatter(self, read: Read) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter of this rank with its part of the whole tensors, float32."""
        for piece, parameter in self._pieces:
            shard = self._weights.shard(piece, [read(name) for name in piece.names])
            yield parameter, shard.to(parameter.device, torch.float32)

    def _whole(self, piece: Piece, local: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a parameter, from the ranks of the stage that divide it."""
        group, shards = self._parallel.divides(piece.of_expert), [local]
        if group.size() > 1 and (piece.dim is not None or piece.of_expert):
            shards = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(group.size())]
            dist.all_gather(shards, local.contiguous(), group=group)
        of_ranks = piece.by_expert_rank or (piece.names,)
        count = len(shards) // len(of_ranks)
        for index, names in enumerate(of_ranks):
            yield from zip(names, self._weights.unshard(piece, shards[index * count : (index + 1) * count]), strict=True)
