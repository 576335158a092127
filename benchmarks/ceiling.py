"""Plain torch on the same device: what a training step of the same model and tokens takes without this project.

* torch: eager, causal SDPA, float32 weights under autocast, the head by 2,048 rows, recomputed.
* torch-compiled: the same with each decoder layer and the head under torch.compile, and bf16 weights beside float32 masters.

AdamW is fused in both. Samples of one length, nothing shared: other loads are computed as if nothing were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

CEILINGS = ("torch", "torch-compiled")
ROWS = 2048


def logprobs_of(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    def part(rows: Tensor, of_rows: Tensor) -> Tensor:
        return -cross_entropy((rows @ weight.t()).float(), of_rows, reduction="none")

    pairs = zip(hidden.split(ROWS), targets.split(ROWS), strict=True)
    return torch.cat([checkpoint(part, rows, of_rows, use_reentrant=False) for rows, of_rows in pairs])


class Ceiling:
    """Raises `ValueError` for samples of several lengths."""

    def __init__(self, model: Any, side: str, device: torch.device) -> None:
        self._model, self._device, compiled = model.to(device), device, side == "torch-compiled"
        self._masters: list[nn.Parameter] = []
        if compiled:
            self._masters = [nn.Parameter(p.detach().clone()) for p in self._model.parameters()]
            self._model.to(torch.bfloat16)
            for layer in self._model.model.layers:
                layer.compile(dynamic=False)
        self._head: Callable[..., Tensor] = torch.compile(logprobs_of, dynamic=False) if compiled else logprobs_of
        self._optimizer = torch.optim.AdamW(self._masters or self._model.parameters(), lr=1e-6, fused=True)

    def step(self, tokens: Tensor, microbatch_tokens: int) -> None:
        """`tokens`: [samples, length]."""
        for part in tokens.split(max(1, microbatch_tokens // tokens.shape[1])):
            (-self._logprobs(part.to(self._device)).sum() / tokens.numel()).backward()
        weights: list[Tensor] = list(self._model.parameters())
        for weight, master in zip(weights, self._masters, strict=bool(self._masters)):
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._masters:
            with torch.no_grad():
                torch._foreach_copy_(weights, list[Tensor](self._masters))

    @torch.no_grad()
    def score(self, tokens: Tensor, microbatch_tokens: int) -> None:
        for part in tokens.split(max(1, microbatch_tokens // tokens.shape[1])):
            self._logprobs(part.to(self._device))

    def _logprobs(self, tokens: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=not self._masters):
            hidden = self._model.model(input_ids=tokens, use_cache=False).last_hidden_state.flatten(0, 1)
            weight = self._model.lm_head.weight.to(torch.bfloat16)
            return self._head(hidden.to(torch.bfloat16), weight, tokens.roll(-1, 1).flatten())
