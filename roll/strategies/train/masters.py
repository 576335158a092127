"""Float32 masters of the weights that layers of one rank compute with in a narrower type, as FSDP2's mixed precision has them.

A weight is rounded once a step, and not for each micro-batch. Its gradient of a micro-batch, in the narrower type, is added to
that of the master in float32 as soon as it is there.
"""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from roll.strategies.train.value_head import ValueHead

T = TypeVar("T", bound=Tensor)


class Masters:
    def __init__(self) -> None:
        """Begins without masters: each weight is its own."""
        self._masters: dict[Tensor, nn.Parameter] = {}

    def narrow(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Makes masters of the weights that are trained, which are of `dtype` from now on, one after the other. A value head
        stays float32."""
        wide = {p for module in model.modules() if isinstance(module, ValueHead) for p in module.parameters()}
        for parameter in model.parameters():
            stored = parameter.data
            parameter.data = stored.to(torch.float32 if parameter in wide else dtype)
            if parameter.requires_grad and parameter not in wide:
                self._masters[parameter] = nn.Parameter(stored.float())
                parameter.register_post_accumulate_grad_hook(self._collect)

    def of(self, weight: T) -> T:
        """The weight's master, or itself."""
        return cast(T, self._masters.get(weight, weight))

    @torch.no_grad()
    def round(self) -> None:
        """Sets the weights to their masters, rounded, after a step."""
        if self._masters:
            torch._foreach_copy_(list(self._masters), list(self._masters.values()))

    def _collect(self, weight: Tensor) -> None:
        master, gradient = self._masters[weight], weight.grad
        assert gradient is not None
        weight.grad = None
        if master.grad is None:
            master.grad = gradient.float()
        else:
            master.grad.add_(gradient)
