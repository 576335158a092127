"""Rules of `strategy_config` of DeepSpeed and Megatron."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from roll.core.configs.backend_arguments import DeepSpeedConfig, MegatronConfig
from roll.core.configs.problems import Problem
from roll.core.configs.sizes import Dtype


def megatron_problems(key: str, config: MegatronConfig, devices: Sequence[int], attention: str) -> Iterator[Problem]:
    """Yields problems. `key`: dotted path of the role; `devices`, `attention`: its `device_mapping` and `attn_implementation`."""
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
            yield Problem(f"{key}.device_mapping", list(devices), message, f'"0-{enough - 1}": {enough} devices')
            return


_SET_ELSEWHERE = {
    "train_batch_size": "training_args.per_device_train_batch_size and gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu": "training_args.per_device_train_batch_size and max_tokens_per_microbatch_in_train",
    "gradient_accumulation_steps": "training_args.gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer": "training_args (learning_rate, weight_decay, adam_beta1, adam_beta2)",
    "scheduler": "training_args (lr_scheduler_type, warmup_steps, warmup_ratio)",
}


def deepspeed_problems(key: str, config: DeepSpeedConfig, dtype: Dtype, trained: bool) -> Iterator[Problem]:
    """Yields values that contradict the role's other keys, or each other. `key`: dotted path of the role."""
    block, zero = f"{key}.strategy_args.strategy_config", config.zero_optimization
    for name, owner in _SET_ELSEWHERE.items():
        value = getattr(config, name)
        if value not in ("auto", None):
            yield Problem(f"{block}.{name}", value, f"is set by {owner}", "auto, or remove it")
    if config.fp16.get("enabled", False) not in (False, "auto"):
        yield Problem(
            f"{block}.fp16.enabled", config.fp16["enabled"], "fp16 gradients underflow", "false, and bf16: {enabled: true}"
        )
    for name, wanted in (("zero_allow_untested_optimizer", True), ("zero_force_ds_cpu_optimizer", False)):
        if getattr(config, name) is not wanted:
            message = "the optimiser is torch's AdamW, for every ZeRO stage"
            yield Problem(f"{block}.{name}", not wanted, message, f"{str(wanted).lower()}, or remove it")
    enabled = config.bf16.enabled
    if (enabled is True and dtype not in ("auto", "bf16")) or (enabled is False and dtype == "bf16"):
        fix = f"auto, or {key}.model_args.dtype: {'bf16' if enabled else 'fp32'}"
        yield Problem(f"{block}.bf16.enabled", enabled, f"model_args.dtype is {dtype}", fix)
    if trained and zero.stage == 0 and (dtype == "bf16" or enabled is True):
        message = "stage 0 keeps no float32 masters and would train in pure bf16"
        yield Problem(f"{block}.zero_optimization.stage", 0, message, "stage: 1, which needs less memory as well")
    if zero.offload_optimizer.device == "cpu" and zero.stage == 0:
        message = "stage 0 does not offload"
        yield Problem(f"{block}.zero_optimization.offload_optimizer.device", "cpu", message, "stage: 1, 2 or 3")
    if zero.offload_param.device == "cpu" and zero.stage != 3:
        message = f"stage {zero.stage} does not divide the weights"
        yield Problem(f"{block}.zero_optimization.offload_param.device", "cpu", message, "stage: 3, or device: none")
