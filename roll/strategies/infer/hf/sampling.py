"""Sampling of one token for each row of a batch, as a pure function of logits, parameters and one uniform number per row.

The behaviour log-prob is `log_softmax(logits / T)[token]` (T = 0, greedy, counts as T = 1): over what top_p and top_k keep where
the request asks which tokens that is, else over all.
The token is the inverse of the cumulative distribution at the row's uniform number, so a row's outcome never depends on the
other rows, and a request that brings its own numbers is sampled alike however it is batched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roll.core.data.kept_tokens import Ints
from roll.core.workers.infer_interface import SamplingParams

_WHOLE = float(1 << 48)


@dataclass(slots=True)
class BatchSampling:
    """The sampling parameters of `n` rows as tensors, made once for as long as the rows stay the same."""

    temperature: Tensor | None
    """[n, 1] float32; None if all are 1."""
    greedy: Tensor | None
    """[n] bool; None if no row is greedy."""
    all_greedy: bool
    truncated: Tensor | None
    """[m] int64, the rows that use top_p or top_k; None if there are none (the fast path)."""
    top_k: Tensor | None
    """[m, 1] int64, the vocabulary's size where there is no limit."""
    top_p: Tensor | None
    """[m, 1] float64."""
    with_kept: Tensor | None = None
    """int64, the truncated rows whose kept tokens are asked for; None if there are none."""

    @classmethod
    def of(cls, rows: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> BatchSampling:
        greedy = [row.temperature == 0 for row in rows]
        temperature = [row.temperature or 1.0 for row in rows]
        truncated = [i for i, row in enumerate(rows) if not greedy[i] and (row.top_p < 1 or 0 < row.top_k < vocab_size)]
        top_k = [[rows[i].top_k or vocab_size] for i in truncated]
        top_p = [[rows[i].top_p] for i in truncated]
        with_kept = [i for i in truncated if rows[i].with_kept]
        return cls(
            temperature=torch.tensor(temperature, device=device)[:, None] if any(t != 1 for t in temperature) else None,
            greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
            all_greedy=all(greedy),
            truncated=torch.tensor(truncated, device=device) if truncated else None,
            top_k=torch.tensor(top_k, device=device) if truncated else None,
            top_p=torch.tensor(top_p, dtype=torch.float64, device=device) if truncated else None,
            with_kept=torch.tensor(with_kept, device=device) if with_kept else None,
        )


class Sampled(NamedTuple):
    tokens: Tensor
    """[n] int64."""
    logprobs: Tensor
    """[n] float32."""
    kept: dict[int, Ints]
    """Row -> the tokens that top_p and top_k kept, of rows that ask for them."""


def sample(logits: Tensor, params: BatchSampling, uniforms: Tensor) -> Sampled:
    """A token for each row, from logits [n, vocabulary] and uniforms [n] float64 in [0, 1)."""
    logits = logits.float()
    if params.temperature is not None:
        logits = logits / params.temperature
    logprobs = logits.log_softmax(-1)
    kept: dict[int, Ints] = {}
    if params.all_greedy:
        tokens = logprobs.argmax(-1)
    else:
        weights = logprobs.exp()
        if params.truncated is not None:
            assert params.top_k is not None and params.top_p is not None
            weights[params.truncated] = truncate(weights[params.truncated], params.top_k, params.top_p)
        if params.with_kept is not None:
            of_sets = weights[params.with_kept]
            logprobs[params.with_kept] = logits[params.with_kept].masked_fill(of_sets == 0, -torch.inf).log_softmax(-1)
            kept = dict(zip(params.with_kept.tolist(), _places(of_sets), strict=True))
        tokens = inverse_cdf(weights, uniforms)
        if params.greedy is not None:
            tokens = torch.where(params.greedy, logprobs.argmax(-1), tokens)
    return Sampled(tokens, logprobs.gather(1, tokens[:, None])[:, 0], kept)


def _places(weights: Tensor) -> list[Ints]:
    """Returns the places in each row of `weights` [n, V] that are not 0."""
    rows, places = (found.cpu().numpy() for found in weights.nonzero(as_tuple=True))
    return np.split(places.astype(np.int32), np.searchsorted(rows, np.arange(1, len(weights))))


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """[n], the first index at which the running sum of `weights` [n, V] (not negative, any sum) exceeds `uniforms` [n] x sum."""
    running = running_sum(weights, repeatable=weights.device.type != "cpu")
    total = running[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))  # u x total may round up to total, which no index exceeds
    target = torch.minimum(uniforms[:, None] * total, below_total)
    index = torch.searchsorted(running, target, right=True)[:, 0]
    return index.clamp_(max=weights.shape[1] - 1)  # only for weights that are not finite, which the caller will notice


def running_sum(weights: Tensor, repeatable: bool) -> Tensor:
    """[n, V] float64, of weights in [0, 1] whose sum is at most about 1. `repeatable`: an accelerator's float sums are not,
    and torch's deterministic mode refuses them; whole multiples of 2^-48 have the same sum in any order."""
    if not repeatable:
        return weights.cumsum(-1, dtype=torch.float64)
    return (weights.double() * _WHOLE).long().cumsum(-1).double() / _WHOLE


def truncate(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`probs` [m, V] with zeros outside the `top_k` [m, 1] likeliest tokens and, of these, outside the smallest set of
    likeliest tokens whose share reaches `top_p` [m, 1] (top_k first, then top_p on the renormalised rest, as vLLM does)."""
    most = int(top_k.max())
    ordered, index = probs.topk(most, -1) if most < probs.shape[1] else probs.sort(-1, descending=True)
    ordered = ordered.masked_fill(torch.arange(ordered.shape[1], device=probs.device) >= top_k, 0.0)
    running = running_sum(ordered, repeatable=probs.device.type != "cpu")
    before = running - ordered
    ordered = ordered.masked_fill((before >= top_p * running[:, -1:]) & (before > 0), 0.0)
    return torch.zeros_like(probs).scatter_(1, index, ordered)
