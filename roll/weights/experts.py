"""The experts of a layer: one tensor of all in transformers' models, tensors of their own in published files and weight updates.

Updates have the published names because every engine's loader reads those (vLLM, SGLang); transformers fuses them while it reads
a folder, and takes them apart when it writes one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Size, Tensor

FUSED = ("qwen2_moe", "qwen3_moe")
"""`model_type` of the families whose names are known."""


def published(model_type: str, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """The tensors that a published file has in place of this one of the model's state, as views of it.

    Args:
        tensor: of experts [E, 2·I, H] (`gate_up_proj`) or [E, H, I] (`down_proj`); any other is given back as it is.

    Returns:
        For each expert [I, H] (`gate_proj`, `up_proj`) or [H, I].
    """
    if not _of_experts(model_type, name):
        return [(name, tensor)]
    experts, _, kind = name.rpartition(".")
    kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
    return [
        (f"{experts}.{index}.{each}.weight", part)
        for index, expert in enumerate(tensor)
        for each, part in zip(kinds, expert.chunk(len(kinds)), strict=True)
    ]


def published_moments(model_type: str, moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`published` of an optimiser's `<parameter>.<moment>`; what is taken apart is copied."""
    named: dict[str, Tensor] = {}
    for stored, tensor in moments.items():
        name, _, moment = stored.rpartition(".")
        parts = published(model_type, name, tensor)
        named |= {f"{part}.{moment}": view if view is tensor else view.clone() for part, view in parts}
    return named


def fused(model_type: str, named: Mapping[str, Tensor], shapes: Mapping[str, Size], suffix: str = "") -> dict[str, Tensor]:
    """The other way round: of `shapes`, the experts of a layer whose parts `named` has all, under their names and `suffix`."""
    found = {}
    for name, shape in shapes.items():
        if not _of_experts(model_type, name):
            continue
        whole = torch.empty(shape)
        parts = published(model_type, name, whole)
        if all(part + suffix in named for part, _ in parts):
            for part, place in parts:
                place.copy_(named[part + suffix])
            found[name + suffix] = whole
    return found


def _of_experts(model_type: str, name: str) -> bool:
    return model_type in FUSED and name.rpartition(".")[0].endswith(".mlp.experts")
