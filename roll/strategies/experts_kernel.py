"""How transformers computes a layer's experts: by one grouped product for all of them, or one expert after another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import Size
from transformers import PreTrainedModel

ROW = 8
"""torch's grouped product takes matrices whose rows are multiples of 16 bytes: of 8 numbers in the narrowest type."""


def experts_kernel(weights: Iterable[Size]) -> Literal["grouped_mm", "eager"]:
    """`weights`: shapes [E, out, in]. The grouped product is there on CPUs and accelerators, for every type, is repeatable, and
    adds the outputs of a token's experts in float32."""
    return "grouped_mm" if all(size % ROW == 0 for shape in weights for size in shape[1:]) else "eager"


def choose_experts_kernel(model: PreTrainedModel) -> None:
    """Without effect on a model without experts, and on architectures that know one way only."""
    weights = [weight.shape for name, weight in model.named_parameters() if ".experts." in name and weight.ndim == 3]
    if weights and model._can_set_experts_implementation():
        model.set_experts_implementation(experts_kernel(weights))
