"""ROLL's top-level keys: the run, rewards to advantages, the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.rule import (
    DEAD_IN_ROLL,
    DROP,
    ENVIRONMENT,
    NO_CRITIC,
    RUN_FOLDER,
    KeyRule,
    Siblings,
    Translate,
    ignored,
    lacking,
    off_or_lacking,
    renamed,
    value_read_as,
)
from roll.core.configs.fields import hints
from roll.core.configs.losses import PG_CLIP
from roll.core.configs.worker import TeacherConfig

_SETS_ITS_OWN_NORM = ("grpo", "gigpo")


def _ranged(value: object, block: Siblings) -> bool:
    return block.get("use_pg_clip_range") is True


def _clip_range(block: Siblings) -> list[Any]:
    if _ranged(None, block):
        return [PG_CLIP if (end := block.get(f"pg_clip_{name}")) is None else end for name in ("low", "high")]
    clip = block.get("pg_clip", PG_CLIP)
    return clip if isinstance(clip, list) and len(clip) == 2 else [clip, clip]


def _switch(path: str, note: str, to: Translate, off: str, off_to: Translate = lambda v, b: {}) -> tuple[KeyRule, ...]:
    """A switch of ROLL's that is part of another key here."""
    return (
        KeyRule(path, "alias", note, to, lambda v, b: v is True, "true", absent=True),
        KeyRule(path, "alias", off, off_to, lambda v, b: v in (False, None), "false", absent=True),
        lacking(path, "must be true or false"),
    )


_KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
"""The names of the estimators in ROLL and verl."""


def _gspo(value: object, block: Siblings) -> dict[str, object]:
    """ROLL clips the sequence's ratio with the clip of PPO."""
    low, high = _clip_range(block)
    return {"actor_train.pg_variant": "gspo", "actor_train.gspo_clip_low": low, "actor_train.gspo_clip_high": high}


def _old_reward_norm(value: object, block: Siblings) -> dict[str, object]:
    value = None if value == "None" else value  # as ROLL's RAFT++ example has it
    shift, scale = bool(block.get("reward_shift")), bool(block.get("reward_scale"))
    return {"norm_mean_type": None if scale and not shift else value, "norm_std_type": None if shift and not scale else value}


def _old_mask(level: str, ratio: bool) -> Any:
    """A filter of train_infer_correction for one of the flat keys that preceded it; those of sequences took means."""
    kind, infix = "ratio" if ratio else "diff", "_seq" if level == "geometric" else ""

    def filters(value: Any, block: Siblings) -> dict[str, Any]:
        bounds = {
            f"{kind}_{end}": block[f"train_infer_{kind}{infix}_threshold_{end}"]
            for end in ("low", "high")
            if f"train_infer_{kind}{infix}_threshold_{end}" in block
        }
        rule = {"enabled": True, "agg_type": level, "ratio_enabled": ratio, "diff_enabled": not ratio, **bounds}
        return {"train_infer_correction.filters[]": rule}

    return filters


def _old_is_weight(value: object, block: Siblings) -> dict[str, object]:
    bound = block.get("rollout_importance_sampling_ratio_upper_bound", 1.2)
    return {"train_infer_correction.is_weight.enabled": True, "train_infer_correction.is_weight.upper_bound": bound}


PURE = "on_policy_distillation"


def _named(teachers: Mapping[str, Any]) -> bool:
    """True for several by name, False for one role."""
    return all(isinstance(value, Mapping) for value in teachers.values()) and not teachers.keys() & hints(TeacherConfig).keys()


def _is_on(value: object, block: Siblings) -> bool:
    return bool(value)


def _records_only(value: object, block: Siblings) -> bool:
    if not isinstance(value, Mapping):
        return value is None
    return value.get("enable", False) in (False, None) or value.get("mode", "dump") == "dump"


RUN = (
    *(rule for name in ("is_use_additional_prompts", "use_additional_prompts") for rule in _switch(
        name, "read as redundant_groups: max_additional_running_prompts, 16 where that is not given",
        lambda v, b: {"redundant_groups": b.get("max_additional_running_prompts", 16)}, "redundant_groups is 0")),
    KeyRule("max_additional_running_prompts", "alias", "read as redundant_groups", absent=True,
            when=lambda v, b: b.get("is_use_additional_prompts") is True or b.get("use_additional_prompts") is True,
            values="with is_use_additional_prompts"),
    ignored("max_additional_running_prompts", "is_use_additional_prompts is not true"),
    renamed("router_args.max_running_requests", "max_running_requests"),
    value_read_as("track_with", ("stdout",), "none", "the console always shows the run, so no tracker is needed"),
    value_read_as("track_with", ("trackio", "ml_tracker"), "none", "read as none: metrics.jsonl has every metric"),
    KeyRule(
        "eval_steps", "alias", "never: read as no validation", lambda v, b: {"validation": DROP, "val_batch_size": DROP,
        "val_env_manager": DROP}, lambda v, b: type(v) is int and v <= 0, "0 or less",
    ),
    ignored("logging_dir", RUN_FOLDER),
    ignored("base_dir", RUN_FOLDER),
    ignored("rollout_dump_dir", f"{RUN_FOLDER}; samples.jsonl has rollout_log_per_step rollouts of each step"),
    ignored("render_save_dir", DEAD_IN_ROLL),
    ignored("length_profiler_dir", DEAD_IN_ROLL),
    ignored("profiler_output_dir", RUN_FOLDER),
    ignored("otlp_output_dir", RUN_FOLDER),
    ignored("save_logging_board_dir", f"{RUN_FOLDER}; metrics.jsonl has every metric"),
    ignored("checkpoint_config", f"{RUN_FOLDER}; checkpoints are written there, nothing is uploaded"),
    ignored("system_envs", ENVIRONMENT),
    ignored("model_download_type", "names are those of the Hugging Face hub, or with the variable USE_MODELSCOPE=1 ModelScope's"),
    ignored("local_rank", DEAD_IN_ROLL),
    ignored("report_length_and_rewards", DEAD_IN_ROLL),
    ignored("val_greedy", DEAD_IN_ROLL),
    ignored("val_n_sample", DEAD_IN_ROLL),
    ignored("is_offload_states", "only ROLL's distillation and DPO read it"),
    ignored("is_offload_optimizer_states_in_train_step", "only ROLL's distillation and DPO read it"),
    ignored("generate_opt_level", "requests are always scheduled one by one (ROLL's level 1)"),
    *off_or_lacking("router_args.router_name", (None, "PromptAffinityRouter", "EnvAffinityRouter"),
                    "a group goes to the engine with the fewest requests and stays there; no other router is there"),
    ignored("router_args.router_config", "only ROLL's SglangRouter reads it"),
    KeyRule("router_args", "without effect", "nothing is written in it", when=lambda v, b: v in (None, {}), values="null"),
    # In agentic files; the fields are RLVR's.
    ignored("prompt_length", "an episode has sequence_length, for all its turns together"),
    KeyRule("response_length", "alias", "read as sequence_length: prompt_length + response_length",
         lambda v, b: {"sequence_length": b.get("prompt_length", 1024) + v} if isinstance(v, int) else {}, absent=True),
    ignored("num_return_sequences_in_group", "train_env_manager.group_size is the group's size"),
    ignored("is_num_return_sequences_expand", "episodes of a group are played on their own"),
    ignored("val_prompt_length", "validation prompts have prompt_length (ROLL prepares them with it, too)"),
    ignored("val_sequence_length", "validation has prompt_length and its generating_args.max_new_tokens"),
    *off_or_lacking("profiler_timeline", (False, None), "profiling is not there; remove it"),
    *off_or_lacking("profiler_memory", (False, None), "profiling is not there; remove it"),
    KeyRule("rollout_mock", "without effect", "rollout_log_per_step: all records every step, "
            "which roll replay trains again", when=_records_only, values="off, or mode: dump", absent=True),
    lacking("rollout_mock", "a run does not train on recorded rollouts: roll replay does, on those of rollout_log_per_step: all"),
    *off_or_lacking(
        "transfer_backend", (None, {}, {"backend_name": None}), "batches go through the pipeline's own buffer; remove it"
    ),
    *off_or_lacking(
        "user_defined_rollout_loop_cls",
        (None, "roll.distributed.scheduler.user_defined_rollout_loop.UserDefinedRolloutLoop"),
        "one of ROLL's form is not there; `rollout.function` names a coroutine of yours (rollouts.md)",
    ),
)  # fmt: skip

ALGORITHM = (
    *(
        KeyRule(
            f"norm_{kind}_type", "without effect", "the estimator normalises rewards itself; ROLL overwrites the key, too",
            when=lambda v, b: v is not None and b.get("adv_estimator") in _SETS_ITS_OWN_NORM, values="with grpo, gigpo",
        )
        for kind in ("mean", "std")
    ),
    # In agentic files; the fields are RLVR's.
    ignored("norm_mean_type", "reward_normalization.norm_mean_type counts"),
    ignored("norm_std_type", "reward_normalization.norm_std_type counts"),
    KeyRule("kl_penalty", "lacking", "needs the whole distribution of each token; use k1, k2, k3 or abs",
            when=lambda v, b: v == "full", values="full"),
    *(value_read_as(key, (f"{theirs}{sign}",), f"{ours}{sign}", f"read as {ours}{sign}")
      for key, signs in (("kl_penalty", ("",)), ("kl_loss_type", ("", "+"))) for sign in signs
      for theirs, ours in _KL_NAMES.items()),
    KeyRule("pg_clip", "alias", "read as [pg_clip_low, pg_clip_high], which counts with use_pg_clip_range",
            lambda v, b: {"pg_clip": _clip_range(b)}, _ranged, "with use_pg_clip_range"),
    *_switch("use_pg_clip_range", "read as pg_clip: [pg_clip_low, pg_clip_high]",
             lambda v, b: {} if "pg_clip" in b else {"pg_clip": _clip_range(b)}, "pg_clip is one number, or [low, high]"),
    *(rule for name in ("pg_clip_low", "pg_clip_high") for rule in (
        KeyRule(name, "alias", "part of pg_clip: [low, high]", when=_ranged, values="with use_pg_clip_range", absent=True),
        *off_or_lacking(name, (PG_CLIP, None), "has no effect without use_pg_clip_range: true; or write pg_clip: [low, high]"),
    )),
    *_switch("dual_clip_loss", "read as dual_clip_c: 3 where that is not given",
             lambda v, b: {"dual_clip_c": b.get("dual_clip_c") or 3.0}, "no bound", lambda v, b: {"dual_clip_c": DROP}),
    KeyRule("reward_norm", "alias", "none: read as norm_mean_type and norm_std_type null", _old_reward_norm,
            lambda v, b: v in (None, "None"), "null", absent=True),
    KeyRule("reward_norm", "alias", "read as norm_mean_type and norm_std_type, with reward_shift the mean only, with "
            "reward_scale the deviation only, as older releases of ROLL did; ROLL reads it no longer, and trains on raw rewards",
            _old_reward_norm, told=True),
    ignored("reward_shift", "read together with reward_norm"),
    ignored("reward_scale", "read together with reward_norm"),
    KeyRule("importance_sampling", "alias", "read as actor_train.pg_variant: gspo with the clip of PPO", _gspo,
         lambda v, b: v == "seq", "seq"),
    ignored("importance_sampling", "ratios are by token already"),
    KeyRule("force_disable_old_logprobs_recompute", "alias", "read as old_logprobs: bypass",
         lambda v, b: {"old_logprobs": "bypass"}, _is_on, "true"),
    KeyRule("enable_old_logprobs_recompute", "without effect", "force_disable_old_logprobs_recompute counts", absent=True,
         when=lambda v, b: bool(b.get("force_disable_old_logprobs_recompute")), values="where that is true"),
    *_switch("enable_old_logprobs_recompute", "read as old_logprobs: recompute", lambda v, b: {"old_logprobs": "recompute"},
             "old_logprobs decides"),
    ignored("force_disable_old_logprobs_recompute", "it changes nothing as it stands"),
    ignored("enable_reference", "the reference is started if use_kl_loss or add_token_level_kl needs it"),
    KeyRule("reward_pretrain", "alias", "the folder that the critic starts from",
         lambda v, b: {"critic.model_args.model_name_or_path": v},
         lambda v, b: b.get("adv_estimator") == "gae" and bool(b.get("critic")), "with adv_estimator: gae", absent=True),
    ignored("reward_pretrain", NO_CRITIC),
    *(KeyRule(name, "without effect", NO_CRITIC, when=lambda v, b: b.get("adv_estimator") != "gae", values="without gae")
      for name in ("critic", "critic_warmup", "value_clip", "lambd")),
    renamed("student_train", "actor_train"),
    renamed("student_infer", "actor_infer"),
    KeyRule("teacher", "alias", "read as `teachers`", lambda v, b: {"teachers" if _named(v) else "teachers.teacher": v},
            lambda v, b: isinstance(v, Mapping) and bool(b.get("is_pure_opd") or b.get("use_opd")),
            "with is_pure_opd or use_opd", absent=True),
    lacking("teacher", "ROLL starts it with is_pure_opd or use_opd alone; it is `teachers` here, each by its name: or remove it"),
    KeyRule("is_pure_opd", "lacking", "adv_estimator says it here: on_policy_distillation, or remove adv_estimator",
            when=lambda v, b: bool(v) and b.get("adv_estimator") not in (None, PURE), values="true with another adv_estimator"),
    *_switch("is_pure_opd", f"read as adv_estimator: {PURE}", lambda v, b: {"adv_estimator": PURE}, "adv_estimator decides"),
    ignored("use_opd", "teachers teach wherever they are given, beside rewards unless adv_estimator is on_policy_distillation"),
    ignored("pure_opd_pipeline_type", "rewards or custom_envs say it"),
    ignored("l2", DEAD_IN_ROLL + "; use actor_train.training_args.weight_decay"),
    *(ignored(name, DEAD_IN_ROLL) for name in (
        "use_reward_scaling", "add_len_reward", "use_reward_norm", "postive_loss_coef", "positive_loss_coef",
        "use_topr_neg_loss_coef", "use_policy_loss_type", "use_topr_loss", "mask_type", "balance_length",
        "minibatch_data_iter_num", "dataset_filter", "dirty_data_mask", "open_feedback_turn", "use_token_reward",
    )),
    *off_or_lacking("rl_loss_coef", (1, 1.0), "scaling the policy loss is not there; scale learning_rate and kl_loss_coef"),
    KeyRule("error_max_len_threshold", "alias", "it belongs to error_max_len_clip",
         lambda v, b: {".error_max_len_threshold": DROP}, lambda v, b: not b.get("error_max_len_clip"), "without it"),
    *off_or_lacking("difficulty_loss_weight", (False, None), "weighing samples is not there; use difficulty_mask"),
    *off_or_lacking("length_loss_weight", (False, None), "weighing samples is not there; choose loss_agg_mode"),
    ignored("train_infer_correction.is_weight.detach", "importance weights never carry a gradient"),
    KeyRule("train_infer_correction.is_weight.upper_bound", "alias", "read as .inf: no bound",
         lambda v, b: {".upper_bound": float("inf")}, lambda v, b: v is None, "null"),
    KeyRule("use_rollout_importance_sampling_ratio", "alias", "read as train_infer_correction.is_weight",
         _old_is_weight, _is_on, "true"),
    ignored("use_rollout_importance_sampling_ratio", "it changes nothing as it stands"),
    ignored("rollout_importance_sampling_ratio_upper_bound", "read together with use_rollout_importance_sampling_ratio"),
    *(
        rule
        for level, infix in (("token", ""), ("geometric", "_seq"))
        for kind in ("ratio", "diff")
        for rule in (
            KeyRule(f"train_infer_{kind}{infix}_mask", "alias", f"read as a filter of train_infer_correction by {level}",
                 _old_mask(level, kind == "ratio"), _is_on, "true"),
            ignored(f"train_infer_{kind}{infix}_mask", "it changes nothing as it stands"),
            ignored(f"train_infer_{kind}{infix}_threshold_low", f"read together with train_infer_{kind}{infix}_mask"),
            ignored(f"train_infer_{kind}{infix}_threshold_high", f"read together with train_infer_{kind}{infix}_mask"),
        )
    ),
)  # fmt: skip

RULES = (*RUN, *ALGORITHM)
