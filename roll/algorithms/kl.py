"""Per-token estimators of KL(policy ‖ reference) from the log-probs of sampled tokens.

With x sampled from the policy and d = log reference(x) − log policy(x) (J. Schulman, "Approximating KL divergence", 2020):
k1 = −d is unbiased with a high variance; k2 = d²/2 has a low bias and variance, and as a loss the right gradient;
k3 = e^d − 1 − d is unbiased, never negative, with a low variance.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from roll.algorithms.ratio import LOG_RATIO_BOUND, log_ratio
from roll.algorithms.registry import unknown_name


def _k3(difference: Tensor) -> Tensor:
    bounded = difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return bounded.expm1() - bounded


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda difference: -difference,
    "kl": lambda difference: -difference,
    "k2": lambda difference: difference.square() / 2,
    "mse": lambda difference: difference.square() / 2,
    "k3": _k3,
    "abs": torch.abs,
}
"""Functions of d. `kl` and `mse` are the names that configurations use for k1 and k2."""


def approx_kl(logprobs: Tensor, reference: Tensor, estimator: str, mask: Tensor | None = None) -> Tensor:
    """Per-token estimate of KL(policy ‖ reference), same shape as `logprobs`.

    Args:
        logprobs: log-probs of the sampled tokens under the policy that sampled them; gradients flow through both arguments.
        reference: log-probs of the same tokens under the other policy.
        estimator: a key of `ESTIMATORS`; `ValueError` otherwise.
        mask: bool, same shape; where False the inputs may hold anything, and value and gradient are 0.
    """
    if estimator not in ESTIMATORS:
        raise unknown_name("KL estimator", estimator, ESTIMATORS)
    difference = reference - logprobs if mask is None else log_ratio(reference, logprobs, mask)
    return ESTIMATORS[estimator](difference)
