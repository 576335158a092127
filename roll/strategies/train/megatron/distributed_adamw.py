"""Megatron's data parallelism and its AdamW, set to do what every back end does."""

from __future__ import annotations

import megatron.core.optimizer
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

from roll.configs.arguments import TrainingArguments
from roll.strategies.train.megatron.model import ModelStage

# Transformer Engine's AdamW, where it is installed, keeps other state than torch's; one kind of checkpoint is enough.
megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = True


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
    return optimizer
