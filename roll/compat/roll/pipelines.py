"""Which pipeline a configuration is for: the one that was started, unless its keys say otherwise; ROLL's pipelines that are not
here are refused by name. And which of its top-level keys are no settings: they only feed `${...}`, or are definitions that an
included file offers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from roll.core.configs.agentic import AgenticConfig, EnvConfig
from roll.core.configs.fields import hints
from roll.core.configs.problems import ConfigError, Problem, did_you_mean
from roll.core.configs.rlvr import RLVRConfig

Pipeline = Literal["rlvr", "agentic"]

AGENTIC_KEYS = ("custom_envs", "train_env_manager", "val_env_manager", "reward_normalization", "env_monitor", "batch_adjust_mode")

_OTHERS = {
    "distillation": ("student", "student_pretrain", "teacher_pretrain", "distill_loss_weight", "kd_objective"),
    "on-policy distillation": ("student_train", "student_infer", "is_pure_opd", "use_opd", "opsd_mode", "teacher"),
    "DPO": ("chosen_key", "rejected_key"),
    "SFT": ("sft_train",),
}
_DIFFUSION = ("diffusion_module", "diffusion_deepspeed_train")
# A model's name as in Qwen2.5-VL-7B-Instruct; a template as in qwen2-vl; a class as in VLTrajEnvManager.
_VISION_NAME = re.compile(r"(^|[-_/.0-9])(vl|omni)([-_/.]|$)", re.IGNORECASE)
_VISION_VALUES = {
    "pretrain": _VISION_NAME,
    "model_name_or_path": _VISION_NAME,
    "template": _VISION_NAME,
    "env_manager_cls": re.compile(r"\.VL\w*EnvManager$"),
    "render_mode": re.compile(r"rgb_array$"),
}
_VISION_KEYS = ("limit_mm_per_prompt", "disable_mm_preprocessor_cache", "image_folder", "video_folder", "audio_folder")
_SENSES, _DIFFUSION_NAME, _COMPUTER_NAME = "models that see or hear", "diffusion models", "computer use"
_COMPUTER = re.compile(r"computer|osworld|android|browser", re.IGNORECASE)

OTHER_PIPELINE = "belongs to a pipeline that is not supported"
REFUSED = {name: ", ".join(f"`{key}`" for key in keys) for name, keys in _OTHERS.items()} | {
    _DIFFUSION_NAME: ", ".join(f"`{value}`" for value in _DIFFUSION),
    _SENSES: "a model or template named VL or Omni, a VL env manager, options of images",
    _COMPUTER_NAME: "the name of an `env_type`",
}
"""Pipelines of ROLL that are not here, and the keys that identify them."""


def pipeline_of(mapping: Mapping[str, object], started: Pipeline | None = None) -> Pipeline:
    """`started`: the pipeline that the user named; it decides where no key does. Raises `ConfigError` with one problem for a
    pipeline that is not here."""
    for problem in _refused(mapping):
        raise ConfigError([problem])
    agentic = next((key for key in AGENTIC_KEYS if mapping.get(key)), None)
    if agentic and mapping.get("rewards"):
        message = f"is for RLVR, and {agentic} for the agentic pipeline: they exclude each other"
        raise ConfigError([Problem("rewards", mapping["rewards"], message, "remove one: environments give their own rewards")])
    if agentic or any(key in mapping for key in AGENTIC_KEYS):
        return "agentic"
    if mapping.get("rewards") or _has_prompts(mapping):
        return "rlvr"
    return started or _by_lengths(mapping)


def _by_lengths(mapping: Mapping[str, object]) -> Pipeline:
    """Guesses where nobody says, and neither prompts nor environments are written: an episode has one length, a prompt and its
    response have two."""
    rlvr, agentic = hints(RLVRConfig).keys(), hints(AgenticConfig).keys()
    if mapping.keys() & (rlvr - agentic):
        return "rlvr"
    return "agentic" if mapping.keys() & (agentic - rlvr) or mapping.get("sequence_length") else "rlvr"


def of_others(name: str, cls: object) -> str:
    """The runs to which a key belongs that this kind lacks; else empty."""
    if cls is AgenticConfig:
        return "it belongs to RLVR runs" if name in hints(RLVRConfig) else ""
    if name in hints(EnvConfig):
        return f"it belongs to agentic runs: custom_envs.<tag>.{name}"
    return "it belongs to agentic runs" if name in hints(AgenticConfig) else ""


def _has_prompts(mapping: Mapping[str, object]) -> bool:
    actor = mapping.get("actor_train")
    data = actor.get("data_args") if isinstance(actor, Mapping) else None
    return isinstance(data, Mapping) and any(data.get(name) for name in ("file_name", "path"))


def _refused(mapping: Mapping[str, object]) -> Iterator[Problem]:
    for name, keys in _OTHERS.items():
        for key in keys:
            if mapping.get(key):
                yield _problem(key, mapping[key], name)
    for key, value in _leaves(mapping, ""):
        name = key.rpartition(".")[2]
        if value in _DIFFUSION:
            yield _problem(key, value, _DIFFUSION_NAME)
        if name in _VISION_KEYS or (name in _VISION_VALUES and isinstance(value, str) and _VISION_VALUES[name].search(value)):
            yield _problem(key, value, _SENSES)
        if name == "env_type" and isinstance(value, str) and _COMPUTER.search(value):
            yield _problem(key, value, _COMPUTER_NAME)


def _problem(key: str, value: object, pipeline: str) -> Problem:
    return Problem(key, value, f"{OTHER_PIPELINE}: {pipeline}", "RLVR and agentic text pipelines are")


def _leaves(mapping: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    for name, value in mapping.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, key)
        yield key, value


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
