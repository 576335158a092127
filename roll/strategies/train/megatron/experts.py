"""A layer's experts by torch's grouped products, which need no Transformer Engine, where Megatron's own run one after another.

Parameters and their names stay those of Megatron's `SequentialMLP`, each expert's a tensor of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.moe.experts import SequentialMLP
from torch import Tensor
from torch.nn.functional import grouped_mm

from roll.strategies.model_folder import experts_kernel


class GroupedExperts(SequentialMLP):  # type: ignore[misc]
    def forward(self, tokens: Tensor, counts: Tensor, probs: Tensor) -> tuple[Tensor, None]:
        """[N, H], those of each expert together; [E], how many each has; [N], what their outputs are weighted by -> [N, H]."""
        first, second = ([getattr(e, name).weight for e in self.local_experts] for name in ("linear_fc1", "linear_fc2"))
        if experts_kernel([first[0].shape, second[0].shape]) == "eager":
            return super().forward(tokens, counts, probs)  # type: ignore[no-any-return]
        ends = counts.cumsum(0).to(tokens.device, torch.int32)
        gate, up = GroupedProduct.apply(tokens, ends, *first).chunk(2, -1)
        inner = self.config.activation_func(gate) * up * probs.unsqueeze(-1)
        return GroupedProduct.apply(inner.to(tokens.dtype), ends, *second), None


class GroupedProduct(torch.autograd.Function):
    """x wᵀ, with the w of the expert that each row of x is for.

    The product takes all matrices as one. That copy is made anew for the gradient instead of being kept: it is as large as the
    layer's weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ends: Tensor, *weights: Tensor) -> Tensor:
        """[N, in], [E] int32, E of [out, in] -> [N, out]. `ends`: the rows that all experts up to this one have."""
        ctx.save_for_backward(x, ends, *weights)
        return _product(x, torch.stack(weights).mT, ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, ends, *weights = ctx.saved_tensors
        grad = grad.contiguous()
        of_weights = grouped_mm(grad.mT, x, offs=ends) if len(x) else torch.zeros_like(torch.stack(weights))
        return _product(grad, torch.stack(weights), ends), None, *of_weights.unbind()


def _product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """torch's product refuses a matrix without rows."""
    return grouped_mm(x, weights, offs=ends) if len(x) else x.new_empty(0, weights.shape[-1])
