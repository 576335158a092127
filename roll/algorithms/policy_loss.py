"""The contract of a policy-gradient loss, and the registry of its variants.

A variant is a pure function of `LossInputs` and `PolicyLossArgs` that returns a per-token loss and sums for the metrics. It
aggregates nothing: masks, train/infer correction and normalisation are done once, outside. Statistics are those of a token or
of a whole sequence, never of a micro-batch, so that any cut of a batch gives the same gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor

from roll.algorithms.ratio import bounded_exp, log_ratio, select
from roll.algorithms.registry import Registry

if TYPE_CHECKING:
    from roll.data.token_batch import TokenBatch

RatioLevel = Literal["token", "sequence"]


@dataclass(frozen=True, kw_only=True)
class PolicyLossArgs:
    """The knobs of all variants; each reads its own, named after it. `docs_roll/pg_variants` explains them."""

    pg_clip_low: float = 0.2
    """ppo, decoupled_ppo: lower clip of the ratio at 1 − this."""
    pg_clip_high: float = 0.2
    """ppo, decoupled_ppo: upper clip of the ratio at 1 + this."""
    dual_clip_c: float | None = None
    """ppo, decoupled_ppo: where A < 0 the loss is at most −c·A (c > 1); None is off."""
    gspo_clip_low: float = 3e-4
    gspo_clip_high: float = 4e-4
    gmpo_clip_low: float = 0.4
    """gmpo: lower clip of the log-ratio at −this."""
    gmpo_clip_high: float = 0.4
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    tis_lower_bound: float = 0.0
    tis_upper_bound: float = 1.0
    topr_positive_weight: float = 1.0
    topr_negative_weight: float = 1.0
    topr_ratio_level: RatioLevel = "sequence"
    cispo_epsilon_low: float = 0.1
    """cispo: weight at least 1 − this; inf is no bound."""
    cispo_epsilon_high: float = 0.1
    """cispo: weight at most 1 + this; inf is no bound."""
    cispo_use_unified_mask: bool = False
    """cispo: leave out the tokens that PPO's clip would leave out."""
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    dppo_tv_delta_low: float = 0.2
    """dppo_tv: largest fall of a token's probability that is still pushed on, A <= 0."""
    dppo_tv_delta_high: float = 0.2
    """dppo_tv: largest rise, A > 0."""
    dppo_kl_delta_low: float = 0.05
    dppo_kl_delta_high: float = 0.05
    dppo_ratio_cap: float = 20.0
    """dppo_tv, dppo_kl: the ratio is truncated here."""
    m2po_threshold: float = 0.04
    """m2po: bound of the mean squared log-ratio."""
    kimi15_tau: float = 0.1
    """kimi15: strength of the pull towards the anchor."""
    opmd_tau: float = 1.0
    asymre_baseline_shift: float = -0.1

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            signed = item.name == "asymre_baseline_shift"
            if isinstance(value, float) and (math.isnan(value) or (value < 0 and not signed)):
                raise ValueError(f"{item.name} must be >= 0, got {value}")
        if self.dual_clip_c is not None and not self.dual_clip_c > 1:
            raise ValueError(f"dual_clip_c must be > 1, got {self.dual_clip_c}")
        if not 0 <= self.tis_lower_bound <= self.tis_upper_bound:
            raise ValueError(f"need 0 <= tis_lower_bound <= tis_upper_bound, got {self.tis_lower_bound}, {self.tis_upper_bound}")
        for name in ("sapo_tau_pos", "sapo_tau_neg"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be > 0")
        if self.topr_ratio_level not in get_args(RatioLevel):
            raise ValueError(f"topr_ratio_level must be token or sequence, got {self.topr_ratio_level!r}")


@dataclass
class LossInputs:
    """What a variant sees of a micro-batch. On construction masked entries are set to 0, so inf or NaN there reach no variant,
    and all but `logprobs` is detached."""

    logprobs: Tensor
    """[B, T] under the current weights, with gradient."""
    anchor_logprobs: Tensor
    """[B, T] under the policy that the ratio is taken to: the behaviour policy, or the proximal one of a decoupled loss."""
    advantages: Tensor
    """[B, T]."""
    mask: Tensor
    """[B, T] bool, True on the trained tokens."""
    scores: Tensor
    """[B] raw reward of each sequence."""

    def __post_init__(self) -> None:
        for name in ("anchor_logprobs", "advantages", "mask"):
            if getattr(self, name).shape != self.logprobs.shape:
                raise ValueError(f"{name} has shape {tuple(getattr(self, name).shape)}, logprobs {tuple(self.logprobs.shape)}")
        self.logprobs = select(self.logprobs, self.mask)
        self.anchor_logprobs = select(self.anchor_logprobs.detach(), self.mask)
        self.advantages = select(self.advantages.detach(), self.mask)

    @cached_property
    def log_ratio(self) -> Tensor:
        """[B, T] log of current over anchor policy, with gradient, not clamped; 0 where masked."""
        return log_ratio(self.logprobs, self.anchor_logprobs, self.mask)

    @cached_property
    def ratio(self) -> Tensor:
        """[B, T] current over anchor policy, with gradient; 1 where masked."""
        return bounded_exp(self.log_ratio)

    def count(self, condition: Tensor) -> Tensor:
        """Scalar, the number of trained tokens where `condition` [B, T] (or broadcastable) is True."""
        return (condition & self.mask).sum().to(self.logprobs.dtype)


PolicyLoss: TypeAlias = Callable[[LossInputs, PolicyLossArgs], tuple[Tensor, dict[str, Tensor]]]
"""Returns the loss of each token [B, T] (minimised; masked entries are ignored) and metrics: scalar sums over this
micro-batch's trained tokens, which the caller divides by the number of such tokens in the whole batch."""

F = TypeVar("F", bound=PolicyLoss)
Prepare: TypeAlias = "Callable[[TokenBatch, PolicyLossArgs], TokenBatch]"


@dataclass(frozen=True)
class Traits:
    """What a variant needs beyond `LossInputs`."""

    needs_proximal: bool = False
    """The log-probs of the step's first weights have to be recomputed."""
    anchor: Literal["step", "behaviour"] = "step"
    """What the ratio is taken to when proximal log-probs are there: the `step`'s first weights, with the decoupled weight
    around the loss, or always the `behaviour` policy, without."""
    prepare: Prepare | None = None
    """Applied once to a whole optimiser batch, with its advantages, before it is cut: the place of batch statistics."""


def traits(
    *, needs_proximal: bool = False, anchor: Literal["step", "behaviour"] = "step", prepare: Prepare | None = None
) -> Callable[[F], F]:
    """Decorator of a variant, built in or a user's: see `Traits`."""

    def declare(function: F) -> F:
        function.__dict__["traits"] = Traits(needs_proximal, anchor, prepare)
        return function

    return declare


def traits_of(function: PolicyLoss) -> Traits:
    declared: Traits = getattr(function, "traits", Traits())
    return declared


policy_loss: Registry[PolicyLoss] = Registry("pg_variant")
"""`@policy_loss("name")` registers a variant."""

DEFAULT_VARIANT = "ppo"


def get_policy_loss(name: str | None = None) -> PolicyLoss:
    """The variant called `name`, or the user's function at the dotted path `name`; None is the default variant.

    Unknown names raise `ValueError` with the nearest known one.
    """
    from roll.algorithms import pg_variants  # noqa: F401  (registers the built-in ones; imports this module)

    return policy_loss.get(name or DEFAULT_VARIANT)


def try_policy_loss(name: str, args: PolicyLossArgs) -> PolicyLoss:
    """The variant, after one evaluation on a made-up batch: a user's function fails here, not in the first training step.

    `ValueError` says what is wrong with it."""
    function = get_policy_loss(name)
    logprobs = torch.tensor([[-1.0, -0.5, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    inputs = LossInputs(logprobs, logprobs.detach() - 0.1, mask.float(), mask, torch.ones(1))
    try:
        loss, sums = function(inputs, args)
        is_loss = loss.shape == logprobs.shape and loss.requires_grad
        are_sums = all(value.dim() == 0 for value in sums.values())
    # Boundary: a user's code, whatever it raises becomes one clear error.
    except Exception as error:
        raise ValueError(f"pg_variant {name!r} fails on a small batch: {type(error).__name__}: {error}") from error
    if not is_loss or not are_sums:
        raise ValueError(f"pg_variant {name!r} must return a per-token loss [B, T] with gradient, and a dict of scalar tensors")
    return function
