"""The process groups of one role: which ranks share a tensor, a sequence or a layer's experts, follow each other in the pipeline,
or hold different samples.

Ranks are numbered in Megatron's default order: tensor-parallel neighbours first, then context- and data-parallel ones, pipeline
stages last. The experts of a stage divide its ranks again: those that share an expert's matrices first, then those that hold
other experts, then those that hold the same ones.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch import Tensor

from roll.core.workers.train_interface import RankContext
from roll.strategies.train.megatron.convert import ShardPosition
from roll.strategies.train.megatron.supported import ParallelLayout
from roll.strategies.train.process import init_process_group

T = TypeVar("T")


class ModelParallel:
    """The position of this rank among the others, and its collectives with them. Strategies of one process share the groups; the
    last one that is closed leaves them."""

    _users = 0
    _made_group = False

    def __init__(self, context: RankContext, device: torch.device, layout: ParallelLayout, timeout_s: float) -> None:
        """Raises `ValueError` if the ranks cannot be divided in this way, or if this process is already part of another
        layout."""
        layout.check_ranks(context.world_size)
        layout.check_device(device.type)
        self.device, self.layout, self.rank = device, layout, context.rank
        if not parallel_state.model_parallel_is_initialized():
            self._make_groups(context, timeout_s)
        self.tensor_group: dist.ProcessGroup = parallel_state.get_tensor_model_parallel_group()
        self.pipeline_group: dist.ProcessGroup = parallel_state.get_pipeline_model_parallel_group()
        self.context_group: dist.ProcessGroup = parallel_state.get_context_parallel_group()
        self.data_group: dist.ProcessGroup = parallel_state.get_data_parallel_group()
        self.replica_group: dist.ProcessGroup = parallel_state.get_data_parallel_group(with_context_parallel=True)
        self.expert_group: dist.ProcessGroup = parallel_state.get_expert_tensor_and_model_parallel_group()
        self.expert_replica_group: dist.ProcessGroup = parallel_state.get_expert_data_parallel_group()
        stands = ParallelLayout(
            tensor=self.tensor_group.size(),
            pipeline=self.pipeline_group.size(),
            context=self.context_group.size(),
            expert=parallel_state.get_expert_model_parallel_world_size(),
            expert_tensor=parallel_state.get_expert_tensor_parallel_world_size(),
        )
        if (stands, dist.get_world_size()) != (layout, context.world_size):
            raise ValueError(f"this process is already part of {stands} over {dist.get_world_size()} ranks")
        ModelParallel._users += 1
        self.stage = self.pipeline_group.rank()
        self.stage_ranks = context.world_size // layout.pipeline
        """Ranks that have a part of this rank's stage, or all of it."""
        self.rank_in_stage = context.rank % self.stage_ranks
        self.place = ShardPosition(
            layout.tensor,
            self.tensor_group.rank(),
            layout.expert,
            parallel_state.get_expert_model_parallel_rank(),
            layout.expert_tensor,
            parallel_state.get_expert_tensor_parallel_rank(),
        )

    def _make_groups(self, context: RankContext, timeout_s: float) -> None:
        ModelParallel._made_group = not dist.is_initialized()
        if ModelParallel._made_group:
            init_process_group(context, self.device, timedelta(seconds=timeout_s))
        parallel_state.initialize_model_parallel(
            self.layout.tensor,
            self.layout.pipeline,
            context_parallel_size=self.layout.context,
            expert_model_parallel_size=self.layout.expert,
            expert_tensor_parallel_size=self.layout.expert_tensor,
            distributed_timeout_minutes=max(1, int(timeout_s / 60)),
            create_gloo_process_groups=False,
        )
        if self.device.type == "cuda":
            tensor_parallel.model_parallel_cuda_manual_seed(context.seed)

    @property
    def last_stage(self) -> bool:
        return bool(self.stage == self.layout.pipeline - 1)

    def reduce_over_data(self, values: Tensor, operation: str) -> None:
        """Reduces the tensor over the data-parallel ranks in place, by `sum` or `max`."""
        dist.all_reduce(values, dist.ReduceOp.MAX if operation == "max" else dist.ReduceOp.SUM, group=self.data_group)

    def replicas(self, of_expert: bool) -> dist.ProcessGroup:
        """The ranks that hold the same part of a weight, and sum its gradients."""
        return self.expert_replica_group if of_expert else self.replica_group

    def divides(self, of_expert: bool) -> dist.ProcessGroup:
        """The ranks that hold the parts of a weight; those of an expert: of all experts, expert by expert."""
        return self.expert_group if of_expert else self.tensor_group

    def max_over_experts(self, value: int) -> int:
        """The largest of the values of ranks that exchange tokens with each other's experts."""
        if not self.layout.experts_span_batches:
            return value
        box = torch.tensor(value, device=self.device)
        self.reduce_over_data(box, "max")
        return int(box)

    def from_last_stage(self, values: Tensor) -> Tensor:
        """Copies the last stage's tensor to every stage, in place."""
        dist.broadcast(values, group=self.pipeline_group, group_src=self.layout.pipeline - 1)
        return values

    def object_from_last_stage(self, value: T | None) -> T:
        """Returns the last stage's object on every stage; the other stages pass None."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, group=self.pipeline_group, group_src=self.layout.pipeline - 1, device=self.device)
        said: T = box[0]
        return said

    def close(self) -> None:
        ModelParallel._users -= 1
        if ModelParallel._users == 0:
            parallel_state.destroy_model_parallel()
            if ModelParallel._made_group:
                dist.destroy_process_group()
