"""Per-token estimators of KL(policy ‖ reference) from the log-probs of sampled tokens, and the controller of a KL penalty.

With x sampled from the policy and d = log reference(x) − log policy(x) (J. Schulman, "Approximating KL divergence", 2020):
k1 = −d is unbiased with a high variance; k2 = d²/2 has a low bias and variance; k3 = e^d − 1 − d is unbiased, never negative,
with a low variance. As a *loss* on on-policy samples only k2 has the gradient of the KL divergence: that of k1 has mean 0, that
of k3 is the gradient of the other divergence, KL(reference ‖ policy). A name with `+` has its value and the gradient of k2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from roll.core.algorithms.ratio import LOG_RATIO_BOUND, log_ratio
from roll.core.algorithms.registry import unknown_name
from roll.core.configs.losses import KLEstimator


def _k3(difference: Tensor) -> Tensor:
    # e^d is what overflows. Below the bound the linear part goes on: it pulls back a token that the reference finds hopeless.
    return difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).expm1() - difference.clamp(max=LOG_RATIO_BOUND)


ESTIMATORS: dict[KLEstimator, Callable[[Tensor], Tensor]] = {
    "k1": lambda difference: -difference,
    "k2": lambda difference: difference.square() / 2,
    "k3": _k3,
    "abs": torch.abs,
}
"""Functions of d."""


def approx_kl(
    logprobs: Tensor, reference: Tensor, estimator: str, mask: Tensor | None = None, clamp: float | None = None
) -> Tensor:
    """Per-token estimate of KL(policy ‖ reference), same shape as `logprobs`.

    Args:
        logprobs: log-probs of the sampled tokens under the policy that sampled them; gradients flow through both arguments.
        reference: log-probs of the same tokens under the other policy.
        estimator: a key of `ESTIMATORS`, or one with `+` after it (`k3+`: the value of k3, the gradient of k2, which on
            on-policy samples is that of the divergence); `ValueError` otherwise.
        mask: bool, same shape; where False the inputs may hold anything, and value and gradient are 0.
        clamp: each value is limited to ± this; a value beyond it has no gradient, unless the name ends in `+`. None: no limit.
    """
    name = estimator.removesuffix("+")
    if name not in ESTIMATORS:
        raise unknown_name("KL estimator", estimator, [*ESTIMATORS, *(f"{known}+" for known in ESTIMATORS)])
    difference = reference - logprobs if mask is None else log_ratio(reference, logprobs, mask)
    value = ESTIMATORS[name](difference)
    if clamp is not None:
        value = value.clamp(-clamp, clamp)
    if name == estimator:
        return value
    through = ESTIMATORS["k2"](difference)
    return value.detach() + (through - through.detach())


@dataclass(slots=True)
class KLController:
    """The coefficient β of a KL penalty. With a target it adapts (arXiv 1909.08593, §2.2): after n samples of mean divergence KL
    β ← β · (1 + clip(KL / target − 1, ±0.2) · min(n / horizon, 1)); without one it stays."""

    coefficient: float
    target: float | None = None
    horizon: int = 10000
    """Samples; at the clip β changes by a fifth in this many."""

    def update(self, kl: float, samples: int) -> None:
        if self.target is not None:
            error = min(max(kl / self.target - 1, -0.2), 0.2)
            self.coefficient *= 1 + error * min(samples / self.horizon, 1)
