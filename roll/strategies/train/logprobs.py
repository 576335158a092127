"""Computes per-token log-probs and entropies from logits, aligned with the tokens that they belong to.

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


def predictor_columns(mask: Tensor) -> Tensor:
    """[C] int64, ascending positions whose logits predict a token where `mask` [B, T] is True in at least one row.

    For the `logits_to_keep` of a transformers causal LM: what the other columns would say is never asked."""
    return mask[:, 1:].any(0).nonzero().squeeze(1)


def divisors(temperature: Tensor) -> Tensor:
    """What logits are divided by; float32."""
    return torch.where(temperature == 0, torch.ones_like(temperature), temperature).float()


def token_logprobs(
    logits: Tensor,
    tokens: Tensor,
    temperature: Tensor,
    mask: Tensor | None = None,
    columns: Tensor | None = None,
    entropy: EntropyMode = "none",
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of each token given those before it: index t speaks of `tokens[t]`, index 0 is 0.

    Args:
        logits: [B, T, V], or [B, C, V] with `columns`; any floating type.
        tokens: [B, T] int64.
        temperature: [B].
        mask: [B, T] bool, the tokens to compute (None: all); the others are 0.
        columns: [C] int64, ascending: the positions that `logits` holds, among them all that predict a masked token.
        entropy: whether to return the entropies of the same distributions, in nats, and whether gradients flow through them.

    Returns:
        ([B, T] float32, [B, T] float32 or None).
    """
    wanted = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    rows, predictors = wanted[:, 1:].nonzero(as_tuple=True)
    held = predictors if columns is None else torch.searchsorted(columns, predictors)
    selected = logits.flatten(0, 1).index_select(0, rows * logits.shape[1] + held).float()
    log_p = torch.log_softmax(selected / divisors(temperature)[rows, None], dim=-1)
    targets = tokens[rows, predictors + 1]

    def place(values: Tensor) -> Tensor:
        return values.new_zeros(tokens.shape).index_put((rows, predictors + 1), values)

    logprobs = place(log_p.gather(1, targets[:, None]).squeeze(1))
    if entropy == "none":
        return logprobs, None
    if entropy == "differentiable":
        return logprobs, place(_entropy(log_p))
    with torch.no_grad():
        return logprobs, place(torch.cat([_entropy(part) for part in log_p.split(ENTROPY_ROWS)]))


def _entropy(log_p: Tensor) -> Tensor:
    # A token of probability 0 (log-prob -inf) adds nothing, rather than 0 * -inf.
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)
