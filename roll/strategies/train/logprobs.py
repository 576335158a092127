"""Computes log-probs and entropies of trained tokens from logits.

The definition is design-wide: `log softmax(logits / T)` in float32 with the sampling temperature T; greedy (T = 0) counts as T =
1. Only trained tokens are computed: rows are selected before the softmax, so neither prompt nor padding costs [.., V] memory.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

EntropyMode = Literal["none", "detached", "differentiable"]
ENTROPY_ROWS = 1024
"""Rows at a time when the entropy is only watched: bounds its memory."""


def divisors(temperature: Tensor) -> Tensor:
    """What logits are divided by; float32."""
    return torch.where(temperature == 0, torch.ones_like(temperature), temperature).float()


def row_logprobs(
    logits: Tensor, targets: Tensor, temperatures: Tensor, entropy: EntropyMode = "none"
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of each target, and the entropies of the same distributions, in nats.

    Args:
        logits: [K, V], any floating type.
        targets: [K] int64.
        temperatures: [K].
        entropy: whether to return the entropies, and whether gradients flow through them.

    Returns:
        ([K] float32, [K] float32 or None).
    """
    log_p = torch.log_softmax(logits.float() / divisors(temperatures)[:, None], dim=-1)
    logprobs = log_p.gather(1, targets[:, None]).squeeze(1)
    if entropy == "none":
        return logprobs, None
    if entropy == "differentiable":
        return logprobs, _entropy(log_p)
    with torch.no_grad():
        return logprobs, torch.cat([_entropy(part) for part in log_p.split(ENTROPY_ROWS)])


def _entropy(log_p: Tensor) -> Tensor:
    # A token of probability 0 (log-prob -inf) adds nothing, rather than 0 * -inf.
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)
