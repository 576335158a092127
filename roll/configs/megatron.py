"""`strategy_config` of megatron_train and megatron_infer: how the ranks divide the model, and what is recomputed.

Ranks are numbered in Megatron's order: those that share tensors first, then data-parallel ones, then pipeline stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from roll.configs.fields import Bounds, option
from roll.configs.problems import Problem

_SIZE = Bounds(ge=1)


@dataclass(frozen=True, kw_only=True)
class MegatronConfig:
    tensor_model_parallel_size: int = option(1, "Ranks that divide each layer's matrices.", bounds=_SIZE)
    pipeline_model_parallel_size: int = option(1, "Ranks that divide the layers, as stages of a 1F1B pipeline.", bounds=_SIZE)
    account_for_embedding_in_pipeline_split: bool = option(
        False, "The embedding counts as a layer of the first stage: it has one layer less than the others."
    )
    account_for_loss_in_pipeline_split: bool = option(
        False, "The output layer counts as a layer of the last stage: it has one layer less than the others."
    )
    context_parallel_size: int = option(
        1, "Ranks that divide each sequence among them; keys and values are gathered layer by layer.", bounds=_SIZE
    )
    expert_model_parallel_size: int = option(
        1, "Mixtures of experts: ranks that divide the experts of each layer; must divide their number.", bounds=_SIZE
    )
    expert_tensor_parallel_size: int | None = option(
        None, "Mixtures of experts: ranks that divide each expert's matrices; null: tensor_model_parallel_size.", bounds=_SIZE
    )
    sequence_parallel: bool = option(
        False, "The ranks of tensor parallelism divide the tokens between its matrices as well: less memory for activations."
    )
    use_distributed_optimizer: bool = option(
        True, "Data-parallel ranks divide masters and moments among them (ZeRO 1), instead of each keeping all."
    )
    overlap_grad_reduce: bool = option(False, "Reduce gradients over data-parallel ranks while the backward pass goes on.")
    recompute_granularity: Literal["full", "selective"] | None = option(
        None,
        "Recompute in the backward pass: full, whole layers; selective, attention; null: as disable_gradient_checkpointing says.",
    )
    recompute_method: Literal["uniform", "block"] | None = option(
        None, "full only. uniform (null): all layers, in chunks; block: the first layers of a stage."
    )
    recompute_num_layers: int | None = option(
        None, "full only: layers of a chunk (uniform), or how many of a stage (block); null: 1.", bounds=_SIZE
    )

    def data_parallel_rank(self, rank: int, world_size: int) -> int:
        """The share of the samples that a rank is given; ranks that divide a model among them have the same share."""
        return rank // (self.tensor_model_parallel_size * self.context_parallel_size) % self.data_parallel_size(world_size)

    def data_parallel_size(self, world_size: int) -> int:
        return world_size // self.ranks_per_model

    @property
    def ranks_per_model(self) -> int:
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def expert_tensor_parallel(self) -> int:
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size


def megatron_problems(key: str, config: MegatronConfig, devices: Sequence[int], attention: str) -> Iterator[Problem]:
    """`key`: dotted path of the role; `devices` and `attention`: its `device_mapping` and `attn_implementation`."""
    block = f"{key}.strategy_args.strategy_config"
    yield from _layout_problems(key, config, devices)
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        if getattr(config, name) and config.pipeline_model_parallel_size == 1:
            yield Problem(
                f"{block}.{name}", True, "has no effect: there is one stage", "false, or pipeline_model_parallel_size: 2"
            )
    for name in ("recompute_method", "recompute_num_layers"):
        value = getattr(config, name)
        if value is not None and config.recompute_granularity != "full":
            yield Problem(f"{block}.{name}", value, "belongs to whole layers", "recompute_granularity: full, or remove it")
    if attention != "sdpa":
        yield Problem(f"{key}.model_args.attn_implementation", attention, "Megatron's attention is torch's sdpa here", "sdpa")


def _layout_problems(key: str, config: MegatronConfig, devices: Sequence[int]) -> Iterator[Problem]:
    sizes = {
        name: getattr(config, f"{name}_size") for name in ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel")
    }
    experts = {
        "expert_model_parallel": config.expert_model_parallel_size,
        "expert_tensor_parallel": config.expert_tensor_parallel,
        "pipeline_model_parallel": config.pipeline_model_parallel_size,
    }
    for divided in (sizes, experts):
        group = math.prod(divided.values())
        if len(devices) % group:
            product = " x ".join(f"{name}_size {size}" for name, size in divided.items())
            message = f"{len(devices)} devices, not a multiple of {product} = {group}"
            enough = -(-len(devices) // group) * group
            yield Problem(f"{key}.device_mapping", list(devices), message, f"{enough} devices")
            return
