"""Log-probs and entropies of trained tokens: from logits, or from hidden states with logits that are never whole.

The definition is design-wide: `log softmax(logits / T)` in float32 with the sampling temperature T; greedy (T = 0) counts as T =
1. Of a token that was sampled from a kept set, the softmax is over this set. Only trained tokens are computed: rows are selected
before the softmax, so neither prompt nor padding costs [.., V] memory.

Whole logits of a micro-batch, with what a softmax and its gradient need, would be the largest thing on a device: 14 to 22 bytes
per token and vocabulary entry. From hidden states they exist for `HEAD_COLUMNS` entries at a time, and are computed again in the
backward pass. The ranks that divide a vocabulary (tensor parallelism) are further such parts: three numbers per row are reduced.
Parts are cut from the vocabulary, not from the rows: the width does not depend on the micro-batch, and the gradient of a part of
the head is one product over all rows, rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from roll.core.configs.arguments import HEAD_COLUMNS
from roll.core.data.kept_tokens import KeptSets

EntropyMode = Literal["none", "detached", "differentiable"]
ENTROPY_ROWS = 1024
"""Rows at a time when the entropy is only watched: bounds its memory."""


def divisors(temperature: Tensor) -> Tensor:
    """What logits are divided by; float32."""
    return torch.where(temperature == 0, torch.ones_like(temperature), temperature).float()


def row_logprobs(
    logits: Tensor, targets: Tensor, temperatures: Tensor, entropy: EntropyMode = "none", kept: KeptSets | None = None
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of each target, and the entropies of the same distributions, in nats.

    Args:
        logits: [K, V], any floating type.
        targets: [K] int64.
        temperatures: [K].
        entropy: whether to return the entropies, and whether gradients flow through them.
        kept: of K tokens.

    Returns:
        ([K] float32, [K] float32 or None).
    """
    if kept is not None:
        logits = logits.masked_fill(kept.cut(0, logits.shape[1]), -torch.inf)
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


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: Tensor,
    entropy: EntropyMode = "none",
    kept: KeptSets | None = None,
    *,
    columns: int | None = None,
    first_column: int = 0,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / T) of the targets, and the entropy of the same distributions in nats, with logits = hidden·weightᵀ +
    bias, computed in the type of the weights; float32 or wider, equal on all ranks of the group.

    Args:
        hidden: [R, H].
        weight: [V, H] or more rows, of which the first `columns` count; [V], this rank's, with a `group`.
        bias: [V].
        targets: [R] int64, index in the whole vocabulary.
        temperature: [R]; 0 (greedy) counts as 1.
        entropy: whether to return it, and whether gradients flow through it.
        kept: of R tokens, in the whole vocabulary.
        first_column: index in the whole vocabulary of this rank's first one.
        group: the ranks that divide the vocabulary; all have the same hidden states, and get the same gradient of them.

    Returns:
        ([R], [R] or None).
    """
    count = weight.shape[0] if columns is None else columns
    scale = divisors(temperature)
    hidden = hidden.to(weight.dtype)
    if kept is not None:
        kept = KeptSets(kept.counts, kept.ids - first_column)
    logprobs, entropies = _Head.apply(hidden, weight, bias, targets - first_column, scale, count, group, entropy, kept)
    return logprobs, None if entropy == "none" else entropies


class _Head(torch.autograd.Function):
    """With p = softmax(z), z = logits / T and the entropy H: d log p(y)/dz = 1_y - p and dH/dz = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scale: Tensor,
        count: int,
        group: dist.ProcessGroup | None,
        entropy: EntropyMode,
        kept: KeptSets | None,
    ) -> tuple[Tensor, Tensor | None]:
        sums = []
        chosen = targets.new_zeros(targets.shape, dtype=_wide(weight))
        for part in _parts(count):
            of_part, at_target, mine = _sums(_scaled(hidden, weight, bias, scale, part, kept), targets, part, entropy != "none")
            chosen = torch.where(mine, at_target, chosen)
            sums.append(of_part)
        peak, log_total, mean = _combined(sums, group)
        logprobs = torch.where((targets >= 0) & (targets < count), chosen - peak, 0.0)
        if group is not None:
            dist.all_reduce(logprobs, group=group)
        logprobs -= log_total
        entropies = None if entropy == "none" else log_total - mean
        ctx.save_for_backward(hidden, weight, bias, targets, scale, peak, log_total, entropies)
        ctx.count, ctx.group, ctx.kept = count, group, kept
        ctx.set_materialize_grads(False)
        if entropies is not None and entropy == "detached":
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, of_logprob: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, scale, peak, log_total, entropies = ctx.saved_tensors
        needed = ctx.needs_input_grad
        of_logprob = torch.zeros_like(peak) if of_logprob is None else of_logprob
        grad_hidden = torch.zeros(hidden.shape, dtype=peak.dtype, device=hidden.device) if needed[0] else None
        grad_weight = torch.zeros_like(weight) if needed[1] else None
        grad_bias = torch.zeros_like(bias) if needed[2] else None
        for part in _parts(ctx.count):
            log_p = _scaled(hidden, weight, bias, scale, part, ctx.kept).sub_(peak[:, None]).sub_(log_total[:, None])
            grad = _gradient(log_p, targets, part, of_logprob, of_entropy, entropies).div_(scale[:, None]).to(weight.dtype)
            del log_p  # nothing of a part lives on while the next one is computed
            if grad_hidden is not None:
                grad_hidden += grad @ weight[part]
            if grad_weight is not None:
                grad_weight[part] = grad.t() @ hidden
            if grad_bias is not None:
                grad_bias[part] = grad.sum(0)
            del grad
        if grad_hidden is not None:
            if ctx.group is not None:
                dist.all_reduce(grad_hidden, group=ctx.group)
            grad_hidden = grad_hidden.to(hidden.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None, None


def _parts(count: int) -> Iterator[slice]:
    return (slice(start, min(start + HEAD_COLUMNS, count)) for start in range(0, count, HEAD_COLUMNS))


def _wide(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _scaled(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, part: slice, kept: KeptSets | None) -> Tensor:
    """[R, part] logits / T, float32 or wider; -inf outside the kept sets."""
    columns = weight[part].t()
    logits = hidden @ columns if bias is None else torch.addmm(bias[part], hidden, columns)
    scaled = logits.to(_wide(weight)).div_(scale[:, None])
    return scaled if kept is None else scaled.masked_fill_(kept.cut(part.start, part.stop), -torch.inf)


def _within(targets: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """[R] twice: the targets' places in the part, and whether they are there; elsewhere any place."""
    return (targets - part.start).clamp(0, part.stop - part.start - 1), (targets >= part.start) & (targets < part.stop)


def _sums(z: Tensor, targets: Tensor, part: slice, moment: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of a part's z, which is overwritten: [3, R] the peak m, Σ e^(z - m) and Σ e^(z - m)·(z - m) or 0; [R] z of the target, and
    whether it is there."""
    local, mine = _within(targets, part)
    at_target = z.gather(1, local[:, None]).squeeze(1)
    lowest = torch.finfo(z.dtype).min
    peak = z.amax(1).clamp_(min=lowest)
    weights = z.sub_(peak[:, None]).exp()
    total = weights.sum(1)
    # A token of probability 0 (logit -inf) adds nothing to the entropy, rather than 0 * -inf.
    first = weights.mul_(z.clamp_(min=lowest)).sum(1) if moment else torch.zeros_like(total)
    return torch.stack([peak, total, first]), at_target, mine


def _gradient(
    log_p: Tensor, targets: Tensor, part: slice, of_logprob: Tensor, of_entropy: Tensor | None, entropies: Tensor | None
) -> Tensor:
    """[R, part] of z; `log_p` is overwritten."""
    grad = log_p.exp()
    if of_entropy is None or entropies is None:
        grad.mul_(-of_logprob[:, None])
    else:
        # A token of probability 0 has log-prob -inf, and a gradient of 0.
        factor = log_p.masked_fill_(grad == 0, 0.0).add_(entropies[:, None]).mul_(of_entropy[:, None])
        grad.mul_(factor.add_(of_logprob[:, None])).neg_()
    local, mine = _within(targets, part)
    return grad.scatter_add_(1, local[:, None], torch.where(mine, of_logprob, 0.0)[:, None])


def _combined(parts: list[Tensor], group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    """[R] each, of all parts of all ranks: the peak m, log Σ e^(z - m), and the mean of z - m."""
    peaks, totals, moments = torch.stack(parts, 1)
    peak = peaks.amax(0)
    if group is not None:
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
    shift = peaks - peak
    factor = shift.exp()
    sums = torch.stack([(totals * factor).sum(0), (factor * (moments + totals * shift)).sum(0)])
    if group is not None:
        dist.all_reduce(sums, group=group)
    return peak, sums[0].log(), sums[1] / sums[0]
