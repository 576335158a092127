"""Metrics of a loss in a form that adds up: over micro-batches and ranks first, divided last.

Averaging averages of unequal parts is wrong, so a micro-batch reports sums and counts. Each metric is a tuple of scalar tensors;
`MaxMetric` combines by maximum, all others by addition.

Share of the gradient that a loss leaves to responses of each length.

On fresh samples, without any correction, the policy gradient is Σ_t −A_t·∇ℓ_t. Every loss here, with any weights, clips or
masks, has a gradient Σ_t g_t·∇ℓ_t with g_t = ∂L/∂ℓ_t, L the sum of its tokens' losses after the correction (a weight that is
constant in the gradient is part of g_t, and so is one token's part in the others' losses, by its ratio). The share left to
some of the tokens is

    Σ |g_t| / Σ |A_t|

over them: 1 where nothing is weighed, 0 where all are clipped, more than 1 where weights are. It is told by the number of trained
tokens of the response and by the sign of A: products of ratios over a response, and means that are clipped tightly, leave less
and less of it to longer responses, from the numerics of two engines alone (`expected_left`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from roll.core.algorithms.ratio import select


class SumMetric(NamedTuple):
    """A value that is already this part's share of the whole, such as a globally normalised loss."""

    total: Tensor

    def result(self) -> float | None:
        return float(self.total)


class MeanMetric(NamedTuple):
    numerator: Tensor
    denominator: Tensor

    def result(self) -> float | None:
        return float(self.numerator / self.denominator) if self.denominator > 0 else None


class EffectiveSizeMetric(NamedTuple):
    """Effective sample size of importance weights w as a share of their number: (Σw)² / (n Σw²), in (0, 1]; none if all are 0."""

    weights: Tensor
    squares: Tensor
    size: Tensor

    def result(self) -> float | None:
        return float(self.weights.square() / (self.size * self.squares)) if self.squares > 0 else None


class CorrelationMetric(NamedTuple):
    """Pearson's correlation of two variables, from their sums in float64."""

    size: Tensor
    x: Tensor
    y: Tensor
    xx: Tensor
    yy: Tensor
    xy: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, mask: Tensor) -> CorrelationMetric:
        """The metric over the entries where `mask`, of the same shape, is True."""
        x, y = select(x, mask).double(), select(y, mask).double()
        return cls(mask.sum().double(), x.sum(), y.sum(), x.square().sum(), y.square().sum(), (x * y).sum())

    def result(self) -> float | None:
        variance_x, variance_y = self.size * self.xx - self.x.square(), self.size * self.yy - self.y.square()
        # Below this share of its terms a variance is only their rounding: the values are equal, and correlate with nothing.
        if not (variance_x > 1e-14 * self.size * self.xx and variance_y > 1e-14 * self.size * self.yy):
            return None
        return float((self.size * self.xy - self.x * self.y) / (variance_x * variance_y).sqrt())


class ExplainedVarianceMetric(NamedTuple):
    """1 − Var(target − prediction) / Var(target), from sums in float64: 1 is perfect, 0 no better than a constant; none where
    all targets are equal."""

    size: Tensor
    target: Tensor
    target_square: Tensor
    error: Tensor
    error_square: Tensor

    @classmethod
    def of(cls, prediction: Tensor, target: Tensor, mask: Tensor) -> ExplainedVarianceMetric:
        """The metric over the entries where `mask`, of the same shape, is True."""
        target = select(target, mask).double()
        error = target - select(prediction, mask).double()
        return cls(mask.sum().double(), target.sum(), target.square().sum(), error.sum(), error.square().sum())

    def result(self) -> float | None:
        variance = self.size * self.target_square - self.target.square()
        # As with a correlation: what is left of equal values is rounding.
        if not variance > 1e-14 * self.size * self.target_square:
            return None
        return float(1 - (self.size * self.error_square - self.error.square()) / variance)


class MaxMetric(NamedTuple):
    """A maximum of values >= 0; 0 is that of none."""

    value: Tensor

    def result(self) -> float | None:
        return float(self.value)


Metric: TypeAlias = SumMetric | MeanMetric | EffectiveSizeMetric | CorrelationMetric | ExplainedVarianceMetric | MaxMetric
Metrics: TypeAlias = dict[str, Metric]
Operation: TypeAlias = Literal["sum", "max"]
AllReduce: TypeAlias = Callable[[Tensor, Operation], None]


def masked_mean(values: Tensor, mask: Tensor) -> MeanMetric:
    """The mean of `values` over the entries where `mask`, of the same shape, is True."""
    return MeanMetric(select(values.detach(), mask).sum(), mask.sum())


def scaled(metrics: Metrics, factor: float) -> Metrics:
    """Returns the metrics of a part whose loss is multiplied by `factor`."""
    return {name: SumMetric(one.total * factor) if isinstance(one, SumMetric) else one for name, one in metrics.items()}


def _merge(parts: Iterable[Metrics]) -> Metrics:
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            if name in merged:
                combine = torch.maximum if isinstance(metric, MaxMetric) else torch.add
                metric = type(metric)(*(combine(old, new) for old, new in zip(merged[name], metric, strict=True)))
            merged[name] = metric
    return merged


def _on_host(metrics: Metrics, all_reduce: AllReduce | None) -> Metrics:
    """Reduced over the ranks, if there are several, and copied to the host together: each value of its own would be a wait."""
    reduced = dict(metrics)
    operations: tuple[Operation, ...] = ("sum", "max")
    for operation in operations:
        names = sorted(name for name in metrics if isinstance(metrics[name], MaxMetric) == (operation == "max"))
        if not names:
            continue
        flat = torch.stack([value.double() for name in names for value in metrics[name]])
        if all_reduce is not None:
            all_reduce(flat, operation)
        values = iter(flat.cpu().unbind())
        for name in names:
            reduced[name] = type(metrics[name])(*(next(values) for _ in metrics[name]))
    return reduced


def reduce_metrics(parts: Iterable[Metrics], all_reduce: AllReduce | None = None) -> dict[str, float]:
    """The value of each metric over all parts.

    Args:
        parts: the metrics that `compute_loss` returned for each micro-batch of this rank.
        all_reduce: reduces a float64 vector over the ranks in place; called twice on every rank, which must hold the same
            metrics. None: this rank is alone.

    A mean of nothing (no trained token) has no value and is left out.
    """
    merged = _on_host(_merge(parts), all_reduce)
    return {name: value for name, metric in merged.items() if (value := metric.result()) is not None}


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
