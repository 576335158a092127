"""The experts of a layer: one tensor of all in transformers' models, tensors of their own in published files and weight updates.

Updates have the published names because every engine's loader reads those (vLLM, SGLang); transformers fuses them while it reads
a folder, and takes them apart when it writes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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


class Fused(Mapping[str, Tensor]):
    """The other way round: tensors under the names of a model's state, from those that files have. Experts are put together when
    they are asked for, one layer's at a time."""

    def __init__(
        self, named: Mapping[str, Tensor], model_type: str, shapes: Mapping[str, Size], moments: Sequence[str] = ()
    ) -> None:
        """`shapes`: of the model's state. `moments`: what follows its names; none for the weights themselves."""
        self._named = named
        suffixes = [f".{moment}" for moment in moments] or [""]
        experts = {name: shape for name, shape in shapes.items() if _of_experts(model_type, name)}
        self._parts: dict[str, tuple[Size, list[tuple[str, Tensor]]]] = {}
        """Of each whole: its shape, and the names of its parts with views of an empty tensor, which say where they lie."""
        for name, shape in experts.items():
            parts = published(model_type, name, torch.empty(shape, device="meta"))
            for suffix in suffixes:
                if all(part + suffix in named and named[part + suffix].shape == view.shape for part, view in parts):
                    self._parts[name + suffix] = shape, [(part + suffix, view) for part, view in parts]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._parts:
            return self._named[name]
        shape, parts = self._parts[name]
        whole: Tensor | None = None
        for part, view in parts:
            tensor = self._named[part]
            if whole is None:
                whole = torch.empty(shape, dtype=tensor.dtype)
            whole.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(tensor)
        assert whole is not None
        return whole

    def shape(self, name: str) -> Size | None:
        """None for a tensor that is not there."""
        if name in self._parts:
            return self._parts[name][0]
        return self._named[name].shape if name in self._named else None

    def __contains__(self, name: object) -> bool:
        return name in self._parts or name in self._named

    def __iter__(self) -> Iterator[str]:
        return iter([*self._parts, *self._named])

    def __len__(self) -> int:
        return len(self._parts) + len(self._named)


def _of_experts(model_type: str, name: str) -> bool:
    return model_type in FUSED and name.rpartition(".")[0].endswith(".mlp.experts")
