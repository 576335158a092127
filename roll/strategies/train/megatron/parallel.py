"""The process groups of one role: which ranks share a tensor, follow each other in the pipeline, or hold different samples.

Ranks are numbered in Megatron's default order: tensor-parallel neighbours first, then data-parallel ones, pipeline stages last.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch import Tensor

from roll.strategies.train.interface import RankContext


class ModelParallel:
    """Where this rank stands, and what it tells the others. Strategies of one process share the groups; the last one that is
    closed leaves them."""

    _users = 0

    def __init__(self, context: RankContext, device: torch.device, tensor: int, pipeline: int, timeout_s: float) -> None:
        """Raises `ValueError` if the sizes do not divide the ranks, or if this process is already part of another layout."""
        if context.world_size % (tensor * pipeline):
            raise ValueError(
                f"{context.world_size} ranks are not a multiple of tensor_model_parallel_size {tensor} x "
                f"pipeline_model_parallel_size {pipeline}"
            )
        self.device = device
        if not parallel_state.model_parallel_is_initialized():
            _init_process_group(context, device, timedelta(seconds=timeout_s))
            parallel_state.initialize_model_parallel(
                tensor, pipeline, distributed_timeout_minutes=max(1, int(timeout_s / 60)), create_gloo_process_groups=False
            )
            if device.type == "cuda":
                tensor_parallel.model_parallel_cuda_manual_seed(context.seed)
        self.rank, self.tensor, self.pipeline = context.rank, tensor, pipeline
        self.tensor_group = parallel_state.get_tensor_model_parallel_group()
        self.pipeline_group = parallel_state.get_pipeline_model_parallel_group()
        self.data_group = parallel_state.get_data_parallel_group()
        sizes = (self.tensor_group.size(), self.pipeline_group.size(), dist.get_world_size())
        if sizes != (tensor, pipeline, context.world_size):
            raise ValueError(f"this process is already part of a layout of {sizes} (tensor, pipeline and all ranks)")
        ModelParallel._users += 1
        self.tensor_rank, self.data_rank = self.tensor_group.rank(), self.data_group.rank()
        self.stage = self.pipeline_group.rank()

    @property
    def last_stage(self) -> bool:
        return bool(self.stage == self.pipeline - 1)

    def reduce_over_data(self, values: Tensor, operation: str) -> None:
        """In place, `sum` or `max`, over the data-parallel ranks."""
        dist.all_reduce(values, dist.ReduceOp.MAX if operation == "max" else dist.ReduceOp.SUM, group=self.data_group)

    def from_last_stage(self, values: Tensor) -> Tensor:
        """In place, on every stage, what the last one holds."""
        dist.broadcast(values, group=self.pipeline_group, group_src=self.pipeline - 1)
        return values

    def object_from_last_stage(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, group=self.pipeline_group, group_src=self.pipeline - 1, device=self.device)
        return box[0]

    def close(self) -> None:
        ModelParallel._users -= 1
        if ModelParallel._users == 0:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()


def _init_process_group(context: RankContext, device: torch.device, timeout: timedelta) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    if context.world_size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)  # type: ignore[attr-defined]
    else:
        address = f"tcp://{context.master_addr}:{context.master_port}"
        dist.init_process_group(backend, init_method=address, rank=context.rank, world_size=context.world_size, timeout=timeout)
