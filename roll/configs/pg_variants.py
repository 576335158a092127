"""The built-in policy losses by name, and what a configuration has to know of them."""

from __future__ import annotations

from roll.configs.ppo import PPOConfig

WITHOUT_RATIO = ("vanilla", "reinforce", "gpg", "opmd", "asymre", "kimi15")
"""Their policy gradient has no importance weight of its own."""
UNCORRECTED = tuple(name for name in WITHOUT_RATIO if name != "kimi15")
"""Nothing in them corrects for samples of an older policy; kimi15 penalises the distance from the sampler."""
WITH_RATIO = (
    "ppo",
    "gspo",
    "gmpo",
    "sapo",
    "tis",
    "topr",
    "cispo",
    "vespo",
    "dppo_tv",
    "dppo_kl",
    "decoupled_ppo",
    "m2po",
)
PG_VARIANTS = (*WITHOUT_RATIO, *WITH_RATIO)
NEED_PROXIMAL = ("decoupled_ppo", "m2po")
"""They need the log-probs of the step's first weights."""


def old_logprobs_recomputed(config: PPOConfig) -> tuple[bool, str]:
    """Whether log-probs are recomputed at the start of a step, and why."""
    variant = config.actor_train.pg_variant
    if config.enable_old_logprobs_recompute:
        return True, "enable_old_logprobs_recompute"
    if config.old_logprobs != "auto":
        return config.old_logprobs == "recompute", f"old_logprobs: {config.old_logprobs}"
    if variant in NEED_PROXIMAL:
        return True, f"pg_variant {variant} needs them"
    if variant in WITHOUT_RATIO:
        return False, f"pg_variant {variant} takes no ratio to them"
    if config.train_infer_correction.is_weight.enabled:
        return True, f"is_weight weighs them against the sampler's, pg_variant {variant} takes its ratio to them"
    return False, f"pg_variant {variant} takes its ratio to the sampler's"
