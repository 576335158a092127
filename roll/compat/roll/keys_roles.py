"""ROLL's keys of a role: worker, model, optimiser, sampling, back end, with the options of Megatron that MegatronConfig lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.rule import (
    DEAD_IN_ROLL,
    DROP,
    ENVIRONMENT,
    MEMORY,
    RUN_FOLDER,
    SPEED,
    WHOLE_CHECKPOINTS,
    KeyRule,
    Siblings,
    choices,
    ignored,
    off_or_lacking,
    renamed,
    value_read_as,
)
from roll.core.configs.arguments import ModelArguments, StrategyArguments, TrainingArguments

_BY_TOKENS = "micro-batches are always cut by tokens: max_tokens_per_microbatch_in_train, max_tokens_per_microbatch_in_infer"
_PACKED = "samples always stand in one row without padding, their common prefixes once (Megatron: padded to the longest)"
_ONE_TEMPLATE = "prompts are rendered once, with the template of actor_train.data_args (validation.data_args for validation)"
_MOE_MTP = "is not there; remove it"
# Parts of models that see, hear or speak, as Megatron's and transformers' models name them.
_TOWERS = ("vision", "visual", "model.vision", "model.visual", "audio", "model.audio", "talker", "code2wav")
_STRATEGIES = (
    "deepspeed_train", "deepspeed_infer", "megatron_train", "megatron_infer", "vllm", "sglang", "fsdp2_train", "fsdp2_infer",
    "hf_infer", "diffusion_deepspeed_train",
)  # fmt: skip
_VALUE_MODELS = ("trl", "auto_token_classification")
_NOT_YET = tuple(name for name in _STRATEGIES if name not in choices(StrategyArguments, "strategy_name"))


def _names_towers_only(value: object, block: Siblings) -> bool:
    prefixes = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return bool(prefixes) and all(isinstance(each, str) and each.strip().startswith(_TOWERS) for each in prefixes)


def _adapters_on_one_rank(value: Any, block: Siblings) -> bool:
    """Returns True if Megatron is asked for LoRA and does not divide the model, so that each device is a data-parallel rank."""
    model, options = block.get("model_args"), value.get("strategy_config") if isinstance(value, Mapping) else None
    if not isinstance(model, Mapping) or not model.get("lora_target") or value.get("strategy_name") != "megatron_train":
        return False
    sizes = (f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context_model", "context"))
    return not isinstance(options, Mapping) or all(options.get(size) in (1, None) for size in sizes)


ROLE = (
    KeyRule("actor_train.strategy_args", "alias", "read as fsdp2_train, which trains adapters; each device has the same samples",
         lambda v, b: {".strategy_args": {"strategy_name": "fsdp2_train"}}, _adapters_on_one_rank,
         "megatron_train with lora_target, model not divided"),
    KeyRule("<role>.worker_cls", "alias", "the built-in worker of the role", lambda v, b: {".worker_cls": None},
         lambda v, b: isinstance(v, str) and v.startswith((
             "roll.pipeline.base_worker.", "roll.pipeline.rlvr.actor_worker.", "roll.pipeline.agentic.agentic_actor",
         )), "ROLL's built-in classes"),
    *(ignored(f"<role>.{name}", _BY_TOKENS) for name in (
        "infer_batch_size", "use_dynamic_batching_in_train", "use_dynamic_batching_in_infer", "sequence_length_round_in_train",
        "sequence_length_round_in_infer",
    )),
    *(ignored(f"<role>.{name}", _PACKED) for name in ("use_sequence_packing", "sequence_packing_args", "use_remove_padding")),
    KeyRule("<role>.max_tokens_per_microbatch_in_train", "alias", "the default: ROLL means no dynamic batching",
         lambda v, b: {".max_tokens_per_microbatch_in_train": DROP}, lambda v, b: v in (0, None), "0 or null"),
    KeyRule("<role>.max_tokens_per_microbatch_in_infer", "alias", "the default: ROLL means no dynamic batching",
         lambda v, b: {".max_tokens_per_microbatch_in_infer": DROP}, lambda v, b: v in (0, None), "0 or null"),
    ignored("actor_infer.max_tokens_per_microbatch_in_infer", "an engine batches its requests itself"),
    ignored("actor_infer.max_tokens_per_microbatch_in_train", "only actor_train trains"),
    ignored("reference.max_tokens_per_microbatch_in_train", "only actor_train trains"),
    ignored("<role>.num_gpus_per_worker", "it follows from the back end's parallel sizes"),
    ignored("<role>.world_size", "it follows from device_mapping"),
    ignored("<role>.name", "roles are named by their key"),
    ignored("<role>.system_envs", ENVIRONMENT),
    ignored("<role>.max_concurrency", "workers are asynchronous: max_running_requests limits an engine"),
    ignored("<role>.backend_timeout", "rpc_timeout is the limit for every call"),
    ignored("<role>.offload_nccl", "ROLL forces it off"),
    ignored("<role>.logits_in_fp32", "log-probs are always computed in fp32"),
    ignored("<role>.apply_loss_scale", "the gradient always equals that of one big batch"),
    ignored("<role>.tag_included", "only a teacher has tags"),
    ignored("<role>.opd_kl_coef", "only a teacher has it"),
    renamed("actor_train.model_update_frequency", "weight_push_interval"),
    *(ignored(f"{role}.model_update_frequency", "weight_push_interval says it once, for actor_train")
      for role in ("actor_infer", "reference", "critic")),
    KeyRule("actor_train.router_replay", "without effect", "nothing is written in it",
         when=lambda v, b: v is None, values="null"),
    KeyRule("actor_train.router_replay", "lacking", "R2, the trainer's own routing of before, is not there; R3 is",
         when=lambda v, b: isinstance(v, Mapping) and v.get("mode") == "R2", values="mode: R2"),
    *(rule for role in ("actor_infer", "reference", "critic") for rule in off_or_lacking(
        f"{role}.router_replay", (None, {"mode": "disable"}), "the policy alone is replayed: actor_train.router_replay")),
    *off_or_lacking("<role>.mtp_training_mode", (None, "disabled"), "training multi-token prediction is not there"),
    *(ignored(f"{role}.training_args", "only actor_train trains") for role in ("actor_infer", "reference")),
    *(ignored(f"{role}.data_args", _ONE_TEMPLATE) for role in ("actor_infer", "reference", "critic")),
    *(ignored(f"{role}.generating_args", "actor_infer samples") for role in ("actor_train", "reference", "critic")),
    *(ignored(f"{role}.{name}", "the loss belongs to actor_train") for role in ("actor_infer", "reference", "critic")
      for name in ("pg_variant", "topr_positive_weight", "topr_negative_weight")),
    *(KeyRule(f"{role}.{block}", "without effect", "nothing is written in it", when=lambda v, b: v is None, values="null")
      for role, block in (("<role>", "strategy_args"), ("<role>", "training_args"), ("<role>", "data_args"),
                          ("<role>", "generating_args"), ("<role>", "model_args"))),
)  # fmt: skip

MODEL = (
    renamed("<role>.model_args.flash_attn", ".attn_implementation"),
    value_read_as("<role>.model_args.attn_implementation", ("fa2", "flash_attention_2", "auto", False, None), "sdpa",
                  "read as sdpa: PyTorch's attention picks its own flash kernel", unless=(ModelArguments, "attn_implementation")),
    value_read_as("<role>.model_args.dtype", (None,), "auto", "read as auto"),
    value_read_as("<role>.model_args.dtype", ("fp16", "float16"), "bf16", "read as bf16, which has the range of fp32: ROLL "
                  "trains fp16 with a loss scaler, which is not here, and engines compute in the trainer's type", told=True),
    KeyRule("<role>.model_args.lora_rank", "alias", "the default: lora_target alone switches LoRA on", lambda v, b: {},
         lambda v, b: v in (0, None) and not b.get("lora_target"), "0 or null"),
    *off_or_lacking("<role>.model_args.adapter_name_or_path", (None,), "starting from an adapter is not there: merge it first"),
    *off_or_lacking("<role>.model_args.additional_target", (None, ""), "training whole modules beside LoRA is not there"),
    ignored("<role>.model_args.autocast_adapter_dtype", "LoRA's weights are trained in fp32"),
    *off_or_lacking("<role>.model_args.moe_aux_loss_coef", (None, 0, 0.0), f"an auxiliary loss of experts {_MOE_MTP}"),
    KeyRule("<role>.model_args.freeze_module_prefix", "without effect", "no text reaches these parts, so they are not trained",
         when=_names_towers_only, values="parts that see or hear", absent=True),
    *off_or_lacking("<role>.model_args.freeze_module_prefix", (None, ""), "freezing is not there: all weights are trained"),
    value_read_as("<role>.model_args.ulysses_size", (None,), 1, "read as 1"),
    *off_or_lacking("<role>.model_args.vision_dp", (None, False), "each rank computes the images of its own samples"),
    *off_or_lacking("<role>.model_args.model_config_kwargs", (None, {}), "change config.json in the model's folder instead"),
    KeyRule("critic.model_args.model_type", "without effect", "a critic is that: the model with one number as its head, which "
         "starts at 0 and drops nothing out; a folder's own value head (v_head, score) is read",
         when=lambda v, b: v in _VALUE_MODELS, values=", ".join(_VALUE_MODELS), absent=True),
    *off_or_lacking("<role>.model_args.model_type", (None,), "every role is a causal language model; remove it"),
    ignored("<role>.model_args.num_labels", "the critic's head has one output, and no other role has such a head"),
    ignored("<role>.model_args.device_map", "device_mapping places the model"),
    ignored("<role>.model_args.gradient_checkpointing_use_reentrant", "the back end chooses"),
)  # fmt: skip

TRAINING = (
    *(KeyRule(f"{role}.training_args.lr_scheduler_type", "alias", "read as constant; warmup_steps or warmup_ratio warm up",
           lambda v, b: {".lr_scheduler_type": "constant"}, lambda v, b: v == "constant_with_warmup"
           and v not in choices(TrainingArguments, "lr_scheduler_type"), "constant_with_warmup")
      for role in ("actor_train", "critic")),
    *(ignored(f"{role}.training_args.{name}", why) for role in ("actor_train", "critic") for name, why in (
        ("output_dir", RUN_FOLDER), ("max_steps", "the top level's max_steps decides (ROLL overwrites it)"),
        ("num_train_epochs", "max_steps decides (ROLL's RL ignores it)"), ("seed", "the top level's seed decides"),
        ("data_seed", DEAD_IN_ROLL), ("dataloader_num_workers", "prompts are read once at the start"),
        ("fp16", "model_args.dtype decides"), ("bf16", "model_args.dtype decides"), ("tf32", DEAD_IN_ROLL),
        ("save_hf_model", "checkpoints hold the model as a Hugging Face folder anyway"),
    )),
)  # fmt: skip

_SAMPLING_BLOCKS = ("actor_infer.generating_args", "validation.generating_args")
SAMPLING = tuple(
    rule
    for block in _SAMPLING_BLOCKS
    for rule in (
        ignored(f"{block}.do_sample", "temperature 0 is greedy (ROLL never hands it to an engine)"),
        ignored(f"{block}.max_length", "max_new_tokens decides"),
        ignored(f"{block}.logprobs", "the log-prob of every sampled token is always returned"),
        *off_or_lacking(f"{block}.num_beams", (1, None), "beam search does not sample from the policy; remove it"),
        *off_or_lacking(f"{block}.repetition_penalty", (1, 1.0, None), "it samples from another policy; remove it"),
        *off_or_lacking(f"{block}.length_penalty", (1, 1.0, None), "it belongs to beam search; remove it"),
        *(
            [value_read_as(f"{block}.num_return_sequences", (1,), DROP, "the group's size: ROLL overwrites it, too")]
            if block.startswith("actor_infer")
            else []
        ),
        value_read_as(f"{block}.top_k", (-1, None), 0, "read as 0: no limit"),
        value_read_as(f"{block}.top_p", (None,), 1.0, "read as 1: no limit"),
        value_read_as(f"{block}.stop_strings", (None,), [], "read as none"),
        value_read_as(f"{block}.include_stop_str_in_output", (None,), True, "read as true"),
    )
)

_BLOCK = "<role>.strategy_args.strategy_config"
_ENGINE = "actor_infer.strategy_args.strategy_config"
STRATEGY = (
    KeyRule("reference.strategy_args.strategy_name", "alias", "read as fsdp2_infer, which computes log-probs with transformers",
         lambda v, b: {".strategy_name": "fsdp2_infer"}, lambda v, b: v == "hf_infer", "hf_infer"),
    KeyRule("<role>.strategy_args.strategy_config", "alias", "no options", lambda v, b: {".strategy_config": {}},
         lambda v, b: v is None, "null"),
    KeyRule("<role>.strategy_args.strategy_name", "lacking", "there is no such back end; its strategy_config goes with it",
         lambda v, b: {".strategy_config": DROP}, lambda v, b: v in _NOT_YET, ", ".join(_NOT_YET)),
    # Options of ROLL's back ends that are none of the same back end here.
    ignored(f"{_BLOCK}.wrap_policy", "each layer is divided on its own"),
    ignored(f"{_BLOCK}.apply_expert_patch", SPEED),
    ignored(f"{_BLOCK}.use_batched_model_update", DEAD_IN_ROLL),
    ignored(f"{_BLOCK}.param_dtype", "model_args.dtype decides"),
    ignored(f"{_BLOCK}.reduce_dtype", "gradients are reduced in the masters' type"),
    ignored(f"{_BLOCK}.bf16", "model_args.dtype decides"),
    ignored(f"{_BLOCK}.fp16", "model_args.dtype decides"),
    ignored(f"{_BLOCK}.max_grad_norm", "the top level's max_grad_norm decides"),
    ignored(f"{_BLOCK}.save_only_model", WHOLE_CHECKPOINTS),
    ignored(f"{_BLOCK}.async_save_ckpt", "checkpoints are always written while the next steps train"),
    ignored(f"{_BLOCK}.ckpt_format", WHOLE_CHECKPOINTS),
    ignored(f"{_BLOCK}.offload_policy", f"{MEMORY}; deepspeed_train offloads"),
    ignored(f"{_BLOCK}.ep_size", "experts are divided among all devices of the role, as all weights are"),
    ignored(f"{_BLOCK}.efsdp_size", "experts are divided among all devices of the role, as all weights are"),
    ignored(f"{_BLOCK}.moe_use_grouped_mm", SPEED),
    ignored(f"{_BLOCK}.apply_tiled_mlp", f"{MEMORY}; disable_gradient_checkpointing: false saves it"),
    ignored(f"{_BLOCK}.tiled_num_shards", "it belongs to apply_tiled_mlp"),
    KeyRule(f"{_BLOCK}.additional_configs", "alias", "read as if its keys stood beside it",
         lambda v, b: {f".{name}": value for name, value in (v or {}).items()},
         lambda v, b: v is None or isinstance(v, Mapping), "a mapping", absent=True),
    ignored(f"{_BLOCK}.perform_initialization", "the checkpoint's weights are read"),
    ignored(f"{_BLOCK}.use_flash_attn", "model_args.attn_implementation decides"),
    ignored(f"{_BLOCK}.fp8_recipe", "it belongs to fp8"),
    ignored(f"{_BLOCK}.moe_router_dtype", "routers compute in fp32"),
    ignored(f"{_BLOCK}.moe_permute_fusion", SPEED),
    ignored(f"{_BLOCK}.recompute_modules", "what recompute_granularity: selective recomputes is Megatron-core's default"),
    ignored(f"{_BLOCK}.accumulate_allreduce_grads_in_fp32", "gradients are added up in the masters' type"),
    ignored(f"{_BLOCK}.optimizer_cpu_offload", f"{MEMORY}; deepspeed_train offloads"),
    ignored(f"{_BLOCK}.optimizer_offload_fraction", "it belongs to optimizer_cpu_offload"),
    ignored(f"{_BLOCK}.overlap_cpu_optimizer_d2h_h2d", "it belongs to optimizer_cpu_offload"),
    ignored(f"{_BLOCK}.use_precision_aware_optimizer", "masters and moments are fp32"),
    *off_or_lacking(f"{_BLOCK}.hidden_dropout", (0, 0.0, None), "dropout would make log-probs random; remove it"),
    *off_or_lacking(f"{_BLOCK}.attention_dropout", (0, 0.0, None), "dropout would make log-probs random; remove it"),
    ignored(f"{_ENGINE}.VLLM_USE_V1", "the engine is the installed one's only version"),
    ignored(f"{_ENGINE}.sleep_level", "engines keep their devices"),
    ignored(f"{_ENGINE}.enable_memory_saver", "it follows from device_mapping: engines that share devices have it"),
    ignored(f"{_ENGINE}.max_model_len", "sequence_length decides"),
    ignored(f"{_ENGINE}.max_num_seqs", "max_running_requests decides"),
    value_read_as(f"{_ENGINE}.load_format", ("auto", None), "safetensors", "read as safetensors, the only files that are read"),
)  # fmt: skip


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
_FASTER = (
    "bias_activation_fusion apply_rope_fusion masked_softmax_fusion bias_dropout_fusion cross_entropy_loss_fusion "
    "gradient_accumulation_fusion tp_comm_overlap overlap_param_gather moe_grouped_gemm moe_shared_expert_overlap "
    "cuda_graph_impl cuda_graph_scope compile_warmup delay_grad_reduce ddp_bucket_size ddp_average_in_collective"
)
_WITHOUT_EFFECT = {
    "moe_layer_recompute": f"{MEMORY}; recompute_granularity: full recomputes whole layers",
    **dict.fromkeys(_FASTER.split(), SPEED),
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

RULES = (*ROLE, *MODEL, *TRAINING, *SAMPLING, *STRATEGY, *MEGATRON)
