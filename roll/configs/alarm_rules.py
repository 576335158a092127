"""Rules of alarms: each has a range, and a metric that the run will have."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import escape

from roll.configs.agentic import AgenticConfig
from roll.configs.base import AlarmConfig
from roll.configs.derived import keeps_sampling_mask, old_logprobs_recomputed
from roll.configs.losses import POLICY_LOSSES, anchor_of
from roll.configs.ppo import PPOConfig
from roll.configs.problems import MISSING_VALUE, Problem, did_you_mean

_SPREAD = ("mean", "max", "min")
_OPTIMISER = ("grad_norm", "lr", "skipped_steps", "optimiser_steps")

OF_EVERY_RUN = (
    *(f"{name}/{part}" for name in ("critic/score", "critic/rewards", "critic/advantages", "rewards") for part in _SPREAD),
    *("rewards/groups_without_signal", *(f"tokens/response_length/{part}" for part in ("mean", "max", "clip"))),
    *(f"staleness/{name}" for name in ("max", "mean", "token_mean", "engines_behind")),
    *(f"scheduler/{name}" for name in ("pipeline_depth", "buffered_groups", "in_flight_groups")),
    *(f"scheduler/{name}" for name in ("dropped_groups", "replayed_groups")),
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
    "a validation set": ("val/*", "val_correct/*", "eval/*"),
    "an agentic run": ("env/*",),
    "mode train": ("scheduler/explorers",),
}
"""What a run needs to have them -> patterns."""


def alarm_problems(config: PPOConfig) -> Iterator[Problem]:
    names = [*OF_EVERY_RUN, *_of_this(config)]
    for index, alarm in enumerate(config.alarms):
        yield from _range(alarm, f"alarms[{index}]")
        if not _among(alarm.metric, names):
            yield _unknown(alarm.metric, f"alarms[{index}].metric", names)


def _range(alarm: AlarmConfig, key: str) -> Iterator[Problem]:
    above, below = alarm.above, alarm.below
    if above is None and below is None:
        yield Problem(key, MISSING_VALUE, f"{alarm.metric} has no range to leave", "above: <number>, or below: <number>")
    elif above is not None and below is not None and below >= above:
        message = f"every value is below {below:g} or above {above:g}: in range is what lies from below to above"
        yield Problem(f"{key}.below", below, message, f"less than {above:g}")


def _of_this(config: PPOConfig) -> Iterator[str]:
    correction = config.train_infer_correction
    decoupled = old_logprobs_recomputed(config)[0] and anchor_of(config.actor_train.pg_variant) == "step"
    corrects = correction.is_weight.enabled or any(each.enabled for each in correction.filters)
    has = {
        "use_kl_loss or add_token_level_kl": config.uses_reference,
        "add_token_level_kl": config.add_token_level_kl,
        "adv_estimator gae": config.uses_critic,
        "value_clip": config.uses_critic and config.value_clip is not None,
        "train_infer_correction or recomputed log-probs": decoupled or corrects or correction.veto_threshold is not None,
        "actor_log_prob": config.actor_log_prob is not None,
        "keep_sampling_mask with top_p or top_k": keeps_sampling_mask(config),
        "a validation set": bool(config.validation_sampling),
        "an agentic run": isinstance(config, AgenticConfig),
        "mode train": config.mode != "both",
    }
    for need, patterns in OF_SOME_RUNS.items():
        if has[need]:
            yield from patterns
    own = POLICY_LOSSES.get(config.actor_train.pg_variant)
    yield from ("actor/*",) if own is None else (f"actor/{name}" for name in own.metrics)
    domains = [escape(domain) for domain in dict.fromkeys(config.tag_to_domain.values())]
    yield from (f"rewards/{domain}/*" for domain in domains)
    yield from (f"staleness/{domain}/mean" for domain in domains if len(domains) > 1)


def _among(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _unknown(name: str, key: str, known: list[str]) -> Problem:
    for need, patterns in OF_SOME_RUNS.items():
        if _among(name, [*patterns]):
            return Problem(key, name, f"no step of this run will have it: it needs {need}", f"{need}, or another metric")
    if losses := [loss for loss, entry in POLICY_LOSSES.items() if name.removeprefix("actor/") in entry.metrics]:
        return Problem(key, name, "the loss of this run does not have it", f"pg_variant {', '.join(losses)}, or another metric")
    fix = did_you_mean(name, [each for each in known if "*" not in each], "a name from metrics.jsonl of a run like this one")
    return Problem(key, name, "no step of this run will have it", fix)
