"""Keys of ROLL's YAML files that have no field here, and what to write instead."""

from __future__ import annotations

_ALWAYS_ON = "remove it; micro-batches are always cut by tokens (max_tokens_per_microbatch_in_train, ..._in_infer)"
_ONE_DEVICE = "remove it; one worker runs on each device of device_mapping"
_RUN_FOLDER = "remove it; everything is written to <output_dir>/<exp_name>"
_NO_CRITIC = "remove it; advantages come from groups, no critic is trained"
_REFERENCE = "remove it; the reference is started if use_kl_loss or add_token_level_kl needs it"
_NOT_SAMPLED = "remove it; only temperature, top_p and top_k shape the samples"
_NO_EFFECT = "remove it; it has no effect"

ADVICE = {
    "flash_attn": "use attn_implementation",
    "infer_batch_size": _ALWAYS_ON,
    "use_dynamic_batching_in_train": _ALWAYS_ON,
    "use_dynamic_batching_in_infer": _ALWAYS_ON,
    "sequence_length_round_in_train": _ALWAYS_ON,
    "sequence_length_round_in_infer": _ALWAYS_ON,
    "num_gpus_per_worker": _ONE_DEVICE,
    "world_size": _ONE_DEVICE,
    "logging_dir": _RUN_FOLDER,
    "rollout_dump_dir": _RUN_FOLDER,
    "checkpoint_config": _RUN_FOLDER,
    "system_envs": "set environment variables before the start",
    "generate_opt_level": "remove it; requests are always scheduled one by one",
    "reward_pretrain": _NO_CRITIC,
    "critic": _NO_CRITIC,
    "critic_warmup": _NO_CRITIC,
    "value_clip": _NO_CRITIC,
    "lambd": _NO_CRITIC,
    "enable_reference": _REFERENCE,
    "force_disable_old_logprobs_recompute": "use old_logprobs: bypass",
    "importance_sampling": "use actor_train.pg_variant: gspo",
    "ratio_type": "use actor_train.pg_variant: gspo",
    "detach": "remove it; importance weights never carry a gradient",
    "do_sample": "remove it; temperature 0 is greedy",
    "num_beams": _NOT_SAMPLED,
    "repetition_penalty": _NOT_SAMPLED,
    "length_penalty": _NOT_SAMPLED,
    "max_length": "use max_new_tokens",
    "preprocessing_num_workers": _NO_EFFECT,
    "dataset_dir": _NO_EFFECT,
    "interleave_probs": "use domain_interleave_probs",
}
