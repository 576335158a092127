"""Objective of a configuration, in formulas with its own numbers: the policy loss and its surroundings.

ℓ is the log-prob of a token under the current weights, ℓ_b under the policy that sampled it, ℓ_p under the weights a step starts
from (recomputed), ℓ_r under the reference, ℓ_T under the teacher. The code is `roll.core.algorithms.pg_variants`, `loss`,
`correction`, `distillation` and `sequence_advantages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import Derived
from roll.core.configs.estimators import ESTIMATORS, STEP_ESTIMATORS, WHITENED
from roll.core.configs.losses import (
    DECOUPLED_BOUND,
    POLICY_LOSSES,
    CorrectionFilterConfig,
    CorrectionLevel,
    KLEstimator,
    LossAggregation,
    TrainInferCorrectionConfig,
    anchor_of,
)
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.rlvr import RLVRConfig

AGGREGATIONS: dict[LossAggregation, str] = {
    "token-mean": "Σ L_t / all trained tokens of the optimiser batch",
    "seq-mean-token-sum": "mean over sequences of Σ_y L_t",
    "seq-mean-token-mean": "mean over sequences of mean_y L_t",
    "seq-mean-token-sum-norm": "mean over sequences of Σ_y L_t / {length}",
    "rollout-mean": "mean over rollouts of the mean of L_t over all sequences of one",
}
_KL: dict[KLEstimator, str] = {
    "k1": "−d",
    "k2": "d²/2",
    "k3": "e^d − 1 − d",
    "abs": "|d|",
}
_LEVELS: dict[CorrectionLevel, str] = {
    "token": "ρ_t",
    "segment": "exp(mean_turn log ρ)",
    "geometric": "exp(mean_y log ρ)",
    "sequence": "Π_y ρ",
}
_DIFFERENCES: dict[CorrectionLevel, str] = {
    "token": "p − p_b",
    "segment": "mean_turn(p − p_b)",
    "geometric": "mean_y(p − p_b)",
    "sequence": "Σ_y(p − p_b)",
}
_GROUPINGS = {"batch": "all episodes", "tags": "the tag", "traj_group_id": "the group", "state": "turns from the same state"}


@dataclass(frozen=True, slots=True)
class LossFormula:
    """The terms of the loss, one line each; empty where the configuration has no such term."""

    total: str
    policy: str
    ratio: str
    weight: str
    left_out: str
    aggregation: str
    kl: str
    entropy: str
    advantage: str
    masks: str
    divergence: str = ""


def loss_formula(config: PPOConfig, derived: Derived) -> LossFormula:
    variant = config.actor_train.pg_variant
    weight = _weight(config, derived)
    terms = [f"mean({'w·' if weight else ''}L_t)"]
    if config.use_kl_loss:
        terms.append(f"+ {config.kl_loss_coef:g}·mean(KL_t)")
    if config.entropy_loss_coef:
        terms.append(f"− {config.entropy_loss_coef:g}·mean(H_t)")
    if diverges := bool(config.teachers) and config.distillation.beta is not None:
        terms.append(f"+ mean({teacher_weights(config)[0]}·D_t)")
    return LossFormula(
        total=" ".join(terms),
        policy=POLICY_LOSSES[variant].formula(derived.policy_loss) if variant in POLICY_LOSSES else f"your {variant}",
        ratio=_ratio(variant, derived),
        weight=weight,
        left_out="; ".join(_left_out(config.train_infer_correction)),
        aggregation=AGGREGATIONS[config.loss_agg_mode].format(length=derived.response_length),
        kl=_kl(config) if config.use_kl_loss else "",
        entropy="H_t of the whole distribution at the sampling temperature" if config.entropy_loss_coef else "",
        advantage=", ".join(_advantage(config, derived)),
        masks="; ".join(_masks(config)),
        divergence=divergence_formula(config) if diverges else "",
    )


def _ratio(variant: str, derived: Derived) -> str:
    if variant in POLICY_LOSSES and POLICY_LOSSES[variant].uncorrected:
        return "none: samples of older versions are not corrected for" if derived.staleness_bound else "none"
    to_step = derived.recompute_old_logprobs and anchor_of(variant) == "step"
    return "r = exp(ℓ − ℓ_p)" if to_step else "r = exp(ℓ − ℓ_b)"


def _weight(config: PPOConfig, derived: Derived) -> str:
    configured, trained = config.train_infer_correction.is_weight, "ℓ_p" if derived.recompute_old_logprobs else "sg(ℓ)"
    where = f"ρ = exp({trained} − ℓ_b)"
    if configured.enabled:
        ratio = _LEVELS[configured.weight_type]
        if configured.mode == "mask":
            return f"w = {ratio} within [{configured.lower_bound:g}, {configured.upper_bound:g}], 0 outside, {where}"
        return f"w = min({ratio}, {configured.upper_bound:g}), {where}"
    decoupled = derived.recompute_old_logprobs and anchor_of(config.actor_train.pg_variant) == "step"
    return f"w = min(ρ_t, {DECOUPLED_BOUND:g}), {where} (recomputed log-probs always are weighed)" if decoupled else ""


def _left_out(correction: TrainInferCorrectionConfig) -> Iterator[str]:
    for rule in correction.filters:
        if rule.enabled:
            yield f"tokens unless {' and '.join(_ranges(rule))}"
    if correction.veto_threshold is not None:
        yield f"responses with any ρ_t < {correction.veto_threshold:g}"


def _ranges(rule: CorrectionFilterConfig) -> Iterator[str]:
    if rule.ratio_enabled:
        yield f"{rule.ratio_low:g} <= {_LEVELS[rule.agg_type]} <= {rule.ratio_high:g}"
    if rule.diff_enabled:
        yield f"{rule.diff_low:g} <= {_DIFFERENCES[rule.agg_type]} <= {rule.diff_high:g}"


def _kl(config: PPOConfig) -> str:
    name = cast(KLEstimator, config.kl_loss_type.removesuffix("+"))
    through = " (with the gradient of d²/2)" if name != config.kl_loss_type else ""
    clamped = "" if config.kl_loss_clamp is None else f", clipped to ±{config.kl_loss_clamp:g}"
    return f"KL_t = {_KL[name]}{clamped}, d = ℓ_r − ℓ{through}"


def _advantage(config: PPOConfig, derived: Derived) -> Iterator[str]:
    """Yields the steps from rewards to advantages, in their order."""
    yield from _normalised(config)
    if not config.uses_critic:
        yield _estimated(config)
    if config.reward_clip is not None:
        yield f"{'R' if config.uses_critic else 'A'} clipped to ±{config.reward_clip:g}"
    if config.add_token_level_kl:
        adaptive = f", adapted to {config.target_kl:g} per token" if config.target_kl is not None else ""
        clipped = "" if config.reward_clip is None else f", clipped to ±{config.reward_clip:g}"
        yield f"minus {config.init_kl_coef:g}·({_KL[config.kl_penalty]}) on each token{clipped}{adaptive}"
    if config.whiten_rewards:
        yield "token rewards / std of the batch"
    if config.uses_critic:
        yield _estimated(config)
    elif config.gamma != 1:
        yield f"discounted by {config.gamma:g} per {'turn' if config.multi_turn else 'token'}"
    if config.adv_estimator in WHITENED:
        yield "whitened over the tokens of the batch"
    elif config.whiten_advantages:
        by_domain = len(config.domain_weights) > 1 and not config.multi_turn
        yield f"whitened over the tokens of {'each domain' if by_domain else 'the batch'}"
    if config.teachers and config.distillation.beta is None:
        weight, weights = teacher_weights(config)
        yield f"plus {weight}·(ℓ_T − {'ℓ_p' if derived.recompute_old_logprobs else 'ℓ_b'}) on each token{weights}"
    if config.advantage_clip is not None:
        yield f"A clipped to ±{config.advantage_clip:g}"


def teacher_weights(config: PPOConfig) -> tuple[str, str]:
    """Returns the weight of teachers, and its values where it is no single number."""

    def weight(value: float | list[float]) -> str:
        return f"{value[0]:g} to {value[1]:g}" if isinstance(value, list) else f"{value:g}"

    known = [(weight(teacher.opd_kl_coef), name) for name, teacher in config.teachers.items()]
    if len({each for each, _ in known}) == 1 and " " not in known[0][0]:
        return known[0][0], ""
    return "c", f", c = {', '.join(f'{each} ({name})' for each, name in known)}"


def divergence_formula(config: PPOConfig) -> str:
    given, (_, weights) = config.distillation, teacher_weights(config)
    beta = f"{given.kd_beta:g}"
    formula = {
        "forward_kl": "Σ p·(log p − log π)",
        "reverse_kl": "Σ π·(log π − log p)",
        "js_divergence": f"{beta}·Σ p·log(p/m) + {1 - given.kd_beta:g}·Σ π·log(π/m), m = {beta}·p + {1 - given.kd_beta:g}·π",
    }[given.kd_objective]
    over = f"over the teacher's {given.logits_topk:,} most probable tokens and all others as one"
    return f"D_t = {formula}, {over}; π: the policy, p: the teacher{weights}"


def _normalised(config: PPOConfig) -> Iterator[str]:
    if config.adv_estimator in STEP_ESTIMATORS:
        return
    mean, std = config.reward_scopes.values()
    group = _GROUPINGS[config.reward_normalization.grouping] if isinstance(config, AgenticConfig) else "the group"
    over = {"group": group, "batch": "the batch", "running": "all so far"}
    if mean is not None:
        yield f"R − mean over {over[mean]}"
    if std is not None:
        yield f"R / (std over {over[std]} + 1e-6)"


def _estimated(config: PPOConfig) -> str:
    if config.adv_estimator not in ESTIMATORS:
        return f"A by {config.adv_estimator}"
    discount = "" if config.gamma == 1 else f"{config.gamma:g}·"
    numbers = {"decay": config.gamma * config.lambd, "gamma": discount}
    return ESTIMATORS[config.adv_estimator].formula.format(**numbers, **_of_turns(config))


def _of_turns(config: PPOConfig) -> dict[str, str | float]:
    """Returns the further terms of the formulas of turn estimators."""
    if not isinstance(config, AgenticConfig):
        return {}
    configured = config.reward_normalization
    over = {"group": _GROUPINGS[configured.grouping], "batch": "all turns"}
    centred = f"− mean over {over[configured.norm_mean_type]}" if configured.norm_mean_type else "no mean"
    scaled = f"/ std over {over[configured.norm_std_type]}" if configured.norm_std_type else "no std"
    return {
        "returns": f"G = r + {config.step_reward_gamma:g}·G of the next turn",
        "normed": f"N: {centred}, {scaled}",
        "episode": config.episode_reward_weight,
        "step": config.step_reward_weight,
    }


def _masks(config: PPOConfig) -> Iterator[str]:
    if isinstance(config, RLVRConfig):
        if config.adv_estimator == "raft":
            best = config.raft_best
            kept = "succeed" if best is None else f"are the best {best} of their group"
            yield f"responses are left out unless they {kept}"
        if config.max_len_mask:
            yield "responses cut off at the length limit are left out"
        if config.difficulty_mask:
            low, high = config.difficulty_low_threshold, config.difficulty_high_threshold
            yield f"groups are left out unless {low:g} < mean reward < {high:g}"
    if config.multi_turn:
        yield "tokens of the environment are left out"
