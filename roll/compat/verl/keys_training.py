"""Rules for what verl's actor and critic have in common: optimiser, batches, back end; and for its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roll.compat.framework import File, at, is_count, is_one_of
from roll.compat.roll.rule import MEMORY, SPEED, WHOLE_CHECKPOINTS, KeyRule, ignored, lacking, off_or_lacking, renamed
from roll.compat.verl.facts import (
    ACTOR,
    REF,
    ROLLOUT,
    count,
    longest,
    megatron,
    of_a_rank,
    ranks,
    ulysses,
    with_critic,
    with_reference,
)

_CUT = "micro-batches are always cut by tokens"
_SIZES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "sequence_parallel", "use_distributed_optimizer",
)  # fmt: skip
_TRANSFORMER = (
    "recompute_granularity", "recompute_method", "recompute_num_layers", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)  # fmt: skip
_FUSED = (
    "apply_rope_fusion", "attention_backend", "bias_activation_fusion", "bias_dropout_fusion", "deallocate_pipeline_outputs",
    "gradient_accumulation_fusion", "masked_softmax_fusion", "moe_enable_deepep", "moe_grouped_gemm", "moe_permute_fusion",
    "moe_shared_expert_overlap", "moe_token_dispatcher_type", "persist_layer_norm", "use_flash_attn", "use_fused_rmsnorm",
    "use_fused_swiglu",
)  # fmt: skip
_DROPOUTS = ("attention_dropout", "embd_pdrop", "resid_pdrop", "hidden_dropout")
_CONTEXT = "max_position_embeddings"
_SHARDED = ("fsdp_config", "fsdp", "model.fsdp_config")
_MUON = ("momentum", "split_qkv", "nesterov", "scale_mode", "coefficient_type", "num_ns_steps", "tp_mode", "fp32_matmul_prec",
         "extra_scale_factor", "scalar_optimizer", "match_adamw_update_rms")  # fmt: skip
NO_CRITIC = "no critic is trained: only algorithm.adv_estimator: gae has one"
NO_REFERENCE = "there is no reference: neither use_kl_loss nor use_kl_in_reward"
OTHER_BACK_END = "another back end is chosen"
CONDITIONS = (NO_CRITIC, NO_REFERENCE, OTHER_BACK_END)
"""Reasons why a whole block is without effect."""


def where(holds: Callable[[File], bool], why: str, values: str, *rules: KeyRule) -> tuple[KeyRule, ...]:
    """Rules of files for which the condition holds; in others their keys are without effect."""
    off = KeyRule("", "without effect", why, when=lambda v, f: not holds(f), values=values)
    return (*(replace(off, path=path) for path in dict.fromkeys(rule.path for rule in rules)), *rules)


def switched(path: str, note: str, switch: str = "enable") -> tuple[KeyRule, KeyRule]:
    """Rules of a block that may be written as long as its switch is off."""
    off = lambda v, f: not (isinstance(v, Mapping) and v.get(switch))  # noqa: E731
    return KeyRule(path, "without effect", "it is off", when=off, values=f"{switch}: false"), lacking(path, note)


def of_model(block: str, role: str) -> tuple[KeyRule, ...]:
    return (
        KeyRule(f"{block}.enable_gradient_checkpointing", "alias", f"read as {role}.model_args.disable_gradient_checkpointing: "
                "false",
                lambda v, f: {f"{role}.model_args.disable_gradient_checkpointing": not v}, is_one_of(True, False), "true, false"),
        *(ignored(f"{block}.{name}", "weights and chat templates are data, and no code of a model's folder is run") for name in (
            "trust_remote_code",)),
        *(ignored(f"{block}.{name}", "a model folder has its own") for name in ("tokenizer_path", "hf_config_path",
            "input_tokenizer")),
        *(ignored(f"{block}.{name}", SPEED) for name in ("use_shm", "use_liger", "use_fused_kernels", "fused_kernel_options")),
        ignored(f"{block}.use_remove_padding", "nothing is padded"),
        ignored(f"{block}.enable_activation_offload", MEMORY),
        *switched(f"{block}.tiled_mlp", "it saves memory only: remove it", "enabled"),
        *switched(f"{block}.mtp", "layers that predict further tokens are not trained: remove it"),
        KeyRule(f"{block}.lora", "without effect", "it is off", when=lambda v, f: not (isinstance(v, Mapping) and v.get("rank")),
                values="rank: 0"),
        lacking(f"{block}.lora", "write lora_rank, lora_alpha and target_modules, with fsdp"),
        *(lacking(f"{block}.{name}", why) for name, why in (
            ("external_lib", "import it in the module of your own reward or loss"),
            ("custom_chat_template", "write it to the model folder's tokenizer, or data_args.template: chatml"),
            ("exclude_modules", "write target_modules, which may be a regular expression"),
            ("lora_adapter_path", "merge it into the weights first, or resume_from_checkpoint"))),
        KeyRule(f"{block}.override_config", "without effect", "it says what is so here", when=_harmless,
            values="attn_implementation"),
        KeyRule(f"{block}.override_config", "without effect", f"the config.json of the model's folder counts: write {_CONTEXT} "
                "there; verl's scripts say so, too", told=True, when=_longer, values=_CONTEXT),
        lacking(f"{block}.override_config", "write it to the config.json of the model's folder"),
        *([ignored(f"{block}.{name}", "a critic is trained whole") for name in ("lora_alpha",
            "target_modules")] if role == "critic"
          else []),
    )  # fmt: skip


def _harmless(value: object, file: File) -> bool:
    """Returns True for options without influence on what is computed, and verl's own empty blocks."""
    empty: dict[str, list[Any]] = {"model_config": [{}], "moe_config": [{"freeze_moe_router": False}]}
    empty |= {name: [0] for name in _DROPOUTS}
    return isinstance(value, Mapping) and all(
        name == "attn_implementation" or each in empty.get(name, ()) for name, each in value.items()
    )


def _longer(value: object, file: File) -> bool:
    """Returns True if, besides, the context is said to be another."""
    if not isinstance(value, Mapping):
        return False
    inner = value.get("model_config")
    flat = {**value, **inner, "model_config": {}} if isinstance(inner, Mapping) else value
    return _harmless({name: each for name, each in flat.items() if name != _CONTEXT}, file)


def _schedule(path: str, role: str) -> tuple[KeyRule, ...]:
    read = KeyRule(path, "alias", f"read as {role}.training_args.lr_scheduler_type", lambda v, f: {
        f"{role}.training_args.lr_scheduler_type": v}, is_one_of("constant", "linear", "cosine"),
            "constant, linear, cosine")  # fmt: skip
    return read, lacking(path, "constant, linear or cosine")


def optimiser(block: str, role: str) -> tuple[KeyRule, ...]:
    own, args = f"{block}.optim", f"{role}.training_args"
    return (
        renamed(f"{own}.lr", f"{args}.learning_rate"),
        renamed(f"{own}.weight_decay", f"{args}.weight_decay"),
        KeyRule(f"{own}.betas", "alias", f"read as adam_beta1 and adam_beta2 of {args}",
                lambda v, f: {f"{args}.adam_beta1": v[0], f"{args}.adam_beta2": v[1]},
                lambda v, f: isinstance(v, list) and len(v) == 2, "two numbers"),
        KeyRule(f"{own}.lr_warmup_steps", "alias", f"read as {args}.warmup_steps; the first step has one share of the peak, in "
                "verl it has none", lambda v, f: {f"{args}.warmup_steps": v}, lambda v, f: is_count(v), "1 or more"),
        ignored(f"{own}.lr_warmup_steps", "lr_warmup_steps_ratio counts"),
        KeyRule(f"{own}.lr_warmup_steps_ratio", "without effect", "lr_warmup_steps counts", when=lambda v, f: is_count(
            at(f, f"{own}.lr_warmup_steps")), values="with lr_warmup_steps"),
        renamed(f"{own}.lr_warmup_steps_ratio", f"{args}.warmup_ratio", "the first step has one share of the peak, in verl none"),
        *_schedule(f"{own}.lr_scheduler_type", role),
        *_schedule(f"{own}.warmup_style", role),
        *_schedule(f"{own}.lr_decay_style", role),
        *off_or_lacking(f"{own}.optimizer", ("AdamW", "adam"), "AdamW is the optimiser"),
        *off_or_lacking(f"{own}.optimizer_impl", ("torch.optim",), "torch's own AdamW is used"),
        *(rule for name in ("min_lr_ratio", "min_lr", "lr_warmup_init") for rule in off_or_lacking(
            f"{own}.{name}", (0.0,), "a schedule begins with its warm-up and ends at 0, or is constant: write 0")),
        *off_or_lacking(f"{own}.num_cycles", (0.5,), "a cosine has half a period: write 0.5"),
        *off_or_lacking(f"{own}.weight_decay_incr_style", ("constant",), "it does not change: write constant"),
        *(ignored(f"{own}.{name}", why) for name, why in (
            ("total_training_steps", "a schedule has the steps of the run"), ("lr_decay_steps",
                "a schedule has the steps of the run"),
            ("lr_wsd_decay_style", "it is about lr_decay_style: WSD"), ("lr_wsd_decay_steps", "it is about lr_decay_style: WSD"),
            ("override_optimizer_config", f"torch's own AdamW is used; offloading {MEMORY}"), ("zero_indexed_step",
                "as lr_warmup_steps"),
            ("use_checkpoint_opt_param_scheduler", WHOLE_CHECKPOINTS), *((name,
                "masters, gradients and moments are fp32") for name in (
                "use_precision_aware_optimizer", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")), (
                "use_layer_wise_distributed_optimizer", SPEED), *((f"muon_{name}", "AdamW is the optimiser") for name in _MUON))),
    )  # fmt: skip


def _budget(block: str, name: str, tokens: str, dynamic: str, target: str, sharing: str) -> tuple[KeyRule, ...]:
    """Rules of three keys: samples of a micro-batch, by device or of all, and its tokens. `sharing`: the block whose ranks
    divide tokens."""
    whole = lambda f: at(f, f"{block}.{dynamic}", at(f, f"{ACTOR}.use_dynamic_bsz", False)) is True  # noqa: E731
    of_samples = lambda v, f: {target: max(v, 1) * longest(f)}  # noqa: E731
    of_all = lambda v, f: {target: max(1, v // max(1, ranks(f))) * longest(f)}  # noqa: E731
    counted = lambda v, f: is_count(v) and not whole(f)  # noqa: E731
    note = f"read as {target}: tokens of so many of the longest prompts and responses"
    return (
        KeyRule(f"{block}.{name}_per_gpu", "alias", note, of_samples, counted, f"without {dynamic}"),
        ignored(f"{block}.{name}_per_gpu", _CUT),
        KeyRule(f"{block}.{name}", "alias", note, of_all, counted, f"without {dynamic}"),
        ignored(f"{block}.{name}", _CUT),
        KeyRule(f"{block}.{tokens}", "alias", f"read as {target}, of all ranks that divide the tokens of a batch",
                lambda v, f: {target: v * ulysses(f, sharing)}, lambda v, f: is_count(v) and whole(f), f"with {dynamic}"),
        ignored(f"{block}.{tokens}", f"{dynamic} is off"),
        ignored(f"{block}.{dynamic}", _CUT),
    )  # fmt: skip


def batches(block: str, role: str) -> tuple[KeyRule, ...]:
    return (
        KeyRule(f"{block}.ppo_mini_batch_size", "alias", f"read as {role}.training_args.per_device_train_batch_size: "
                "times rollout.n, divided by the data-parallel ranks", lambda v, f: {
                    f"{role}.training_args.per_device_train_batch_size": of_a_rank(f, block)},
                lambda v, f: is_count(v) and of_a_rank(f, block) > 0, "samples that the ranks divide"),
        lacking(f"{block}.ppo_mini_batch_size", "times rollout.n it has to be a multiple of the data-parallel ranks: the "
                "trainer's devices, divided by the sizes of tensor, pipeline, context or Ulysses parallelism"),
        *_budget(block, "ppo_micro_batch_size", "ppo_max_token_len_per_gpu", "use_dynamic_bsz",
                 f"{role}.max_tokens_per_microbatch_in_train", block),
        *(ignored(f"{block}.{name}", why) for name, why in (
            ("shuffle", "the optimiser steps of a step divide its groups in their order"), ("data_loader_seed", "seed counts"),
            ("rollout_n", "rollout.n counts"), ("checkpoint", WHOLE_CHECKPOINTS), ("profiler",
                "roll ui and trace.json show time"),
            ("nccl_timeout", "rpc_timeout bounds a call"), ("load_weight", "weights are always loaded"))),
    )  # fmt: skip


def _back_end(path: str, chosen: str, kind: str) -> tuple[KeyRule, ...]:
    return (
        KeyRule(path, "alias", f"read as fsdp2_{kind}", lambda v, f: {chosen: f"fsdp2_{kind}"},
                lambda v, f: v in ("fsdp", "fsdp2") and not megatron(f), "fsdp, fsdp2"),
        KeyRule(path, "alias", f"read as megatron_{kind}", lambda v, f: {chosen: f"megatron_{kind}"},
                lambda v, f: v == "megatron" or (megatron(f) and v in ("fsdp", "fsdp2")), "megatron"),
        lacking(path, "fsdp, fsdp2 or megatron"),
    )  # fmt: skip


def strategy(block: str, role: str, kind: str) -> tuple[KeyRule, ...]:
    """`kind`: train or infer."""
    chosen = f"{role}.strategy_args.strategy_name"
    rules = tuple(
        rule
        for path in (block, *(f"{block}.{name}" for name in _SHARDED))
        for rule in _back_end(f"{path}.strategy", chosen, kind)
    )
    sharded = tuple(rule for name in _SHARDED for rule in _fsdp(f"{block}.{name}", role))
    size = KeyRule(f"{block}.ulysses_sequence_parallel_size", "alias", f"read as {role}.model_args.ulysses_size",
                   lambda v, f: {f"{role}.model_args.ulysses_size": ulysses(f, block)}, lambda v, f: is_count(v),
                       "1 or more")  # fmt: skip
    return (
        *rules,
        *where(lambda f: not megatron(f), OTHER_BACK_END, "with megatron", *sharded, size),
        *where(megatron, OTHER_BACK_END, "without megatron", *_megatron(f"{block}.megatron", role, kind)),
    )


def _fsdp(block: str, role: str) -> tuple[KeyRule, ...]:
    options = f"{role}.strategy_args.strategy_config"
    outer = block.removesuffix(".fsdp_config").removesuffix(".fsdp").removesuffix(".model")
    return (
        renamed(f"{block}.fsdp_size", f"{options}.fsdp_size"),
        renamed(f"{block}.reshard_after_forward", f"{options}.reshard_after_forward"),
        KeyRule(f"{block}.ulysses_sequence_parallel_size", "alias", f"read as {role}.model_args.ulysses_size",
                lambda v, f: {f"{role}.model_args.ulysses_size": ulysses(f, outer)}, lambda v, f: is_count(v), "1 or more"),
        *_dtype(f"{block}.dtype", role),
        *off_or_lacking(f"{block}.full_determinism", (False,), "write deterministic: true"),
        *switched(f"{block}.qat", "weights are trained as they are: remove it"),
        *(ignored(f"{block}.{name}", "roles that share devices take turns; an idle one leaves them its memory") for name in (
            "param_offload", "optimizer_offload", "offload_policy", "grad_offload")),
        ignored(f"{block}.model_dtype", "masters are fp32, and computed with in the type of model_args.dtype"),
        ignored(f"{block}.mixed_precision", "masters are fp32, and computed with in the type of model_args.dtype"),
        *(ignored(f"{block}.{name}", SPEED) for name in ("forward_prefetch", "use_orig_params", "wrap_policy",
            "use_torch_compile",
                                                         "turbo_config", "pad_to_length", "pad_to_length_bucket")),
        *(ignored(f"{block}.{name}", MEMORY) for name in ("entropy_from_logits_with_chunking", "entropy_checkpointing",
                                                          "entropy_from_logits_chunk_size")),
        ignored(f"{block}.seed", "seed counts"), ignored(f"{block}.forward_only", "as the role says"),
    )  # fmt: skip


def _dtype(path: str, role: str) -> tuple[KeyRule, ...]:
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
    return (
        KeyRule(path, "alias", f"read as {role}.model_args.dtype", lambda v, f: {f"{role}.model_args.dtype": names[v]},
                lambda v, f: isinstance(v, str) and v in names, ", ".join(names)),
        lacking(path, "bfloat16, float16 or float32"),
    )  # fmt: skip


def _megatron(block: str, role: str, kind: str) -> tuple[KeyRule, ...]:
    options = f"{role}.strategy_args.strategy_config"
    skipped = (*_FUSED, *([] if kind == "train" else _TRANSFORMER))
    return (
        *(renamed(f"{block}.{name}",
            f"{options}.{name}") for name in _SIZES if kind == "train" or name != "use_distributed_optimizer"),
        *([ignored(f"{block}.use_distributed_optimizer", "nothing is trained")] if kind != "train" else []),
        ignored(f"{block}.virtual_pipeline_model_parallel_size", SPEED),
        KeyRule(f"{block}.override_transformer_config", "alias", f"read as {options}: what changes the speed only is left out",
                lambda v, f: {f"{options}.{name}": each for name, each in v.items() if name not in skipped and each is not None},
                lambda v, f: isinstance(v, Mapping), "mapping"),
        *_dtype(f"{block}.dtype", role),
        *off_or_lacking(f"{block}.use_dist_checkpointing", (False,), "weights are read from the model's folder"),
        *(ignored(f"{block}.{name}", "roles that share devices take turns; an idle one leaves them its memory") for name in (
            "param_offload", "optimizer_offload", "grad_offload")),
        *(ignored(f"{block}.{name}", "weights are read from the model's folder") for name in (
            "use_mbridge", "vanilla_mbridge", "dist_checkpointing_path", "dist_checkpointing_prefix")),
        *(ignored(f"{block}.{name}", SPEED) for name in ("override_ddp_config", "use_remove_padding", "use_megatron_fsdp",
            "max_seqlen_per_dp_cp_rank",
            "dynamic_context_parallel", "pad_bshd_to_minibatch_max", "pad_to_length", "pad_to_length_bucket")),
        *switched(f"{block}.qat", "weights are trained as they are: remove it"),
        *(ignored(f"{block}.{name}", WHOLE_CHECKPOINTS) for name in (
            "dist_ckpt_optim_fully_reshardable", "distrib_optim_fully_reshardable_mem_efficient")),
        *(ignored(f"{block}.{name}", MEMORY) for name in ("entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size")),
        *(ignored(f"{block}.router_replay.{name}", "part of mode") for name in ("record_file", "replay_file", "strict")),
        *off_or_lacking(f"{block}.override_mcore_model_config", ({},), "a model is as its folder says"),
        ignored(f"{block}.seed", "seed counts"), ignored(f"{block}.forward_only", "as the role says"),
        *off_or_lacking(f"{block}.router_replay.mode", ("disabled",), "write actor_train.router_replay.mode: R3, with hf_infer"),
    )  # fmt: skip


def _critic_clip(value: object, file: File) -> bool:
    return bool(value == at(file, f"{ACTOR}.grad_clip", at(file, f"{ACTOR}.optim.clip_grad", 1.0)))


CRITIC = where(
    with_critic, NO_CRITIC, "without gae",
    *optimiser("critic", "critic"), *batches("critic", "critic"), *strategy("critic", "critic", "train"),
    *_budget("critic", "forward_micro_batch_size", "forward_max_token_len_per_gpu", "use_dynamic_bsz",
             "critic.max_tokens_per_microbatch_in_infer", "critic")[:-1],
    renamed("critic.cliprange_value", "value_clip"),
    renamed("critic.model.path", "critic.model_args.model_name_or_path"),
    *off_or_lacking("critic.model.lora_rank", (0,), "a critic is trained whole"),
    *of_model("critic.model", "critic"),
    *(rule for path in ("critic.grad_clip", "critic.optim.clip_grad") for rule in (
        KeyRule(path, "without effect", "max_grad_norm, the actor's, is the critic's, too", when=_critic_clip,
            values="the actor's"),
        lacking(path, "max_grad_norm is both the actor's and the critic's: write the same"))),
    KeyRule("critic.ppo_epochs", "without effect", "ppo_epochs, the actor's, is the critic's, too", when=lambda v, f: v == count(
        f, f"{ACTOR}.ppo_epochs"), values="the actor's"),
    lacking("critic.ppo_epochs", "ppo_epochs is both the actor's and the critic's: write the same"),
    ignored("critic.enable", "adv_estimator decides"),
    ignored("critic.loss_agg_mode", "the critic's loss is a mean over all trained tokens"),
    ignored("critic.loss_scale_factor", "the critic's loss is a mean over all trained tokens"),
)  # fmt: skip

REFERENCE = where(
    with_reference, NO_REFERENCE, "without KL terms",
    *strategy(REF, "reference", "infer"),
    *_budget(REF, "log_prob_micro_batch_size", "log_prob_max_token_len_per_gpu", "log_prob_use_dynamic_bsz",
             "reference.max_tokens_per_microbatch_in_infer", REF),
    KeyRule(f"{REF}.model.path", "alias", "read as reference.model_args.model_name_or_path",
            lambda v, f: {"reference.model_args.model_name_or_path": v}),
    *(ignored(f"{REF}.{name}", why) for name, why in (
        ("rollout_n", "rollout.n counts"), ("use_torch_compile", SPEED), ("profiler", "roll ui and trace.json show time"),
        ("entropy_from_logits_with_chunking", MEMORY), ("entropy_checkpointing", MEMORY), ("entropy_from_logits_chunk_size",
            MEMORY),
        ("pad_to_length", SPEED), ("router_replay", "the actor's counts"), ("load_weight", "weights are always loaded"),
        ("checkpoint", WHOLE_CHECKPOINTS))),
)  # fmt: skip

SCORING = _budget(ROLLOUT, "log_prob_micro_batch_size", "log_prob_max_token_len_per_gpu", "log_prob_use_dynamic_bsz",
                  "actor_train.max_tokens_per_microbatch_in_infer", ACTOR)  # fmt: skip
