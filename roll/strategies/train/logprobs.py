"""Log-probs and entropies of trained tokens: from logits, or from hidden states with logits that are never whole.

The definition is design-wide: `log softmax(logits / T)` in float32 with the sampling temperature T; greedy (T = 0) counts as T =
1. Of a token that was sampled from a kept set, the softmax is over this set. Only trained tokens are computed: rows are selected
before the softmax, so neither prompt nor padding costs [.., V] memory.

Whole logits of a micro-batch, with what a softmax and its gradient need, would be the largest thing on a device: 14 to 22 bytes
per token and vocabulary entry. From hidden states `HEAD_LOGITS` of them exist at a time, which are computed again in the
backward pass. The ranks that divide a vocabulary (tensor parallelism) are further such parts: three numbers per row are reduced.

Parts are cut from the vocabulary, not from the rows. Either way a gradient is a sum over parts: by columns that of the states,
[rows, H], by rows that of the weights, [V, H], which moves more bytes as long as there are fewer rows than entries. And the
gradient of a part of the head is one product over all rows, rounded once.

With `fp32` the logits of narrower weights are in float32, otherwise rounded to the weights' type. Either way the gradient of the
logits is rounded to that type, once, before the products that make the gradients of states and weights.

What is done to a part's logits is two functions, one forward and one backward. Compiled, each reads them and writes no more than
its result.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from roll.core.data.kept_tokens import KeptSets
from roll.plan.memory import head_columns
from roll.strategies.float32_head import product
from roll.strategies.train.compiled import compiled

EntropyMode = Literal["none", "detached", "differentiable"]
ENTROPY_ROWS = 1024
"""Rows at a time when the entropy is only watched: bounds its memory."""


def divisors(temperature: Tensor) -> Tensor:
    """Returns the divisors of logits; float32."""
    return torch.where(temperature == 0, torch.ones_like(temperature), temperature).float()


def columned(values: Tensor) -> Tensor:
    """[R, 1] of values [R]; values [R, n] as they are."""
    return values[:, None] if values.ndim == 1 else values


def wide_divisors(temperature: Tensor, like: Tensor) -> Tensor:
    """`divisors` in the type of logits that are computed from `like`; float32 at least."""
    return divisors(temperature).to(_wide(like))


def row_logprobs(
    logits: Tensor, targets: Tensor, temperatures: Tensor, entropy: EntropyMode = "none", kept: KeptSets | None = None
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of each target, and the entropies of the same distributions, in nats.

    Args:
        logits: [K, V], any floating type.
        targets: [K] int64, or [K, n] for n of each row.
        temperatures: [K].
        entropy: whether to return the entropies, and whether gradients flow through them.
        kept: of K tokens.

    Returns:
        (as targets, float32; [K] float32 or None).
    """
    if kept is not None:
        logits = logits.masked_fill(kept.cut(0, logits.shape[1]), -torch.inf)
    log_p = torch.log_softmax(logits.float() / divisors(temperatures)[:, None], dim=-1)
    logprobs = log_p.gather(1, columned(targets)).view(targets.shape)
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
    fast: bool = False,
    fp32: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / T) of the targets, and the entropy of the same distributions in nats, with logits = hidden·weightᵀ +
    bias, computed in the type of the weights or with `fp32`; float32 or wider, equal on all ranks of the group.

    Args:
        hidden: [R, H].
        weight: [V, H] or more rows, of which the first `columns` count; [V], this rank's, with a `group`.
        bias: [V].
        targets: [R] int64, index in the whole vocabulary; or [R, n] for n of each row.
        temperature: [R]; 0 (greedy) counts as 1.
        entropy: whether to return it, and whether gradients flow through it.
        kept: of R tokens, in the whole vocabulary.
        first_column: index in the whole vocabulary of this rank's first one.
        group: the ranks that divide the vocabulary; all have the same hidden states, and get the same gradient of them.
        fast, fp32: whether what is done to logits is compiled; whether those of narrower weights are float32.

    Returns:
        (as targets, [R] or None).
    """
    count = weight.shape[0] if columns is None else columns
    scale, hidden = wide_divisors(temperature, weight), hidden.to(weight.dtype)
    if kept is not None:
        kept = KeptSets(kept.counts, kept.ids - first_column)
    places = columned(targets) - first_column
    logprobs, entropies = _Head.apply(hidden, weight, bias, places, scale, count, group, entropy, kept, fast, fp32)
    return logprobs.view(targets.shape), None if entropy == "none" else entropies


class _Head(torch.autograd.Function):
    """With p = softmax(z), z = logits / T and the entropy H: d log p(y)/dz = 1_y - p and dH/dz = -p (log p + H). Targets and
    their log-probs are [R, n]."""

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
        fast: bool,
        fp32: bool,
    ) -> tuple[Tensor, Tensor | None]:
        sums_of = compiled(_sums) if fast else _sums
        parts = head_parts(count, len(hidden), hidden.device)
        said = [
            sums_of(part_logits(hidden, weight, bias, part, kept, fp32), scale, targets - part.start, entropy != "none")
            for part in parts
        ]
        peaks, totals, moments, *chosen = torch.stack(said, 1)
        peak, log_total, mean = _combined(peaks, totals, moments, group)
        # A target stands in one part, of one rank.
        own = (targets >= 0) & (targets < count)
        logprobs = torch.where(own, torch.stack(chosen, 2).sum(0) - peak[:, None], 0.0)
        if group is not None:
            dist.all_reduce(logprobs, group=group)
        logprobs -= log_total[:, None]
        entropies = None if entropy == "none" else log_total - mean
        ctx.save_for_backward(hidden, weight, bias, targets, scale, peak, log_total, entropies)
        ctx.parts, ctx.group, ctx.kept, ctx.fast, ctx.fp32 = parts, group, kept, fast, fp32
        ctx.set_materialize_grads(False)
        if entropies is not None and entropy == "detached":
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, of_logprob: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, scale, peak, log_total, entropies = ctx.saved_tensors
        needed = ctx.needs_input_grad
        gradient_of = compiled(_gradient) if ctx.fast else _gradient
        of_logprob = (peak.new_zeros(targets.shape) if of_logprob is None else of_logprob) / scale[:, None]
        of_entropy = None if of_entropy is None else of_entropy / scale
        grad_hidden = torch.zeros(hidden.shape, dtype=peak.dtype, device=hidden.device) if needed[0] else None
        grad_weight = torch.empty_like(weight) if needed[1] else None
        grad_bias = torch.zeros_like(bias) if needed[2] else None
        for part in ctx.parts:
            grad = gradient_of(
                part_logits(hidden, weight, bias, part, ctx.kept, ctx.fp32),
                weight.dtype,
                scale,
                targets - part.start,
                peak,
                log_total,
                of_logprob,
                of_entropy,
                entropies,
            )
            if grad_hidden is not None:
                _add_product(grad_hidden, grad, weight[part])
            if grad_weight is not None:
                torch.mm(grad.t(), hidden, out=grad_weight[part])
            if grad_bias is not None:
                grad_bias[part] = grad.sum(0)
            del grad  # nothing of a part lives on while the next one is computed
        if grad_weight is not None:
            grad_weight[sum(part.stop - part.start for part in ctx.parts) :] = 0
        if grad_hidden is not None:
            if ctx.group is not None:
                dist.all_reduce(grad_hidden, group=ctx.group)
            grad_hidden = grad_hidden.to(hidden.dtype)
        return grad_hidden, grad_weight, grad_bias, *(None,) * 8


def head_parts(count: int, rows: int, device: torch.device) -> list[slice]:
    width = head_columns(rows, device.type != "cpu")
    return [slice(start, min(start + width, count)) for start in range(0, count, width)]


def _wide(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def part_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, part: slice, kept: KeptSets | None, fp32: bool = False
) -> Tensor:
    """[R, part], in the weights' type or with `fp32`; -inf outside the kept sets."""
    columns = weight[part].t()
    if fp32:
        logits = product(hidden, columns)
        logits = logits if bias is None else logits.add_(bias[part])
    else:
        logits = hidden @ columns if bias is None else torch.addmm(bias[part], hidden, columns)
    return logits if kept is None else logits.masked_fill_(kept.cut(part.start, part.stop), -torch.inf)


def _add_product(total: Tensor, one: Tensor, other: Tensor) -> None:
    if total.dtype == one.dtype:
        total.addmm_(one, other)
    else:
        total += one @ other


def _sums(logits: Tensor, scale: Tensor, places: Tensor, moment: bool) -> Tensor:
    """[3 + n, R] of the logits [R, C] of a part with z = logits / T: the peak m, Σ e^(z - m), Σ e^(z - m)·(z - m) or 0, and z at
    the n targets' places in the part, 0 for one that is not in it. The logits may be overwritten."""
    z = _divided(logits, scale)
    last = z.shape[1] - 1
    chosen = z.gather(1, places.clamp(0, last))
    chosen = torch.where((places >= 0) & (places <= last), chosen, 0.0)
    lowest = torch.finfo(z.dtype).min
    peak = z.amax(1).clamp(min=lowest)
    z = z.sub_(peak[:, None])
    weights = z.exp()
    total = weights.sum(1)
    # A token of probability 0 (logit -inf) adds nothing to the entropy, rather than 0 * -inf.
    first = weights.mul_(z.clamp_(min=lowest)).sum(1) if moment else torch.zeros_like(total)
    return torch.cat([torch.stack([peak, total, first]), chosen.t()])


def _gradient(
    logits: Tensor,
    dtype: torch.dtype,
    scale: Tensor,
    places: Tensor,
    peak: Tensor,
    log_total: Tensor,
    of_logprob: Tensor,
    of_entropy: Tensor | None,
    entropies: Tensor | None,
) -> Tensor:
    """[R, C] of the logits, in `dtype`; they may be overwritten. `of_logprob` [R, n], `of_entropy` [R]: divided by T."""
    log_p = _divided(logits, scale).sub_(peak[:, None]).sub_(log_total[:, None])
    grad, pull = log_p.exp(), of_logprob.sum(1, keepdim=True)
    if of_entropy is None or entropies is None:
        grad = grad.mul_(-pull)
    else:
        # A token of probability 0 has log-prob -inf, and a gradient of 0.
        factor = log_p.masked_fill_(grad == 0, 0.0).add_(entropies[:, None]).mul_(-of_entropy[:, None])
        grad = grad.mul_(factor.sub_(pull))
        del factor
    del log_p, logits
    if (
        torch.compiler.is_compiling() and places.shape[1] == 1
    ):  # comparisons go along with the rest; a scatter is a pass of its own
        at_target = torch.arange(grad.shape[1], device=grad.device) == places
        return torch.where(at_target, grad + of_logprob, grad).to(dtype)
    last = grad.shape[1] - 1
    of_target = torch.where((places >= 0) & (places <= last), of_logprob, 0.0)
    return grad.scatter_add_(1, places.clamp(0, last), of_target).to(dtype)


def _divided(logits: Tensor, scale: Tensor) -> Tensor:
    """Logits / T in the type of T, in their own memory where it has room and nobody fuses the quotient with what follows."""
    if logits.dtype != scale.dtype or torch.compiler.is_compiling():
        return logits / scale[:, None]
    return logits.div_(scale[:, None])


def _combined(peaks: Tensor, totals: Tensor, moments: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    """[R] each, of all parts [parts, R] of all ranks: the peak m, log Σ e^(z - m), and the mean of z - m."""
    peak = peaks.amax(0)
    if group is not None:
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
    shift = peaks - peak
    factor = shift.exp()
    sums = torch.stack([(totals * factor).sum(0), (factor * (moments + totals * shift)).sum(0)])
    if group is not None:
        dist.all_reduce(sums, group=group)
    return peak, sums[0].log(), sums[1] / sums[0]
