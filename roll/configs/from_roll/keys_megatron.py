"""ROLL's options of Megatron that MegatronConfig does not have: fields of Megatron's own configurations."""

from __future__ import annotations

from roll.configs.from_roll.rule import Rule, ignored, off_or_lacking

_BLOCK = "<role>.strategy_args.strategy_config"
_TE = "needs Transformer Engine, which the Megatron back end does not use; remove it"
_EXPERTS = "mixtures of experts are not there; remove it"
_EQUAL = "stages have equally many layers; remove it"
_OFF = (False, None)

_SWITCHES: dict[str, tuple[tuple[object, ...], str]] = {
    "context_parallel_size": ((1, None), f"dividing a sequence's attention {_TE}"),
    "context_model_parallel_size": ((1, None), f"dividing a sequence's attention {_TE}"),
    "expert_model_parallel_size": ((1, None), _EXPERTS),
    "expert_tensor_parallel_size": ((1, None), _EXPERTS),
    "virtual_pipeline_model_parallel_size": ((1, None), "interleaved stages are not there; remove it"),
    "transformer_impl": (("local", None), "layers are Megatron-core's own (local), on every machine; remove it"),
    "fp8": (_OFF, f"8-bit training {_TE}"),
    "tp_comm_overlap": (_OFF, f"hiding tensor-parallel communication {_TE}"),
    "gradient_accumulation_fusion": (_OFF, "this fusion needs Apex; remove it"),
    "overlap_param_gather": (_OFF, "weights are exported after every step, so there is nothing to hide them behind; remove it"),
    "account_for_embedding_in_pipeline_split": (_OFF, _EQUAL),
    "account_for_loss_in_pipeline_split": (_OFF, _EQUAL),
    "num_layers_in_first_pipeline_stage": ((None,), _EQUAL),
    "num_layers_in_last_pipeline_stage": ((None,), _EQUAL),
    "moe_grouped_gemm": (_OFF, _EXPERTS),
    "moe_shared_expert_overlap": (_OFF, _EXPERTS),
    "moe_layer_recompute": (_OFF, _EXPERTS),
}
_SPEED = "it changes the speed only, and is not used"
_WITHOUT_EFFECT = {
    "bias_activation_fusion": _SPEED,
    "apply_rope_fusion": _SPEED,
    "masked_softmax_fusion": _SPEED,
    "bias_dropout_fusion": _SPEED,
    "cross_entropy_loss_fusion": _SPEED,
    "overlap_p2p_comm": "it belongs to interleaved stages, which are not there",
    "variable_seq_lengths": "a micro-batch is always padded to its own longest sample only",
    "moe_token_dispatcher_type": "there are no experts",
}

MEGATRON: tuple[Rule, ...] = (
    *(rule for name, (off, note) in _SWITCHES.items() for rule in off_or_lacking(f"{_BLOCK}.{name}", off, note)),
    *(ignored(f"{_BLOCK}.{name}", why) for name, why in _WITHOUT_EFFECT.items()),
)
