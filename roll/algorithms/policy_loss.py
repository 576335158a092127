"""The contract of a policy-gradient loss, and the registry of its variants.

A variant is a pure function of `LossInputs` and `PolicyLossArgs` that returns a per-token loss and sums for the metrics. It
aggregates nothing and corrects nothing: masks, importance weights of decoupled losses and normalisation are done once, outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from torch import Tensor

from roll.algorithms.ratio import bounded_exp, log_ratio, select
from roll.algorithms.registry import Registry


@dataclass(frozen=True, kw_only=True)
class PolicyLossArgs:
    """The knobs of all variants; each reads its own."""

    pg_clip_low: float = 0.2
    """ppo: lower clip of the ratio at 1 − this."""
    pg_clip_high: float = 0.2
    """ppo: upper clip of the ratio at 1 + this."""
    dual_clip_c: float | None = None
    """ppo: where A < 0 the loss is at most −c·A (c > 1); None is off."""
    tis_lower_bound: float = 0.0
    tis_upper_bound: float = 1.0
    topr_positive_weight: float = 1.0
    topr_negative_weight: float = 1.0
    cispo_epsilon_low: float = 0.1
    """cispo: weight at least 1 − this; inf is no bound."""
    cispo_epsilon_high: float = 0.1
    """cispo: weight at most 1 + this; inf is no bound."""
    cispo_use_unified_mask: bool = False
    """cispo: leave out the tokens that PPO's clip would leave out."""
    kimi15_tau: float = 0.1
    """kimi15: strength of the pull towards the anchor."""

    def __post_init__(self) -> None:
        for name in ("pg_clip_low", "pg_clip_high", "cispo_epsilon_low", "cispo_epsilon_high", "kimi15_tau"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.dual_clip_c is not None and not self.dual_clip_c > 1:
            raise ValueError(f"dual_clip_c must be > 1, got {self.dual_clip_c}")
        if not 0 <= self.tis_lower_bound <= self.tis_upper_bound:
            raise ValueError(f"need 0 <= tis_lower_bound <= tis_upper_bound, got {self.tis_lower_bound}, {self.tis_upper_bound}")


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

policy_loss: Registry[PolicyLoss] = Registry("pg_variant")
"""`@policy_loss("name")` registers a variant."""

DEFAULT_VARIANT = "ppo"


def get_policy_loss(name: str | None = None) -> PolicyLoss:
    """The variant called `name`, or the user's function at the dotted path `name`; None is the default variant.

    Unknown names raise `ValueError` with the nearest known one.
    """
    from roll.algorithms import policy_loss_variants  # noqa: F401  (registers the built-in ones; imports this module)

    return policy_loss.get(name or DEFAULT_VARIANT)
