"""The built-in policy losses: name, knobs, traits and formula of each. A new one is an entry here and a function of its name in
`roll.core.algorithms.pg_variants`.

In the formulas ℓ is the log-prob of a token under the current weights, r = exp(ℓ − ℓ_a) the ratio to the anchor policy a, A the
advantage, p = e^ℓ, sg stop-gradient, y the trained tokens of a sequence. The loss of a token is minimised. The train/infer
correction is here, too: weights and filters for the distance to the behaviour policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Literal, get_args

from roll.core.configs.fields import Bounds, all_range_problems, option
from roll.core.configs.problems import ConfigError, Problem

RatioLevel = Literal["token", "sequence"]
Anchor = Literal["step", "behaviour", "none"]
LossAggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "rollout-mean"]
KLEstimator = Literal["k1", "k2", "k3", "abs"]
KLLossEstimator = Literal[KLEstimator, "k1+", "k2+", "k3+", "abs+"]

DEFAULT_LOSS = "ppo"
PG_CLIP = 0.2
"""PPO's default clip range."""
DUAL_CLIP = Bounds(gt=1)
_POSITIVE = Bounds(gt=0)
_CLIP = Bounds(gt=0, infinite=True)
_RATE = Bounds(ge=0)


@dataclass(frozen=True, kw_only=True)
class PolicyLossKnobs:
    """The keys of the losses in `actor_train`; each loss reads its own, named after it."""

    gspo_clip_low: float = option(3e-4, "gspo: the sequence's ratio is clipped at 1 - this.", bounds=_CLIP)
    gspo_clip_high: float = option(4e-4, "gspo: the sequence's ratio is clipped at 1 + this.", bounds=_CLIP)
    gmpo_clip_low: float = option(0.4, "gmpo: the log-ratio is clipped at -this.", bounds=_CLIP)
    gmpo_clip_high: float = option(0.4, "gmpo: the log-ratio is clipped at this.", bounds=_CLIP)
    sapo_tau_pos: float = option(1.0, "sapo: sharpness of the gate for positive advantages.", bounds=_POSITIVE)
    sapo_tau_neg: float = option(1.05, "sapo: sharpness of the gate for other advantages.", bounds=_POSITIVE)
    tis_lower_bound: float = option(0.0, "tis: lower end of the truncated importance ratio.", bounds=Bounds(ge=0))
    tis_upper_bound: float = option(1.0, "tis: upper end of the truncated importance ratio.", bounds=_CLIP)
    topr_positive_weight: float = option(1.0, "topr: weight of samples with positive reward.", bounds=_POSITIVE)
    topr_negative_weight: float = option(1.0, "topr: weight of the other samples.", bounds=_POSITIVE)
    topr_ratio_level: RatioLevel = option(
        "sequence", "topr: the ratio of the other samples is the whole response's (the paper's) or each token's (ROLL's)."
    )
    cispo_epsilon_low: float = option(0.1, "cispo: the ratio is clipped at 1 - this.", bounds=_CLIP)
    cispo_epsilon_high: float = option(0.1, "cispo: the ratio is clipped at 1 + this.", bounds=_CLIP)
    cispo_use_unified_mask: bool = option(False, "cispo: mask the tokens that PPO would clip.")
    vespo_k_pos: float = option(2.0, "vespo: power of the sequence's ratio, positive advantages.", bounds=_RATE)
    vespo_lambda_pos: float = option(3.0, "vespo: rate of the exponential decay, positive advantages.", bounds=_RATE)
    vespo_k_neg: float = option(3.0, "vespo: power of the sequence's ratio, negative advantages.", bounds=_RATE)
    vespo_lambda_neg: float = option(2.0, "vespo: rate of the exponential decay, negative advantages.", bounds=_RATE)
    dppo_tv_delta_low: float = option(
        0.2, "dppo_tv: negative advantages push until a token's probability has fallen by this.", bounds=Bounds(gt=0, le=1)
    )
    dppo_tv_delta_high: float = option(
        0.2, "dppo_tv: positive advantages push until a token's probability has risen by this.", bounds=Bounds(gt=0, le=1)
    )
    dppo_kl_delta_low: float = option(0.05, "dppo_kl: bound of the binary KL, negative advantages.", bounds=_CLIP)
    dppo_kl_delta_high: float = option(0.05, "dppo_kl: bound of the binary KL, positive advantages.", bounds=_CLIP)
    dppo_ratio_cap: float = option(20.0, "dppo_tv, dppo_kl: the ratio is truncated here.", bounds=_CLIP)
    m2po_threshold: float = option(
        0.04, "m2po: outliers are left out until the mean squared log-ratio is at most this.", bounds=_POSITIVE
    )
    kimi15_tau: float = option(0.1, "kimi15: weight of the squared log-ratio.", bounds=_POSITIVE)
    opmd_tau: float = option(1.0, "opmd: the loss is divided by 1 + this.", bounds=_RATE)
    asymre_baseline_shift: float = option(-0.1, "asymre: added to the baseline; below 0 leans on the good samples.")


@dataclass(frozen=True, kw_only=True)
class PolicyLossArgs(PolicyLossKnobs):
    """Arguments of a loss: the knobs, and PPO's effective clip range. Raises `ConfigError` for values out of range."""

    pg_clip_low: float = option(PG_CLIP, "ppo, decoupled_ppo: lower clip of the ratio at 1 - this.", bounds=_CLIP)
    pg_clip_high: float = option(PG_CLIP, "ppo, decoupled_ppo: upper clip of the ratio at 1 + this.", bounds=_CLIP)
    dual_clip_c: float | None = option(
        None,
        "ppo, decoupled_ppo, gspo: where advantages are negative the loss is at most -this times them.",
        bounds=DUAL_CLIP,
    )

    def __post_init__(self) -> None:
        if problems := [*all_range_problems(self), *knob_problems(self)]:
            raise ConfigError(problems)


def knob_problems(knobs: PolicyLossKnobs, key: str = "") -> Iterator[Problem]:
    """Yields problems that no single range can describe. `key`: dotted path of the block, with a final dot."""
    low, high = knobs.tis_lower_bound, knobs.tis_upper_bound
    if low >= high:
        yield Problem(f"{key}tis_lower_bound", low, f"{low:g} >= tis_upper_bound {high:g}", f"less than {high:g}")
    if knobs.topr_ratio_level not in get_args(RatioLevel):
        yield Problem(f"{key}topr_ratio_level", knobs.topr_ratio_level, f"must be one of {', '.join(get_args(RatioLevel))}")


def loss_args(knobs: PolicyLossKnobs, clip_low: float, clip_high: float, dual_clip_c: float | None) -> PolicyLossArgs:
    own = {item.name: getattr(knobs, item.name) for item in fields(PolicyLossKnobs)}
    return PolicyLossArgs(**own, pg_clip_low=clip_low, pg_clip_high=clip_high, dual_clip_c=dual_clip_c)


@dataclass(frozen=True, kw_only=True)
class LossTraits:
    """Requirements of a loss for old log-probs; a user's own loss declares them, too (`policy_loss.policy_loss`)."""

    needs_proximal: bool = False
    """It needs the log-probs of the step's first weights, which have to be recomputed."""
    anchor: Anchor = "step"
    """The denominator of the ratio if log-probs of the step's first weights exist: these, with the decoupled weight around the
    loss, or always the `behaviour` policy, without that weight; `none`: it has no ratio, and it does not matter who wrote the
    tokens."""


@dataclass(frozen=True)
class BuiltInLoss(LossTraits):
    formula: Callable[[PolicyLossArgs], str]
    takes_ratio: bool = True
    """Its policy gradient has its own importance weight."""
    uncorrected: bool = False
    """It has no correction for samples of an older policy."""
    by_token: bool = True
    """A token's own advantage decides what becomes of it, that of no other token, and no reward."""
    clips_noise: bool = False
    """Its clip is tighter than the numerical difference of two engines, so even fresh samples need recomputed log-probs."""
    metrics: tuple[str, ...] = ()
    """Metrics that it may add to `actor/...`, besides those of every loss."""


def _plain(formula: Callable[[PolicyLossArgs], str]) -> BuiltInLoss:
    return BuiltInLoss(formula, takes_ratio=False, uncorrected=True)


def _reinforce(k: PolicyLossArgs) -> str:
    return "−A·ℓ"


def _clipped(ratio: str, low: float, high: float, dual: float | None) -> str:
    surrogate = f"min({ratio}·A, clip({ratio}, 1−{low:g}, 1+{high:g})·A)"
    return f"−{surrogate}" if dual is None else f"−max({surrogate}, {dual:g}·A) where A < 0, −{surrogate} elsewhere"


def _ppo(k: PolicyLossArgs) -> str:
    return _clipped("r", k.pg_clip_low, k.pg_clip_high, k.dual_clip_c)


def _gspo(k: PolicyLossArgs) -> str:
    return f"{_clipped('s', k.gspo_clip_low, k.gspo_clip_high, k.dual_clip_c)}, s = exp(mean_y log r)"


def _gmpo(k: PolicyLossArgs) -> str:
    low, high = f"max(log r, −{k.gmpo_clip_low:g}) where A < 0", f"min(log r, {k.gmpo_clip_high:g}) where A > 0"
    return f"−A·exp(mean_y c), c = {high}, {low}"


def _sapo(k: PolicyLossArgs) -> str:
    return f"−4/τ·σ(τ·(r − 1))·A, τ = {k.sapo_tau_pos:g} where A > 0, {k.sapo_tau_neg:g} elsewhere"


def _topr(k: PolicyLossArgs) -> str:
    ratio = "Π_y r" if k.topr_ratio_level == "sequence" else "r"
    good, bad = f"−{k.topr_positive_weight:g}·A·ℓ", f"−{k.topr_negative_weight:g}·sg(min({ratio}, 1))·A·ℓ"
    return f"{good} where the score is positive, {bad} elsewhere"


def _cispo(k: PolicyLossArgs) -> str:
    masked = ", 0 where PPO would clip" if k.cispo_use_unified_mask else ""
    return f"−sg(clip(r, 1−{k.cispo_epsilon_low:g}, 1+{k.cispo_epsilon_high:g}))·A·ℓ{masked}"


def _vespo(k: PolicyLossArgs) -> str:
    rise = f"W^{k.vespo_k_pos:g}·e^({k.vespo_lambda_pos:g}·(1−W)) where A >= 0"
    fall = f"W^{k.vespo_k_neg:g}·e^({k.vespo_lambda_neg:g}·(1−W)) elsewhere"
    return f"−sg(φ(W))·A·ℓ, W = Π_y r, φ(W) = {rise}, {fall}"


def _dppo_tv(k: PolicyLossArgs) -> str:
    out = f"p − p_a > {k.dppo_tv_delta_high:g} where A > 0, p_a − p > {k.dppo_tv_delta_low:g} elsewhere"
    return f"−sg(min(r, {k.dppo_ratio_cap:g}))·A·ℓ, 0 if {out}"


def _dppo_kl(k: PolicyLossArgs) -> str:
    out = f"KL(p_a‖p) > {k.dppo_kl_delta_high:g} and p has risen where A > 0, > {k.dppo_kl_delta_low:g} and fallen elsewhere"
    return f"−sg(min(r, {k.dppo_ratio_cap:g}))·A·ℓ, 0 if {out}"


_CLIPS = ("clipfrac", "clipfrac_low", "clipfrac_high")
_DUAL_CLIPS = (*_CLIPS, "clipfrac_dual")

POLICY_LOSSES: dict[str, BuiltInLoss] = {
    "vanilla": _plain(_reinforce),
    "reinforce": _plain(_reinforce),
    "gpg": _plain(_reinforce),
    "opmd": _plain(lambda k: f"−A·ℓ / (1 + {k.opmd_tau:g})"),
    "asymre": _plain(lambda k: f"−(A − ({k.asymre_baseline_shift:g}))·ℓ"),
    # It penalises the distance from the sampler.
    "kimi15": BuiltInLoss(lambda k: f"−A·ℓ + {k.kimi15_tau:g}/2·(log r)²", takes_ratio=False, metrics=("kimi15_penalty",)),
    "ppo": BuiltInLoss(_ppo, metrics=_DUAL_CLIPS),
    "gspo": BuiltInLoss(_gspo, by_token=False, clips_noise=True, metrics=_DUAL_CLIPS),
    "gmpo": BuiltInLoss(_gmpo, by_token=False, metrics=_CLIPS),
    "sapo": BuiltInLoss(_sapo, metrics=("sapo_gate",)),
    "tis": BuiltInLoss(lambda k: f"−sg(clip(r, {k.tis_lower_bound:g}, {k.tis_upper_bound:g}))·A·ℓ", metrics=_CLIPS),
    "topr": BuiltInLoss(_topr, by_token=False, metrics=("clipfrac", "topr_positive_share", "topr_weight_mean")),
    "cispo": BuiltInLoss(_cispo, metrics=(*_CLIPS, "cispo_masked_share")),
    "vespo": BuiltInLoss(_vespo, metrics=("vespo_weight_mean",)),
    "dppo_tv": BuiltInLoss(_dppo_tv, metrics=("clipfrac",)),
    "dppo_kl": BuiltInLoss(_dppo_kl, metrics=("clipfrac",)),
    "decoupled_ppo": BuiltInLoss(_ppo, needs_proximal=True, metrics=_DUAL_CLIPS),
    "m2po": BuiltInLoss(
        lambda k: f"−M·r·A, M leaves out outliers until the batch's mean (log r)² <= {k.m2po_threshold:g}",
        needs_proximal=True,
        anchor="behaviour",
    ),
}


def anchor_of(variant: str) -> Anchor:
    """Returns the anchor of a loss by its name; for a user's own loss, the most common anchor."""
    return POLICY_LOSSES[variant].anchor if variant in POLICY_LOSSES else "step"


CorrectionLevel = Literal["token", "segment", "geometric", "sequence"]
"""The level of a ratio's logarithm: `token` the token's own; `segment` the mean over its segment, an unbroken run of trained
tokens (one turn); `geometric` the mean over its sequence; `sequence` the sum over its sequence, the only one without bias."""
CorrectionMode = Literal["truncate", "mask"]
DECOUPLED_BOUND = 5.0
"""Default upper bound of the weight for recomputed log-probs, unless is_weight sets another."""


@dataclass(frozen=True, kw_only=True)
class ISWeightConfig:
    """Importance weight of each token's policy loss: trained over sampling policy, without gradient."""

    enabled: bool = option(
        False,
        "Multiply the policy loss by the weight below. "
        f"false: recomputed old log-probs still are weighed, by token, at most {DECOUPLED_BOUND:g}.",
    )
    weight_type: CorrectionLevel = option(
        "token", "Ratio of the token, geometric mean of its turn (segment) or response (geometric), or product (sequence)."
    )
    mode: CorrectionMode = option(
        "truncate", "truncate: min(ratio, upper_bound), TIS.\nmask: 0 outside [lower_bound, upper_bound], MIS or IcePop."
    )
    upper_bound: float = option(1.2, "Upper end of the ratio.", bounds=Bounds(gt=0, infinite=True))
    lower_bound: float = option(0.5, "mask: lower end of the ratio.", bounds=Bounds(ge=0))


@dataclass(frozen=True, kw_only=True)
class CorrectionFilterConfig:
    """Removes tokens outside the ranges from the policy loss (and still counts them in its normaliser)."""

    enabled: bool = option(False, "Whether this filter acts.")
    agg_type: CorrectionLevel = option(
        "token", "Of what the ratio is taken, as weight_type; differences as its logarithm: summed for sequence, else averaged."
    )
    ratio_enabled: bool = option(True, "Filter by the ratio trained / sampling policy.")
    ratio_low: float = option(0.8, "Smallest ratio kept.", bounds=Bounds(ge=0))
    ratio_high: float = option(1.2, "Largest ratio kept.", bounds=Bounds(gt=0, infinite=True))
    diff_enabled: bool = option(False, "Filter by the difference of probabilities, trained - sampling policy.")
    diff_low: float = option(-0.2, "Smallest difference kept.")
    diff_high: float = option(0.2, "Largest difference kept.")


@dataclass(frozen=True, kw_only=True)
class TrainInferCorrectionConfig:
    is_weight: ISWeightConfig = option(ISWeightConfig(), "Importance weight.")
    filters: list[CorrectionFilterConfig] = option([], "Filters; a token must pass all of them.")
    veto_threshold: float | None = option(
        None, "Leave out every response with a token whose ratio trained / sampling policy is below this.", bounds=Bounds(gt=0)
    )
