"""ROLL's options of Megatron that MegatronConfig does not have: fields of Megatron's own configurations."""

from __future__ import annotations

from roll.compat.roll.rule import (
    MEMORY,
    SPEED,
    WHOLE_CHECKPOINTS,
    KeyRule,
    ignored,
    off_or_lacking,
    renamed,
    value_read_as,
)

_BLOCK = "<role>.strategy_args.strategy_config"
_TE = "needs Transformer Engine, which the Megatron back end does not use; remove it"
_EQUAL = "stages have equally many layers; account_for_embedding_in_pipeline_split makes the first smaller"
_OFF = (False, None)

_SWITCHES: dict[str, tuple[tuple[object, ...], str]] = {
    "fp8": (_OFF, f"8-bit training {_TE}"),
    "num_layers_in_first_pipeline_stage": ((None,), _EQUAL),
    "num_layers_in_last_pipeline_stage": ((None,), _EQUAL),
    "moe_aux_loss_coeff": ((None, 0), "a loss that balances experts is not there"),
    "moe_expert_capacity_factor": ((None,), "experts take every token: none is dropped"),
    "moe_enable_routing_replay": (_OFF, "replaying a mixture's routing is not there"),
    "mtp_num_layers": ((None, 0), "training multi-token prediction is not there"),
    "optimizer": ((None, "adam"), "the optimiser is AdamW"),
}
_PADDED = "a micro-batch is always padded to its own longest sample only"
_WITHOUT_EFFECT = {
    "moe_layer_recompute": f"{MEMORY}; recompute_granularity: full recomputes whole layers",
    "bias_activation_fusion": SPEED,
    "apply_rope_fusion": SPEED,
    "masked_softmax_fusion": SPEED,
    "bias_dropout_fusion": SPEED,
    "cross_entropy_loss_fusion": SPEED,
    "gradient_accumulation_fusion": SPEED,
    "tp_comm_overlap": SPEED,
    "overlap_param_gather": SPEED,
    "moe_grouped_gemm": SPEED,
    "moe_shared_expert_overlap": SPEED,
    "cuda_graph_impl": SPEED,
    "cuda_graph_scope": SPEED,
    "compile_warmup": SPEED,
    "delay_grad_reduce": SPEED,
    "ddp_bucket_size": SPEED,
    "ddp_average_in_collective": SPEED,
    "fp8_param": "it belongs to fp8",
    "moe_pad_expert_input_to_capacity": "it belongs to moe_expert_capacity_factor",
    "moe_token_drop_policy": "it belongs to moe_expert_capacity_factor",
    "pipeline_model_parallel_layout": "stages have equally many layers; the result is the same",
    "calculate_per_token_loss": "loss_agg_mode decides",
    "check_for_nan_in_loss_and_grad": "a step whose gradient is not finite is skipped and counted",
    "sequence_packing": _PADDED,
    "distrib_optim_fully_reshardable": WHOLE_CHECKPOINTS,
    "distrib_optim_fully_reshardable_mem_efficient": WHOLE_CHECKPOINTS,
    "ckpt_d2h_non_blocking": WHOLE_CHECKPOINTS,
    "save_merged_model": WHOLE_CHECKPOINTS,
    "transformer_impl": "layers are Megatron-core's own (local), on every machine",
    "virtual_pipeline_model_parallel_size": "stages are not interleaved; the result is the same, the bubble larger",
    "overlap_p2p_comm": "it belongs to interleaved stages, which are not there",
    "variable_seq_lengths": _PADDED,
    "moe_token_dispatcher_type": "tokens are always exchanged all to all, in unequal numbers",
}
_SIZES = ("context_parallel_size", "expert_model_parallel_size")

MEGATRON: tuple[KeyRule, ...] = (
    *(rule for name, (off, note) in _SWITCHES.items() for rule in off_or_lacking(f"{_BLOCK}.{name}", off, note)),
    *(ignored(f"{_BLOCK}.{name}", why) for name, why in _WITHOUT_EFFECT.items()),
    KeyRule(
        f"{_BLOCK}.sequence_parallel",
        "without effect",
        "it divides tokens among the ranks of tensor parallelism, of which there is one",
        when=lambda v, b: v is True and b.get("tensor_model_parallel_size", 1) == 1,
        values="true with tensor_model_parallel_size 1",
    ),
    renamed(f"{_BLOCK}.context_model_parallel_size", ".context_parallel_size"),
    *(value_read_as(f"{_BLOCK}.{name}", (None,), 1, "read as 1") for name in _SIZES),
)
