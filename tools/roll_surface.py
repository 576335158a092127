"""Every key that ROLL's RLVR and agentic dataclasses have, and the ones that its example files write although none has them.

Each is a field here or has a rule in compat/roll/keys_*.py; a test checks it, and the page of compatibility counts them."""

from __future__ import annotations

ROLLS_KEYS = """exp_name seed output_dir base_dir logging_dir rollout_dump_dir render_save_dir length_profiler_dir
profiler_output_dir otlp_output_dir save_logging_board_dir max_steps save_steps max_ckpt_to_keep logging_steps
eval_steps rpc_timeout local_rank rollout_batch_size val_batch_size prompt_length response_length sequence_length
val_prompt_length val_sequence_length resume_from_checkpoint checkpoint_config track_with tracker_kwargs
profiler_timeline profiler_memory report_length_and_rewards is_offload_states
is_offload_optimizer_states_in_train_step model_update_buffer_size_mb transfer_backend num_nodes num_gpus_per_node
system_envs model_download_type rollout_mock generate_opt_level is_num_return_sequences_expand max_running_requests
is_use_additional_prompts use_additional_prompts max_additional_running_prompts user_defined_rollout_loop_cls
router_args pretrain reward_pretrain actor_train actor_infer critic reference reward async_generation_ratio ppo_epochs
max_grad_norm l2 lambd gamma pg_clip use_pg_clip_range pg_clip_low pg_clip_high dual_clip_loss value_clip
critic_warmup loss_agg_mode entropy_loss_coef kl_penalty init_kl_coef target_kl kl_horizon add_token_level_kl
use_kl_loss kl_loss_coef enable_reference adv_estimator norm_mean_type norm_std_type reward_norm reward_shift
reward_scale reward_clip whiten_rewards whiten_advantages advantage_clip use_reward_scaling add_len_reward
use_reward_norm enable_old_logprobs_recompute force_disable_old_logprobs_recompute train_infer_correction
global_template tag_to_template dataset_filter num_return_sequences_in_group validation rewards reward_model
max_len_mask difficulty_mask difficulty_low_threshold difficulty_high_threshold error_max_len_clip
error_max_len_threshold difficulty_loss_weight length_loss_weight rl_loss_coef importance_sampling postive_loss_coef
positive_loss_coef use_topr_neg_loss_coef use_policy_loss_type use_topr_loss val_greedy val_n_sample mask_type
balance_length minibatch_data_iter_num use_rollout_importance_sampling_ratio
rollout_importance_sampling_ratio_upper_bound train_infer_ratio_mask train_infer_ratio_threshold_low
train_infer_ratio_threshold_high train_infer_diff_mask train_infer_diff_threshold_low train_infer_diff_threshold_high
train_infer_ratio_seq_mask train_infer_ratio_seq_threshold_low train_infer_ratio_seq_threshold_high
train_infer_diff_seq_mask train_infer_diff_seq_threshold_low train_infer_diff_seq_threshold_high custom_envs
train_env_manager val_env_manager reward_normalization env_monitor batch_adjust_mode episode_reward_weight
step_reward_weight step_reward_gamma ratio_type exp_mode partial_gpu_mode parse_tool_call_parameter_to_dict
skip_mock_system_prompt dirty_data_mask open_feedback_turn use_token_reward is_pure_opd use_opd pure_opd_pipeline_type
teacher student_train student_infer"""
"""The top-level keys of ROLL's RLVR and agentic dataclasses, and those that its example files write although none has them."""

_WORKER = """name worker_cls pg_variant model_args training_args data_args generating_args strategy_args world_size
device_mapping num_gpus_per_worker model_update_frequency infer_batch_size backend_timeout system_envs
topr_positive_weight topr_negative_weight max_concurrency use_dynamic_batching_in_train use_dynamic_batching_in_infer
max_tokens_per_microbatch_in_train max_tokens_per_microbatch_in_infer sequence_length_round_in_train
sequence_length_round_in_infer offload_nccl use_sequence_packing sequence_packing_args use_remove_padding
logits_in_fp32 router_replay apply_loss_scale mtp_training_mode opd_kl_coef tag_included"""

_MODEL = """model_name_or_path adapter_name_or_path attn_implementation flash_attn moe_aux_loss_coef
disable_gradient_checkpointing gradient_checkpointing_use_reentrant device_map dtype model_type num_labels
model_config_kwargs freeze_module_prefix ulysses_size vision_dp lora_rank lora_alpha lora_dropout lora_target
additional_target autocast_adapter_dtype"""

_TRAINING = """output_dir max_steps num_train_epochs learning_rate lr_scheduler_type weight_decay adam_beta1 adam_beta2
per_device_train_batch_size gradient_accumulation_steps seed data_seed dataloader_num_workers fp16 bf16 tf32
warmup_ratio warmup_steps save_hf_model"""

_GENERATING = """do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty
num_return_sequences stop_strings include_stop_str_in_output logprobs"""

_DATA = """template domain_interleave_probs preprocessing_num_workers cache_path file_name eval_file_name dataset_type
dataset_dir interleave_probs tag id prompt response messages image_folder video_folder audio_folder image_max_pixels
image_min_pixels video_max_pixels video_min_pixels video_fps video_maxlen custom_data_kwargs_func"""

_ENV_MANAGER = """name worker_cls model_args data_args generating_args strategy_args world_size system_envs
infer_batch_size llm_proxy num_env_groups group_size group_size_redundancy tags num_groups_partition max_traj_per_env
format_penalty max_env_num_per_worker group_filter_cls"""

SURFACE: dict[str, str] = {
    "": ROLLS_KEYS,
    "router_args": "router_name router_config max_running_requests",
    "train_infer_correction": "is_weight filters",
    "train_infer_correction.is_weight": "enabled weight_type upper_bound detach",
    "train_infer_correction.filters": "enabled agg_type ratio_enabled ratio_low ratio_high diff_enabled diff_low diff_high",
    "actor_train": _WORKER,
    "actor_infer": _WORKER,
    "reference": _WORKER,
    "critic": _WORKER,
    "actor_train.model_args": _MODEL,
    "actor_infer.model_args": _MODEL,
    "reference.model_args": _MODEL,
    "critic.model_args": _MODEL,
    "actor_train.training_args": _TRAINING,
    "critic.training_args": _TRAINING,
    "actor_infer.generating_args": _GENERATING,
    "actor_train.data_args": _DATA,
    "actor_train.strategy_args": "strategy_name strategy_config",
    "actor_infer.strategy_args": "strategy_name strategy_config",
    "reference.strategy_args": "strategy_name strategy_config",
    "critic.strategy_args": "strategy_name strategy_config",
    "<role>.strategy_args.strategy_config": """fsdp_size param_dtype reduce_dtype reshard_after_forward offload_policy
reduce_scatter_during_grad_accumulation ep_size efsdp_size moe_use_grouped_mm apply_tiled_mlp tiled_num_shards
async_save_ckpt save_only_model""",
    "validation": "data_args generating_args eval_steps model_args strategy_args device_mapping worker_cls infer_batch_size "
    "world_size training_args",
    "validation.data_args": _DATA,
    "validation.generating_args": _GENERATING,
    "rewards.<name>": """worker_cls world_size tag_included query_filter_config response_filter_config code_url use_local
judge_prompt judge_model_type judge_model_name judge_api_url judge_api_key format_pattern reward_type
response_length_penalty_coef reward_manager_config model_args data_args generating_args training_args strategy_args
device_mapping infer_batch_size num_gpus_per_worker system_envs name max_concurrency backend_timeout""",
    "rewards.<name>.query_filter_config": "type filter_args",
    "rewards.<name>.query_filter_config.filter_args": "threshold_up threshold_down std_threshold",
    "custom_envs.<name>": """env_type max_steps max_tokens_per_step env_manager_cls agent_runner_cls use_thread_lock
max_env_step_concurrent agent_system_template agent_template history_length env_config pre_step_template
next_step_template reward_template user_prompt_format tool_wrapper""",
    "train_env_manager": _ENV_MANAGER,
    "val_env_manager": _ENV_MANAGER,
    "reward_normalization": "grouping method norm_mean_type norm_std_type global_scale_factor global_shift_value",
}


def keys() -> list[str]:
    """Dotted paths, in the order of the table."""
    return [f"{block}.{name}" if block else name for block, names in SURFACE.items() for name in names.split()]
