"""Logits in float32 of an output layer whose weights are narrower (`model_args.head_dtype: fp32`).

A product of two bf16 or fp16 numbers is exact in float32, so the sums are rounded as those of float32 weights would be, and the
weights stay the policy's own. An accelerator's matrix units add up in float32 anyway, and leave the result in it if asked.
Elsewhere both factors are converted: by a trainer a part at a time, by an engine, which has few rows, once for each version of
the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HALVES = (torch.bfloat16, torch.float16)


def product(one: Tensor, other: Tensor) -> Tensor:
    """The matrix product, in float32 of narrower factors, else in their type. Without a gradient."""
    if one.dtype not in HALVES:
        return one @ other
    if one.is_cuda:
        return torch.mm(one, other, out_dtype=torch.float32)
    return one.float() @ other.float()


class Float32Head:
    """An engine's output layer, called on hidden states [n, H]."""

    def __init__(self, head: nn.Linear) -> None:
        self._head = head
        self._copy: Tensor | None = None
        """The weights [V, H] in float32, where they have to be converted."""

    def __call__(self, hidden: Tensor) -> Tensor:
        weight, bias = self._head.weight, self._head.bias
        if hidden.is_cuda:
            logits = product(hidden, weight.t())
        else:
            self._copy = weight.float() if self._copy is None else self._copy
            logits = hidden.float() @ self._copy.t()
        return logits if bias is None else logits.add_(bias)

    @torch.inference_mode()
    def renew(self) -> None:
        """The layer has other weights."""
        if self._copy is not None:
            self._copy.copy_(self._head.weight)

    def free(self) -> None:
        """Gives the memory back until the next call."""
        self._copy = None
