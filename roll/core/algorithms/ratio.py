"""Log-ratios of two policies and their exponential: the one place that selects masked entries and clamps.

Masked entries may hold anything (inf, NaN, prompt log-probs). They are *selected* to 0 before any arithmetic: multiplying by
the mask afterwards would turn `inf * 0` into NaN, in the value or in the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""|log-ratio| beyond this is clamped before `exp` (e^20 = 4.9e8; its square still fits float32); the gradient there is 0."""


def select(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is True, 0 elsewhere, with gradient 0 there. Same shape."""
    return torch.where(mask, values, torch.zeros_like(values))


def log_ratio(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    """`numerator - denominator` of two tensors of log-probs, 0 where masked. Not clamped. Same shape."""
    return select(numerator, mask) - select(denominator, mask)


def bounded_exp(log_ratios: Tensor) -> Tensor:
    """`exp` with its argument clamped to ±`LOG_RATIO_BOUND`."""
    return log_ratios.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def sequence_sum(values: Tensor, mask: Tensor) -> Tensor:
    """[B, 1], sum over the trained tokens of each row; a row is one whole sequence."""
    return select(values, mask).sum(dim=1, keepdim=True)


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """[B, 1], mean over the trained tokens of each row; 0 where there are none."""
    return sequence_sum(values, mask) / mask.sum(dim=1, keepdim=True).clamp(min=1)
