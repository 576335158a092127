"""How much of the gradient a loss leaves to responses of each length.

On fresh samples, without any correction, the policy gradient is Σ_t −A_t·∇ℓ_t. Every loss here, whatever it weighs, clips or
leaves out, has a gradient Σ_t g_t·∇ℓ_t with g_t = ∂L/∂ℓ_t, L the sum of its tokens' losses after the correction (a weight that is
constant in the gradient is part of g_t, and so is what one token's ratio adds to the others' losses). The share that is left to
some of the tokens is

    Σ |g_t| / Σ |A_t|

over them: 1 where nothing is weighed, 0 where all are clipped, more than 1 where weights are. It is told by the number of trained
tokens of the response and by the sign of A: products of ratios over a response, and means that are clipped tightly, leave less
and less of it to longer responses, from the numerics of two engines alone (`expected_left`)."""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.loss_metrics import MeanMetric, Metrics
from roll.algorithms.ratio import select

LENGTHS = {"1k": 1024, "8k": 8192, "32k": 32768, "longer": 1 << 62}
"""Responses of at most so many trained tokens, and more than the name before."""
LEFT = "actor/gradient_left"


def gradient_left(per_token: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Metrics:
    """`<LEFT>/good_1k`, ... for A > 0 and `<LEFT>/bad_1k`, ... for A < 0; none where no gradient is asked for.

    Args:
        per_token: [B, T] the loss of each token, after the correction and 0 where a token is left out.
        logprobs, advantages: [B, T]
        mask: [B, T] bool; a row is one whole response.
    """
    if not per_token.requires_grad:
        return {}
    (slope,) = torch.autograd.grad(per_token.sum(), logprobs, retain_graph=True)
    slope, full = select(slope, mask).abs(), select(advantages, mask)
    length, shortest, metrics = mask.sum(dim=1, keepdim=True), 0, Metrics()
    for name, longest in LENGTHS.items():
        here = mask & (length > shortest) & (length <= longest)
        for sign, side in (("good", full > 0), ("bad", full < 0)):
            chosen = here & side
            metrics[f"{LEFT}/{sign}_{name}"] = MeanMetric(select(slope, chosen).sum(), select(full.abs(), chosen).sum())
        shortest = longest
    return metrics
