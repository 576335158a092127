"""Megatron's data parallelism and its AdamW, set to do what every back end does, and the float32 master weights and moments of
this rank's parameters, whichever of Megatron's optimisers holds them.

fp32 without the distributed optimiser: the parameter is its own master. bf16: `parameter.main_param` is. Distributed optimiser:
each of the ranks that hold the same parameter owns a range of it (flattened), which may be empty. Experts have an optimiser of
their own, for other ranks hold the same ones.
"""

from __future__ import annotations

from itertools import chain

import megatron.core.optimizer
import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer, OptimizerConfig, clip_grads, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from roll.core.configs.arguments import TrainingArguments
from roll.strategies.train.megatron.model import ModelStage
from roll.strategies.train.megatron.parallel import ModelParallel
from roll.strategies.train.optimizer import MOMENTS, Moment

# Transformer Engine's AdamW, where it is installed, keeps other state than torch's; one kind of checkpoint is enough.
megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = True


def _norm_of_all(chunk: int, overflow: Tensor, gradients: list[list[Tensor]], per_parameter: bool) -> tuple[Tensor, None]:
    return nn.utils.get_total_norm(gradients[0]), None


# Without Transformer Engine and Apex Megatron's own reads the norm of each parameter to the host.
clip_grads.l2_norm_impl = _norm_of_all


def data_parallel(stage: ModelStage, config: TransformerConfig, divide: bool, overlap: bool) -> DistributedDataParallel:
    """The stage with gradients that are summed over the data-parallel ranks in float32.

    Args:
        config: configuration of the stage; it is set so that nothing is reduced before the last micro-batch.
        divide: whether each rank gets the sums of its part only, for an optimiser that is divided likewise.
        overlap: whether they are reduced while the backward pass of the last micro-batch goes on.
    """
    how = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=overlap, use_distributed_optimizer=divide)
    wrapped = DistributedDataParallel(config, how, stage)
    if overlap:
        config.no_sync_func = wrapped.no_sync
    return wrapped


def distributed_adamw(wrapped: DistributedDataParallel, training: TrainingArguments) -> MegatronOptimizer:
    """AdamW with float32 masters and moments, which are divided if the gradients are. Weight decay acts on matrices only."""
    config: TransformerConfig = wrapped.config
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
            adam_beta1=training.adam_beta1,
            adam_beta2=training.adam_beta2,
            clip_grad=0.0,  # the strategy clips, where a norm that is not finite skips the step
            bf16=config.bf16,
            params_dtype=config.params_dtype,
            use_distributed_optimizer=wrapped.ddp_config.use_distributed_optimizer,
        ),
        [wrapped],
        use_gloo_process_groups=False,
    )
    for group in optimizer.param_groups:
        # 0 for vectors. Megatron leaves this to its own learning-rate scheduler, which is not used.
        group["weight_decay"] *= group["wd_mult"]
        group["fused"] = True  # one pass over memory, as in every back end; Megatron has no word for torch's
    return optimizer


class MasterState:
    def __init__(self, optimizer: MegatronOptimizer, parallel: ModelParallel) -> None:
        parts = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
        self._optimizers: dict[bool, MegatronOptimizer] = {
            part.param_groups[0]["is_expert_parallel"]: part for part in parts if part.param_groups
        }
        self._parallel = parallel
        self._owned: dict[nn.Parameter, Tensor] = {}
        """Masters of the parameters of which this rank owns a range, in distributed optimisers. Their own index is not used: it
        numbers a group's parameters in another order than AdamW if some are float32 (a value head) and some are not."""
        for part in self._optimizers.values():
            if isinstance(part, DistributedOptimizer):
                for models, masters in (
                    (part.model_float16_groups, part.shard_fp32_from_float16_groups),
                    (part.model_fp32_groups, part.shard_fp32_groups),
                ):
                    self._owned |= dict(zip(chain(*models), chain(*masters), strict=True))

    def tensors(self) -> list[Tensor]:
        """All tensors that the optimisers own, which move off the accelerator with the model."""
        held = []
        for part in self._optimizers.values():
            masters = [p for group in part.param_groups for p in group["params"]]
            state = part.optimizer.state
            held += masters + [state[p][moment] for p in masters if p in state for moment in MOMENTS]
        return held

    def weight(self, parameter: nn.Parameter) -> Tensor:
        """The master weight, float32, in the shape of this rank's parameter. A collective of the ranks that hold the same
        parameter."""
        return self._whole(parameter, self._master(parameter))

    def moment(self, moment: Moment, parameter: nn.Parameter) -> Tensor:
        """A moment of AdamW, float32, in the shape of this rank's parameter. A collective of the ranks that hold the same
        parameter."""
        master = self._master(parameter)
        return self._whole(parameter, None if master is None else self._adam(parameter).state[master][moment])

    @torch.no_grad()
    def set_weight(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Sets the master weight. `value`: float32, in the shape of this rank's parameter."""
        parameter.copy_(value)
        master = self._master(parameter)
        if master is not None:
            master.copy_(self._part(parameter, value))

    def clear_moments(self) -> None:
        for part in self._optimizers.values():
            part.optimizer.state.clear()

    def set_moment(self, moment: Moment, parameter: nn.Parameter, value: Tensor, step: int) -> None:
        """Sets a moment. `value`: float32, in the shape of this rank's parameter. `step`: the number of updates in the
        moments."""
        master = self._master(parameter)
        if master is not None:
            state = self._adam(parameter).state[master]
            state["step"] = torch.tensor(float(step), device=master.device)
            state[moment] = self._part(parameter, value).detach().clone(memory_format=torch.contiguous_format)

    @torch.no_grad()
    def _whole(self, parameter: nn.Parameter, owned: Tensor | None) -> Tensor:
        if not isinstance(self._optimizer(parameter), DistributedOptimizer):
            assert owned is not None
            return owned.detach()
        flat = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        if owned is not None:
            start, stop = self._range(parameter)
            flat[start:stop] = owned
        dist.all_reduce(flat, group=self._parallel.replicas(_of_expert(parameter)))
        return flat.view(parameter.shape)

    def _master(self, parameter: nn.Parameter) -> Tensor | None:
        """The tensor that AdamW updates; None if another rank updates the parameter."""
        if isinstance(self._optimizer(parameter), DistributedOptimizer):
            return self._owned.get(parameter)
        return getattr(parameter, "main_param", parameter)

    def _range(self, parameter: nn.Parameter) -> tuple[int, int]:
        owned = self._optimizer(parameter)._get_model_param_range_map(parameter)["param"]
        return owned.start, owned.end

    def _part(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """Returns this rank's range of a parameter's value."""
        if not isinstance(self._optimizer(parameter), DistributedOptimizer):
            return value
        start, stop = self._range(parameter)
        return value.reshape(-1)[start:stop]

    def _optimizer(self, parameter: nn.Parameter) -> MegatronOptimizer:
        return self._optimizers[_of_expert(parameter)]

    def _adam(self, parameter: nn.Parameter) -> torch.optim.AdamW:
        adam: torch.optim.AdamW = self._optimizer(parameter).optimizer
        return adam


def _of_expert(parameter: nn.Parameter) -> bool:
    return not getattr(parameter, "allreduce", True)
