"""Log-probs and entropies from logits whose vocabulary is divided over tensor-parallel ranks; the logits are never gathered.

Each rank sums over its own columns, and three numbers a row are reduced: maximum, normaliser, and what belongs to the token. The
definition is that of `roll.strategies.train.logprobs`. Megatron's own cross entropy is not used: it has no entropy, its fused
variant rounds gradients to bf16, and both overwrite the logits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from roll.strategies.train.logprobs import EntropyMode


def vocab_parallel_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: Tensor,
    first_column: int,
    group: dist.ProcessGroup,
    entropy: EntropyMode = "none",
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / T) of the target, and the entropy of the same distribution in nats; float32, equal on all ranks.

    Args:
        logits: [R, V_rank], this rank's columns; any floating type.
        targets: [R] int64, index in the whole vocabulary.
        temperature: [R]; 0 (greedy) counts as 1.
        first_column: index in the whole vocabulary of the first column.
        group: the tensor-parallel ranks.
        entropy: whether to return it, and whether gradients flow through it.

    Returns:
        ([R], [R] or None). Gradients of both reach this rank's logits.
    """
    scale = torch.where(temperature == 0, torch.ones_like(temperature), temperature).float()
    scaled = logits.float() / scale[:, None]
    local = targets - first_column
    mine = (local >= 0) & (local < logits.shape[1])
    logprobs, entropies = _Softmax.apply(scaled, local.clamp(0, logits.shape[1] - 1), mine, group)
    if entropy == "none":
        return logprobs, None
    return logprobs, entropies if entropy == "differentiable" else entropies.detach()


class _Softmax(torch.autograd.Function):
    """d log p(y)/dz = 1_y - p and dH/dz = -p (log p + H), of the columns at hand."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, local: Tensor, mine: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        peak = z.amax(1)
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
        shifted = z - peak[:, None]
        weights = shifted.exp()
        chosen = torch.where(mine, shifted.gather(1, local[:, None]).squeeze(1), 0.0)
        # A token of probability 0 (logit -inf) adds nothing to the entropy, rather than 0 * -inf.
        moment = (weights * shifted.clamp(min=torch.finfo(z.dtype).min)).sum(1)
        sums = torch.stack([weights.sum(1), chosen, moment])
        dist.all_reduce(sums, group=group)
        normaliser, chosen, moment = sums
        log_normaliser = normaliser.log()
        entropy = log_normaliser - moment / normaliser
        log_p = shifted.sub_(log_normaliser[:, None])
        ctx.save_for_backward(log_p, local, mine, entropy)
        return chosen - log_normaliser, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprob: Tensor, grad_entropy: Tensor) -> tuple[Tensor, None, None, None]:
        log_p, local, mine, entropy = ctx.saved_tensors
        finite = log_p.clamp(min=torch.finfo(log_p.dtype).min)
        factor = grad_logprob[:, None] + grad_entropy[:, None] * (finite + entropy[:, None])
        grad = log_p.exp().mul_(factor).neg_()
        grad.scatter_add_(1, local[:, None], torch.where(mine, grad_logprob, 0.0)[:, None])
        return grad, None, None, None
