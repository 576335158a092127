"""Top-level keys that are no settings: they only feed `${...}`, or are definitions that an included file offers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from roll.configs.fields import hints
from roll.configs.problems import did_you_mean

# `${a}`, `${a.b[0]}`; not the call of a resolver, `${oc.env:NAME}`, whose arguments may hold such a reference.
_REFERENCE = re.compile(r"\$\{\s*([\w-]+)(?:[.\[][^{}:]*)?\s*\}")

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
skip_mock_system_prompt dirty_data_mask open_feedback_turn use_token_reward"""
"""The top-level keys of ROLL's RLVR and agentic dataclasses, and those that its example files write although none has them."""


def references_in(value: object) -> set[str]:
    """The top-level keys that `${...}` names anywhere in an unresolved configuration."""
    if isinstance(value, Mapping):
        return set[str]().union(*map(references_in, value.values()))
    if isinstance(value, list):
        return set[str]().union(*map(references_in, value))
    return set(_REFERENCE.findall(value)) if isinstance(value, str) else set()


def variables_of(mapping: Mapping[str, object], cls: object, references: Collection[str], included: Collection[str]) -> set[str]:
    """Keys that are neither of this project nor of ROLL, and that something refers to or an included file brings.

    `included`: top-level keys of the files in the defaults list. One that is spelt almost like a key that is not given is none:
    a typo."""
    known = {*hints(cls), *ROLLS_KEYS.split()}
    absent = known - mapping.keys()
    return {
        key
        for key in mapping.keys() - known
        if key in references or (key in included and not did_you_mean(key, absent, cutoff=0.85))
    }
