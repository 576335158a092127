"""The parameters of a divided model as whole Hugging Face tensors: gathered on rank 0 one at a time, or read from them."""

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
    """The parameters of this rank's stage. Only the first ranks of the stages know those of other stages."""

    def __init__(self, weights: WeightMap, model: nn.Module, parallel: ModelParallel) -> None:
        self._weights, self._parallel = weights, parallel
        self._pieces: list[tuple[Piece, nn.Parameter]] = list(weights.pieces(model))
        own = [(piece, parameter.shape) for piece, parameter in self._pieces]
        stages: list[list[tuple[Piece, torch.Size]] | None] = [None] * parallel.layout.pipeline
        dist.all_gather_object(stages, own, group=parallel.pipeline_group)
        self._stages = [stage or [] for stage in stages]

    def gather(self, value: Value, dtype: torch.dtype, by_stage: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors of `dtype`, tied ones once, each on its device until the next is asked for: all on rank 0, or `by_stage`
        on the first rank of the stage that has them; nothing on other ranks, which must exhaust the iterator all the same.
        `value` is asked on every rank, for it may be a collective."""
        for stage, pieces in enumerate(self._stages):
            for index, (piece, shape) in enumerate(pieces):
                local = None
                if stage == self._parallel.stage:
                    # `value` is also called for a copy: it may reduce over the data-parallel ranks.
                    local = value(self._pieces[index][1]).to(dtype)
                if not piece.copy:
                    yield from self._collect(stage, piece, shape, dtype, local, by_stage)

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

    def _collect(
        self, stage: int, piece: Piece, shape: torch.Size, dtype: torch.dtype, local: Tensor | None, by_stage: bool
    ) -> Iterator[tuple[str, Tensor]]:
        """Gathers a weight from the ranks of the stage that divide it, then (unless `by_stage`) sends it from the first of them
        to rank 0."""
        parallel = self._parallel
        group = parallel.divides(piece.of_expert)
        if parallel.replicas(piece.of_expert).rank() != 0:
            return
        divided = group.size() if piece.dim is not None or piece.of_expert else 1
        shards = [local] if local is not None else []
        if local is not None and divided > 1:
            shards = [torch.empty_like(local) for _ in range(divided)] if group.rank() == 0 else []
            dist.gather(local.contiguous(), shards or None, group=group, group_dst=0)
        if group.rank() != 0:
            return
        if stage != 0 and not by_stage:
            if parallel.stage == stage:
                for shard in shards:
                    dist.send(shard.contiguous(), group=parallel.pipeline_group, group_dst=0)
            elif parallel.stage == 0:
                shards = [torch.empty(shape, dtype=dtype, device=parallel.device) for _ in range(divided)]
                for shard in shards:
                    dist.recv(shard, group=parallel.pipeline_group, group_src=stage)
        if shards if by_stage else parallel.rank == 0:
            of_ranks = piece.by_expert_rank or (piece.names,)
            count = len(shards) // len(of_ranks)
            for index, names in enumerate(of_ranks):
                yield from zip(names, self._weights.unshard(piece, shards[index * count : (index + 1) * count]), strict=True)
