"""One rank or several behind the same calls: process group, FSDP2 sharding, and full tensors out of and into shards.

A single rank has no process group and a plain module. Every method of a single rank is a local operation.
"""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from roll.core.configs.arguments import FSDP2Config
from roll.core.workers.train_interface import RankContext
from roll.strategies.train.process import init_process_group
from roll.strategies.train.value_head import ValueHead
from roll.transports.experts import Fused


class Ranks:
    """The ranks of one role, data-parallel but for those that divide the tokens of a batch. Methods named `all_...` and `full`
    are collectives: every rank must call them.

    A process group that stands already is used, and left standing."""

    def __init__(self, context: RankContext, device: torch.device, timeout_s: float, ulysses_size: int = 1) -> None:
        self.rank, self.size, self.device = context.rank, context.world_size, device
        self._shards = self.size
        self._made_group = self.size > 1 and not dist.is_initialized()
        if self._made_group:
            init_process_group(context, device, timedelta(seconds=timeout_s))
        self.of_batch: dist.ProcessGroup | None = None
        """The ranks that divide the tokens of this one's batch; None: it has all of them."""
        if ulysses_size > 1:
            self.of_batch, _ = dist.new_subgroups(ulysses_size, timeout=timedelta(seconds=timeout_s))

    def shard(self, model: nn.Module, layer_names: set[str], param_dtype: torch.dtype | None, options: FSDP2Config) -> None:
        """Moves the model to the device; the ranks divide each layer of a class in `layer_names`, and the rest, among them, or
        each group of `fsdp_size` ranks does.

        Layers of several ranks compute in `param_dtype`, from copies that FSDP2 makes as it gathers them. Gradients are summed
        over ranks, not averaged: the loss is already normalised by the whole batch."""
        if self.size == 1:
            model.to(self.device)
            for tensor in (*model.parameters(), *model.buffers()):
                if not tensor.untyped_storage().resizable():  # it is mapped from the model's file, which others may write
                    tensor.data = tensor.data.clone()
            return
        self._shards, reshard = options.shards(self.size), options.reshard_after_forward
        sizes = {"replicate": self.size // self._shards, "shard": self._shards}
        if sizes["replicate"] == 1:
            del sizes["replicate"]
        mesh = init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
        for module in list(model.modules()):
            if isinstance(module, ValueHead):
                fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.float32, torch.float32))
            elif type(module).__name__ in layer_names:
                fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        for sharded in _sharded_modules(model):
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)

    def all_reduce(self, values: Tensor, operation: str) -> None:
        """Reduces the tensor over the ranks in place, by `sum` or `max`."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX if operation == "max" else dist.ReduceOp.SUM)

    def reduce_over_data(self, values: Tensor, operation: str) -> None:
        """As `all_reduce`, of sums that the ranks of a batch all have, or divide: each counts once, or its mean does."""
        self.all_reduce(values, operation)
        if operation == "sum" and self.of_batch is not None:
            values /= self.of_batch.size()

    def sum_of_parts(self, own: Tensor) -> Tensor:
        """Returns the sum over all parts of the weights; each part counts once, however many ranks have it."""
        self.all_reduce(own, "sum")
        return own / (self.size // self._shards)

    def all_max(self, value: int) -> int:
        if self.size == 1:
            return value
        box = torch.tensor(value, device=self.device)
        self.all_reduce(box, "max")
        return int(box)

    def full(self, tensor: Tensor) -> Tensor:
        """The whole tensor that this rank holds a shard of."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def part(self, full: Fused, name: str, pattern: Tensor) -> Tensor:
        """Returns this rank's part of one of these full tensors, divided as `pattern` is; no more of it is read."""
        if not isinstance(pattern, DTensor):
            return full[name]
        length = pattern.shape[0]  # FSDP2 divides the first dimension, as `chunk` does
        each, own = -(-length // self._shards), self.rank % self._shards
        return full.rows(name, min(own * each, length), min((own + 1) * each, length))

    def like(self, full: Fused, name: str, pattern: Tensor) -> Tensor:
        """A copy of one of these full tensors, with the sharding, device and type of `pattern`. No communication."""
        own = self.part(full, name, pattern).to(pattern.device, pattern.dtype, copy=True)
        if not isinstance(pattern, DTensor):
            return own
        return DTensor.from_local(
            own, pattern.device_mesh, pattern.placements, run_check=False, shape=pattern.shape, stride=pattern.stride()
        )

    def close(self) -> None:
        if self._made_group:
            dist.destroy_process_group()
        self._made_group = False


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def reshard(model: nn.Module) -> None:
    """Frees gathered weights: after a forward pass without a backward pass the root's would stay."""
    for module in _sharded_modules(model):
        module.reshard()


def reduce_gradients(model: nn.Module, now: bool) -> None:
    """Chooses whether the next backward pass ends with the sum of all ranks' gradients, or adds to each rank's of all weights."""
    for module in _sharded_modules(model):
        module.set_requires_gradient_sync(now, recurse=False)


def reshard_after_backward(model: nn.Module, now: bool) -> None:
    """Chooses whether the next backward pass frees gathered weights, or leaves them to the next forward pass."""
    for module in _sharded_modules(model):
        module.set_reshard_after_backward(now, recurse=False)


def _sharded_modules(model: nn.Module) -> list[FSDPModule]:
    return [cast(FSDPModule, module) for module in model.modules() if isinstance(module, FSDPModule)]
