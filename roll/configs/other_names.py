"""What others call a key of the top level: a user who writes it is told the name that it has here."""

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
    "clip_ratio": "pg_clip",
    "loss_type": "actor_train.pg_variant",
    "use_vllm": "actor_infer.strategy_args.strategy_name: vllm",
    "temperature": "actor_infer.generating_args.temperature",
}
