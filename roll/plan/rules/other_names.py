"""Names of top-level keys in other frameworks: a user who writes one is told its name here."""

from collections.abc import Container

_SIZES = (
    "rollout_batch_size for the prompts of a step, and for the samples of an optimiser step "
    "actor_train.training_args.per_device_train_batch_size x gradient_accumulation_steps"
)
"""verl's train_batch_size counts prompts, DeepSpeed's and Megatron's batches count samples."""
OTHER_NAMES = {
    "batch_size": _SIZES,
    "train_batch_size": _SIZES,
    "global_batch_size": _SIZES,
    "generation_batch_size": "rollout_batch_size (prompts) x num_return_sequences_in_group (samples of each)",
    "group_size": "num_return_sequences_in_group",
    "num_generations": "num_return_sequences_in_group",
    "rollout_n": "num_return_sequences_in_group",
    "max_prompt_length": "prompt_length",
    "max_completion_length": "response_length",
    "max_response_length": "response_length",
    "num_train_epochs": "total_epochs",
    "epochs": "total_epochs",
    "num_steps": "max_steps",
    "total_steps": "max_steps",
    "model": "pretrain",
    "model_path": "pretrain",
    "lr": "actor_train.training_args.learning_rate",
    "dataset": "actor_train.data_args.file_name",
    "train_dataset": "actor_train.data_args.file_name",
    "train_files": "actor_train.data_args.file_name",
    "eval_dataset": "validation.data_args.file_name",
    "val_files": "validation.data_args.file_name",
    "reward_funcs": "rewards.<domain>.worker_cls",
    "reward_fn": "rewards.<domain>.worker_cls",
    "report_to": "track_with",
    "beta": "kl_loss_coef, with use_kl_loss: true",
    "epsilon": "pg_clip",
    "epsilon_high": "pg_clip: [low, high]",
    "num_iterations": "ppo_epochs",
    "mask_truncated_completions": "max_len_mask",
    "scale_rewards": "adv_estimator (grpo divides by the deviation of the group), or norm_std_type with reinforce",
    "ref_model": "reference.model_args.model_name_or_path",
    "bf16": "actor_train.model_args.dtype: bf16",
    "gradient_checkpointing": "actor_train.model_args.disable_gradient_checkpointing: false",
    "lora_r": "actor_train.model_args.lora_rank, with lora_target",
    "peft_config": "actor_train.model_args.lora_target, lora_rank, lora_alpha",
    "target_modules": "actor_train.model_args.lora_target",
    "vllm_mode": "device_mapping: the same devices for actor_train and actor_infer, or others",
    "vllm_gpu_memory_utilization": "actor_infer.strategy_args.strategy_config.gpu_memory_utilization",
    "clip_ratio": "pg_clip",
    "loss_type": "loss_agg_mode for how TRL's types average tokens, and actor_train.pg_variant for the loss",
    "use_vllm": "actor_infer.strategy_args.strategy_name: vllm",
    "temperature": "actor_infer.generating_args.temperature",
    "model_name_or_path": "pretrain",
    "dataset_name": "actor_train.data_args.path",
    "data": "actor_train.data_args, and rollout_batch_size, prompt_length and response_length at the top level",
    "actor_rollout_ref": "actor_train, actor_infer and reference",
    "algorithm": "adv_estimator and its like at the top level",
    "trainer": "max_steps, save_steps, eval_steps and exp_name at the top level",
}
_GROUP, _ANSWER, _SOURCE = "train_env_manager.group_size", "max_tokens_per_step", "custom_envs: prompts come from environments"
_SCORE = "custom_envs: rewards come from environments"
OF_EPISODES = {
    **dict.fromkeys(("batch_size", "train_batch_size", "global_batch_size"), _SIZES.replace("prompts", "episodes")),
    "generation_batch_size": "rollout_batch_size (episodes)",
    **dict.fromkeys(("group_size", "num_generations", "rollout_n"), _GROUP),
    "max_prompt_length": "sequence_length, all turns together",
    **dict.fromkeys(("max_completion_length", "max_response_length"), _ANSWER),
    **dict.fromkeys(("num_train_epochs", "epochs"), "max_steps; episodes have no epochs"),
    **dict.fromkeys(("dataset", "train_dataset", "train_files"), _SOURCE),
    **dict.fromkeys(("eval_dataset", "val_files"), "val_env_manager"),
    **dict.fromkeys(("reward_funcs", "reward_fn"), _SCORE),
    "mask_truncated_completions": "",
    "scale_rewards": "adv_estimator (grpo divides by the deviation of the group), or reward_normalization.norm_std_type",
}
"""The same for an agentic run, where the name differs; empty: it has none."""


def name_here(key: str, known: Container[str]) -> str:
    """Returns the name here of a key from elsewhere. `known`: the keys of the top level."""
    return (OF_EPISODES if "custom_envs" in known else {}).get(key, OTHER_NAMES.get(key, ""))
