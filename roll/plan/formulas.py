"""What a configuration optimises, in formulas with its own numbers: one line a policy loss, and what stands around it.

ℓ is the log-prob of a token under the current weights, ℓ_b under the policy that sampled it, ℓ_p under the weights a step starts
from (recomputed), ℓ_r under the reference. The code is `roll.algorithms.pg_variants`, `loss`, `correction` and `advantages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from roll.configs.agentic import AgenticConfig
from roll.configs.correction import CorrectionFilterConfig, TrainInferCorrectionConfig
from roll.configs.derived import Derived
from roll.configs.estimators import STEP_ESTIMATORS
from roll.configs.ppo import PPOConfig
from roll.configs.rlvr import RLVRConfig
from roll.configs.worker import ActorTrainConfig

DECOUPLED_BOUND = 5.0
"""Where the weight of recomputed log-probs is truncated unless is_weight says otherwise (`roll.algorithms.correction`)."""


@dataclass(frozen=True, slots=True)
class Clip:
    """PPO's clip range and dual clip, as they act."""

    low: float
    high: float
    dual: float | None


def _ppo(knobs: ActorTrainConfig, clip: Clip) -> str:
    surrogate = f"min(r·A, clip(r, 1−{clip.low:g}, 1+{clip.high:g})·A)"
    return f"−{surrogate}" if clip.dual is None else f"−max({surrogate}, {clip.dual:g}·A) where A < 0, −{surrogate} elsewhere"


def _reinforce(knobs: ActorTrainConfig, clip: Clip) -> str:
    return "−A·ℓ"


def _topr(k: ActorTrainConfig, clip: Clip) -> str:
    ratio = "Π_y r" if k.topr_ratio_level == "sequence" else "r"
    good, bad = f"−{k.topr_positive_weight:g}·A·ℓ", f"−{k.topr_negative_weight:g}·sg(min({ratio}, 1))·A·ℓ"
    return f"{good} where the score is positive, {bad} elsewhere"


def _cispo(k: ActorTrainConfig, clip: Clip) -> str:
    masked = ", 0 where PPO would clip" if k.cispo_use_unified_mask else ""
    return f"−sg(clip(r, 1−{k.cispo_epsilon_low:g}, 1+{k.cispo_epsilon_high:g}))·A·ℓ{masked}"


def _vespo(k: ActorTrainConfig, clip: Clip) -> str:
    rise = f"W^{k.vespo_k_pos:g}·e^({k.vespo_lambda_pos:g}·(1−W)) where A >= 0"
    fall = f"W^{k.vespo_k_neg:g}·e^({k.vespo_lambda_neg:g}·(1−W)) elsewhere"
    return f"−sg(φ(W))·A·ℓ, W = Π_y r, φ(W) = {rise}, {fall}"


def _dppo_tv(k: ActorTrainConfig, clip: Clip) -> str:
    out = f"p − p_a > {k.dppo_tv_delta_high:g} where A > 0, p_a − p > {k.dppo_tv_delta_low:g} elsewhere"
    return f"−sg(min(r, {k.dppo_ratio_cap:g}))·A·ℓ, 0 if {out}"


def _dppo_kl(k: ActorTrainConfig, clip: Clip) -> str:
    out = f"KL(p_a‖p) > {k.dppo_kl_delta_high:g} and p has risen where A > 0, > {k.dppo_kl_delta_low:g} and fallen elsewhere"
    return f"−sg(min(r, {k.dppo_ratio_cap:g}))·A·ℓ, 0 if {out}"


POLICY_LOSSES: dict[str, Callable[[ActorTrainConfig, Clip], str]] = {
    "vanilla": _reinforce,
    "reinforce": _reinforce,
    "gpg": _reinforce,
    "opmd": lambda k, clip: f"−A·ℓ / (1 + {k.opmd_tau:g})",
    "asymre": lambda k, clip: f"−(A − ({k.asymre_baseline_shift:g}))·ℓ",
    "kimi15": lambda k, clip: f"−A·ℓ + {k.kimi15_tau:g}/2·(log r)²",
    "ppo": _ppo,
    "decoupled_ppo": _ppo,
    "gspo": lambda k, clip: f"−min(s·A, clip(s, 1−{k.gspo_clip_low:g}, 1+{k.gspo_clip_high:g})·A), s = exp(mean_y log r)",
    "gmpo": lambda k, clip: (
        f"−A·exp(mean_y c), c = min(log r, {k.gmpo_clip_high:g}) where A > 0, max(log r, −{k.gmpo_clip_low:g}) where A < 0"
    ),
    "sapo": lambda k, clip: f"−4/τ·σ(τ·(r − 1))·A, τ = {k.sapo_tau_pos:g} where A > 0, {k.sapo_tau_neg:g} elsewhere",
    "tis": lambda k, clip: f"−sg(clip(r, {k.tis_lower_bound:g}, {k.tis_upper_bound:g}))·A·ℓ",
    "topr": _topr,
    "cispo": _cispo,
    "vespo": _vespo,
    "dppo_tv": _dppo_tv,
    "dppo_kl": _dppo_kl,
    "m2po": lambda k, clip: f"−M·r·A, M leaves out outliers until the batch's mean (log r)² <= {k.m2po_threshold:g}",
}
"""L_t of each built-in variant, minimised. r ratio to the anchor policy a, A advantage, sg stop-gradient, y a whole sequence."""

_NO_RATIO = ("vanilla", "reinforce", "gpg", "opmd", "asymre")
_AGGREGATIONS = {
    "token-mean": "Σ L_t / all trained tokens of the optimiser batch",
    "seq-mean-token-sum": "mean over sequences of Σ_y L_t",
    "seq-mean-token-mean": "mean over sequences of mean_y L_t",
    "seq-mean-token-sum-norm": "mean over sequences of Σ_y L_t / {length}",
}
_KL = {"k1": "−d", "kl": "−d", "k2": "d²/2", "mse": "d²/2", "k3": "e^d − 1 − d", "abs": "|d|"}
_LEVELS = {"token": "ρ_t", "segment": "exp(mean_turn log ρ)", "geometric": "exp(mean_y log ρ)", "sequence": "Π_y ρ"}
_ESTIMATORS = {
    "grpo": "A = (R − group mean) / (group std + 1e-6)",
    "dr_grpo": "A = R − group mean",
    "rloo": "A = R − mean of the others of the group",
    "reinforce": "A = R",
    "reinforce_plus_plus": "A = R",
    "reinforce_plus_plus_baseline": "A = R − group mean",
    "opo": "A = R − Σ length·R / Σ length over the group",
    "remax": "A = R − reward of the greedy response",
    "gpg": "A = (R − group mean)·samples / samples of groups that differ",
}
_GROUPINGS = {"batch": "all episodes", "tags": "the tag", "traj_group_id": "the group", "state": "turns from the same state"}
_WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")


@dataclass(frozen=True, slots=True)
class LossFormula:
    """Each is one line; empty where the configuration has no such term."""

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


def loss_formula(config: PPOConfig, derived: Derived) -> LossFormula:
    knobs, variant = config.actor_train, config.actor_train.pg_variant
    clip = Clip(derived.pg_clip_low, derived.pg_clip_high, config.dual_clip_c if config.dual_clip_loss else None)
    weight = _weight(config, derived)
    terms = [f"mean({'w·' if weight else ''}L_t)"]
    if config.use_kl_loss:
        terms.append(f"+ {config.kl_loss_coef:g}·mean(KL_t)")
    if config.entropy_loss_coef:
        terms.append(f"− {config.entropy_loss_coef:g}·mean(H_t)")
    return LossFormula(
        total=" ".join(terms),
        policy=POLICY_LOSSES[variant](knobs, clip) if variant in POLICY_LOSSES else f"your {variant}",
        ratio=_ratio(variant, derived),
        weight=weight,
        left_out="; ".join(_left_out(config.train_infer_correction)),
        aggregation=_AGGREGATIONS[config.loss_agg_mode].format(length=derived.response_length),
        kl=_kl(config) if config.use_kl_loss else "",
        entropy="H_t of the whole distribution at the sampling temperature" if config.entropy_loss_coef else "",
        advantage=", ".join(_advantage(config)),
        masks="; ".join(_masks(config)),
    )


def _ratio(variant: str, derived: Derived) -> str:
    if variant in _NO_RATIO:
        return "none: samples of older versions are not corrected for" if derived.staleness_bound else "none"
    to_step = derived.recompute_old_logprobs and variant != "m2po"
    return "r = exp(ℓ − ℓ_p)" if to_step else "r = exp(ℓ − ℓ_b)"


def _weight(config: PPOConfig, derived: Derived) -> str:
    wish, trained = config.train_infer_correction.is_weight, "ℓ_p" if derived.recompute_old_logprobs else "sg(ℓ)"
    where = f"ρ = exp({trained} − ℓ_b)"
    if wish.enabled:
        ratio = _LEVELS[wish.weight_type]
        if wish.mode == "mask":
            return f"w = {ratio} within [{wish.lower_bound:g}, {wish.upper_bound:g}], 0 outside, {where}"
        return f"w = min({ratio}, {wish.upper_bound:g}), {where}"
    decoupled = derived.recompute_old_logprobs and config.actor_train.pg_variant != "m2po"
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
        mean = {"token": "p − p_b", "segment": "mean_turn(p − p_b)"}.get(rule.agg_type, "mean_y(p − p_b)")
        yield f"{rule.diff_low:g} <= {mean} <= {rule.diff_high:g}"


def _kl(config: PPOConfig) -> str:
    name = config.kl_loss_type.removesuffix("+")
    through = " (with the gradient of d²/2)" if name != config.kl_loss_type else ""
    return f"KL_t = {_KL[name]}, d = ℓ_r − ℓ{through}"


def _advantage(config: PPOConfig) -> Iterator[str]:
    """In the order in which it is done."""
    yield from _normalised(config)
    if config.reward_clip is not None:
        yield f"R clipped to ±{config.reward_clip:g}"
    if not config.uses_critic:
        yield _estimated(config)
    if config.add_token_level_kl:
        adaptive = f", adapted to {config.target_kl:g} a token" if config.target_kl is not None else ""
        clipped = "" if config.reward_clip is None else f", clipped to ±{config.reward_clip:g}"
        yield f"minus {config.init_kl_coef:g}·({_KL[config.kl_penalty]}) on each token{clipped}{adaptive}"
    if config.whiten_rewards:
        yield "token rewards / std of the batch"
    if config.uses_critic:
        gamma = "" if config.gamma == 1 else f"{config.gamma:g}·"
        yield f"A_t = δ_t + {config.gamma * config.lambd:g}·A_next, δ_t = r_t + {gamma}V_next − V_t, next of the policy's tokens"
    elif config.gamma != 1:
        yield f"discounted by {config.gamma:g} a {'turn' if isinstance(config, AgenticConfig) else 'token'}"
    if config.whiten_advantages or config.adv_estimator in _WHITENED:
        yield "whitened over the tokens of the batch"
    if config.advantage_clip is not None:
        yield f"A clipped to ±{config.advantage_clip:g}"


def _normalised(config: PPOConfig) -> Iterator[str]:
    if isinstance(config, RLVRConfig):
        mean, std, group = config.norm_mean_type, config.norm_std_type, "the group"
    elif isinstance(config, AgenticConfig) and config.adv_estimator not in STEP_ESTIMATORS:
        wish = config.reward_normalization
        mean, std, group = wish.norm_mean_type, wish.norm_std_type, _GROUPINGS[wish.grouping]
    else:
        return
    over = {"group": group, "batch": "the batch", "running": "all so far"}
    if mean is not None:
        yield f"R − mean over {over[mean]}"
    if std is not None:
        yield f"R / (std over {over[std]} + 1e-6)"


def _estimated(config: PPOConfig) -> str:
    name = config.adv_estimator
    if not isinstance(config, AgenticConfig) or name not in STEP_ESTIMATORS:
        return _ESTIMATORS.get(name, f"A by {name}")
    wish, gamma = config.reward_normalization, config.step_reward_gamma
    returns = f"G = r + {gamma:g}·G of the next turn"
    over = {"group": _GROUPINGS[wish.grouping], "batch": "all turns"}
    means, stds = wish.norm_mean_type, wish.norm_std_type
    normed = f"N: {f'− mean over {over[means]}' if means else 'no mean'}, {f'/ std over {over[stds]}' if stds else 'no std'}"
    if name == "gigpo":
        weights = config.episode_reward_weight, config.step_reward_weight
        return f"A = {weights[0]:g}·N(R of the episode) + {weights[1]:g}·N(G among equal states), {returns}, {normed}"
    return f"A = {'N(G)' if name == 'step_reinforce' else 'G'}, {returns}" + (f", {normed}" if name == "step_reinforce" else "")


def _masks(config: PPOConfig) -> Iterator[str]:
    if isinstance(config, RLVRConfig):
        if config.max_len_mask:
            yield "responses cut off at the length limit are left out"
        if config.difficulty_mask:
            low, high = config.difficulty_low_threshold, config.difficulty_high_threshold
            yield f"groups are left out unless {low:g} < mean reward < {high:g}"
    if isinstance(config, AgenticConfig):
        yield "tokens of the environment are left out"
