"""The experts of a layer: one tensor of all in transformers' models, tensors of their own in published files and weight updates.

Updates have the published names because every engine's loader reads those (vLLM, SGLang); transformers fuses them while it reads
a folder, and takes them apart when it writes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Size, Tensor

FUSED = ("qwen2_moe", "qwen3_moe")
"""`model_type` of the families whose names are known."""
_PART = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(?:gate|up|down)_proj\.weight")


@runtime_checkable
class KnowsShapes(Protocol):
    """A mapping that need not read a tensor to say its shape."""

    def shape(self, name: str) -> Size | None: ...


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
    """Applies `published` to an optimiser's `<parameter>.<moment>`; parts of a whole are copied."""
    named: dict[str, Tensor] = {}
    for stored, tensor in moments.items():
        name, _, moment = stored.rpartition(".")
        parts = published(model_type, name, tensor)
        named |= {f"{part}.{moment}": view if view is tensor else view.clone() for part, view in parts}
    return named


def whole_shapes(model_type: str, parts: Mapping[str, Size]) -> dict[str, Size]:
    """Names and shapes of the tensors that a model of the family has in place of these of a file's, as far as the first expert of
    each layer tells."""
    numbers: dict[str, set[str]] = {}
    for match in map(_PART.fullmatch, parts if model_type in FUSED else ()):
        if match is not None:
            numbers.setdefault(match[1], set()).add(match[2])
    wholes: dict[str, Size] = {}
    for experts, found in numbers.items():
        for name, kind, matrices in (("gate_up_proj", "gate_proj", 2), ("down_proj", "down_proj", 1)):
            shape = parts.get(f"{experts}.0.{kind}.weight")
            if shape is not None and len(shape) == 2:
                wholes[f"{experts}.{name}"] = Size((len(found), matrices * shape[0], shape[1]))
    return wholes


class Fused(Mapping[str, Tensor]):
    """The other way round: tensors under the names of a model's state, from those that files have. Experts are put together when
    they are asked for, one layer's at a time, or some of a layer's."""

    def __init__(
        self, named: Mapping[str, Tensor], model_type: str, shapes: Mapping[str, Size], moments: Sequence[str] = ()
    ) -> None:
        """`shapes`: of the model's state. `moments`: suffixes of its names; none for the weights themselves."""
        self._named = named
        suffixes = [f".{moment}" for moment in moments] or [""]
        experts = {name: shape for name, shape in shapes.items() if _of_experts(model_type, name)}
        self._parts: dict[str, tuple[Size, list[tuple[str, Tensor]]]] = {}
        """Whole -> its shape, and the names of its parts with views of an empty tensor, which say where they lie."""
        for name, shape in experts.items():
            parts = published(model_type, name, torch.empty(shape, device="meta"))
            for suffix in suffixes:
                if all(_shape(named, part + suffix) == view.shape for part, view in parts):
                    self._parts[name + suffix] = shape, [(part + suffix, view) for part, view in parts]

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name, 0, self._parts[name][0][0]) if name in self._parts else self._named[name]

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """`self[name][begin:end]`. Of experts no others are read, and the widest type of a part is that of all."""
        if name not in self._parts:
            return self._named[name][begin:end]
        shape, parts = self._parts[name]
        each = len(parts) // shape[0]
        before = begin * shape[1] * shape[2]
        rows: Tensor | None = None
        for part, view in parts[begin * each : end * each]:
            tensor = self._named[part]
            if rows is None:
                rows = torch.empty((end - begin, *shape[1:]), dtype=tensor.dtype)
            rows = rows.to(torch.promote_types(rows.dtype, tensor.dtype))
            rows.as_strided(view.shape, view.stride(), view.storage_offset() - before).copy_(tensor)
        return torch.empty((0, *shape[1:])) if rows is None else rows

    @property
    def experts(self) -> dict[str, Size]:
        """Shapes of the assembled tensors."""
        return {name: shape for name, (shape, _) in self._parts.items()}

    @property
    def parts(self) -> set[str]:
        """Names of their parts."""
        return {part for _, parts in self._parts.values() for part, _ in parts}

    def shape(self, name: str) -> Size | None:
        """Returns None for a tensor that is not there."""
        return self._parts[name][0] if name in self._parts else _shape(self._named, name)

    def __contains__(self, name: object) -> bool:
        return name in self._parts or name in self._named

    def __iter__(self) -> Iterator[str]:
        return iter([*self._parts, *self._named])

    def __len__(self) -> int:
        return len(self._parts) + len(self._named)


def _shape(named: Mapping[str, Tensor], name: str) -> Size | None:
    if name not in named:
        return None
    return named.shape(name) if isinstance(named, KnowsShapes) else named[name].shape


def _of_experts(model_type: str, name: str) -> bool:
    return model_type in FUSED and name.rpartition(".")[0].endswith(".mlp.experts")
