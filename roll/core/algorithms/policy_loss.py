"""The contract of a policy-gradient loss, and the registry of its variants; `pg_variants` has them.

A variant is a pure function of `LossInputs` and `PolicyLossArgs` that returns a per-token loss and sums for the metrics. It
aggregates nothing: masks, train/infer correction and normalisation are done once, outside. Statistics are those of a token or
of a whole sequence, never of a micro-batch, so that any cut of a batch gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from torch import Tensor

from roll.core.algorithms.ratio import bounded_exp, log_ratio, select
from roll.core.algorithms.registry import Registry
from roll.core.configs.losses import POLICY_LOSSES, Anchor, LossTraits, PolicyLossArgs

if TYPE_CHECKING:
    from roll.core.data.token_batch import TokenBatch


@dataclass
class LossInputs:
    """Inputs of a variant for a micro-batch. On construction masked entries are set to 0, so inf or NaN there reach no variant,
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


def policy_loss(*, needs_proximal: bool = False, anchor: Anchor = "step", prepare: Prepare | None = None) -> Callable[[F], F]:
    """Decorator of a policy loss of your own, which declares its `LossTraits`. `prepare`: applied once to a whole optimiser
    batch, with its advantages, before it is cut: the place of batch statistics."""
    return _declared(LossTraits(needs_proximal=needs_proximal, anchor=anchor), prepare)


def _declared(traits: LossTraits, prepare: Prepare | None) -> Callable[[F], F]:
    def declare(function: F) -> F:
        function.__dict__.update(traits=traits, prepare=prepare)
        return function

    return declare


def traits_of(function: PolicyLoss) -> LossTraits:
    traits: LossTraits = getattr(function, "traits", LossTraits())
    return traits


def prepare_of(function: PolicyLoss) -> Prepare | None:
    prepare: Prepare | None = getattr(function, "prepare", None)
    return prepare


policy_losses: Registry[PolicyLoss] = Registry("pg_variant")
"""The built-in ones."""


def built_in(name: str, prepare: Prepare | None = None) -> Callable[[F], F]:
    """Decorator that registers a loss with the traits that `roll.core.configs.losses` says it has."""

    def register(function: F) -> F:
        policy_losses(name)(_declared(POLICY_LOSSES[name], prepare)(function))
        return function

    return register
