"""AdamW as every back end runs it, and the clipping of its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from roll.core.configs.arguments import TrainingArguments

Moment = Literal["exp_avg", "exp_avg_sq"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)


def make_adamw(parameters: Iterable[nn.Parameter], training: TrainingArguments) -> torch.optim.AdamW:
    """AdamW over the parameters that are trained. Weight decay acts on matrices only, not on biases and norms."""
    trained = [p for p in parameters if p.requires_grad]
    matrices, vectors = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    filled = [group for group in groups if group["params"]]
    betas = training.adam_beta1, training.adam_beta2
    return torch.optim.AdamW(filled, lr=training.learning_rate, betas=betas, weight_decay=training.weight_decay, fused=True)


def scale_to_norm(gradients: Sequence[Tensor], norm: float, max_norm: float) -> None:
    """Scales the gradients in place to `max_norm`, if their norm is finite and larger."""
    if math.isfinite(norm) and norm > max_norm:
        torch._foreach_mul_(list(gradients), max_norm / norm)


RateScale = Callable[[Mapping[str, float]], float]
"""The factor on the learning rate of an optimiser step, by its metrics."""


def unscaled(metrics: Mapping[str, float]) -> float:
    return 1.0
