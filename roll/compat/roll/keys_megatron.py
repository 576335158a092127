"""ROLL's options of Megatron that MegatronConfig does not have: fields of Megatron's own configurations."""

from __future__ import annotations

from roll.compat.roll.rule import KeyRule, ignored, off_or_lacking, renamed, value_read_as

_BLOCK = "<role>.strategy_args.strategy_config"
_TE = "needs Transformer Engine, which the Megatron back end does not use; remove it"
_EQUAL = "stages have equally many layers; account_for_embedding_in_pipeline_split makes the first smaller"
_OFF = (False, None)

_SWITCHES: dict[str, tuple[tuple[object, ...], str]] = {
    "fp8": (_OFF, f"8-bit training {_TE}"),
    "num_layers_in_first_pipeline_stage": ((None,), _EQUAL),
    "num_layers_in_last_pipeline_stage": ((None,), _EQUAL),
}
_SPEED = "it changes the speed only, and is not used"
_MEMORY = "it saves memory only, and is not used"
_WITHOUT_EFFECT = {
    "moe_layer_recompute": f"{_MEMORY}; recompute_granularity: full recomputes whole layers",
    "bias_activation_fusion": _SPEED,
    "apply_rope_fusion": _SPEED,
    "masked_softmax_fusion": _SPEED,
    "bias_dropout_fusion": _SPEED,
    "cross_entropy_loss_fusion": _SPEED,
    "gradient_accumulation_fusion": _SPEED,
    "tp_comm_overlap": _SPEED,
    "overlap_param_gather": _SPEED,
    "moe_grouped_gemm": _SPEED,
    "moe_shared_expert_overlap": _SPEED,
    "transformer_impl": "layers are Megatron-core's own (local), on every machine",
    "virtual_pipeline_model_parallel_size": "stages are not interleaved; the result is the same, the bubble larger",
    "overlap_p2p_comm": "it belongs to interleaved stages, which are not there",
    "variable_seq_lengths": "a micro-batch is always padded to its own longest sample only",
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
