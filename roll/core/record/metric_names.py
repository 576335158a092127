"""The names of metrics that runs have."""

from __future__ import annotations

_SPREAD = ("mean", "max", "min")
_OPTIMISER = ("grad_norm", "lr", "skipped_steps", "optimiser_steps")

OF_PAIRS = ("loss", "accuracy", "margin")

OF_EVERY_RUN = (
    *(f"{name}/{part}" for name in ("critic/score", "critic/rewards", "critic/advantages", "rewards") for part in _SPREAD),
    *(f"tokens/response_length/{part}" for part in ("mean", "max", "clip")),
    *(f"staleness/{name}" for name in ("max", "mean", "token_mean", "engines_behind")),
    *(f"scheduler/{name}" for name in ("pipeline_depth", "buffered_groups", "in_flight_groups")),
    *(f"scheduler/{name}" for name in ("dropped_groups", "reused_groups")),
    *("throughput/response_tokens_per_s", "time/*_s", "memory/*_rss_mb", "memory/*_device_peak_mb"),
    *(f"actor_train/{name}" for name in _OPTIMISER),
    *(f"actor/{name}" for name in ("ratio_mean", "ratio_max", "approxkl", "behaviour_kl", "ess", "pg_loss", "total_loss")),
    *(f"actor/train_infer_{name}" for name in ("kl", "k3", "chi2_token", "chi2_sequence", "ppl_ratio", "prob_diff_mean")),
    *(f"actor/train_infer_{name}" for name in ("prob_diff_max", "pearson", "ess_token", "ess_sequence", "ratio_token_mean")),
    *("actor/engine_mismatch", "actor/engine_mismatch_max", "actor/engine_mismatch_k3", "actor/engine_mismatch/[0-9]*"),
    *("actor/behaviour_not_finite", "actor/entropy", "actor/gradient_left/*"),
)
"""Patterns of the names of metrics."""
OF_SOME_RUNS: dict[str, tuple[str, ...]] = {
    "use_kl_loss or add_token_level_kl": ("actor/kl_loss",),
    "add_token_level_kl": ("critic/kl", "critic/kl_coef"),
    "teachers": ("teacher/kl", "teacher/token_share", "teacher/weight"),
    "a divergence from teachers": ("actor/divergence",),
    "an adv_estimator that compares the rollouts of a group": ("rewards/groups_without_signal",),
    "adv_estimator gae": (
        *("critic/value_loss", "critic/values/mean", "critic/returns/mean", "critic/explained_variance"),
        *(f"critic/{name}" for name in _OPTIMISER),
    ),
    "value_clip": ("critic/value_clipfrac",),
    "train_infer_correction or recomputed log-probs": (
        *("actor/is_weight_mean", "actor/is_weight_max", "actor/is_weight_ess", "actor/train_infer_final_mask_mean"),
    ),
    "actor_log_prob": ("staleness/proximal_lag",),
    "keep_sampling_mask with top_p or top_k": ("tokens/kept_set/mean",),
    "router_replay": ("actor/router_replay_changed",),
    "a validation set": ("val/*", "val_correct/*", "eval/*"),
    "an agentic run": ("env/*",),
    "pairs of answers": tuple(f"pairs/{name}" for name in OF_PAIRS),
    "mode train": ("scheduler/explorers",),
}
"""Requirement of a run for these metrics -> patterns."""
