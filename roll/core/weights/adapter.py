"""LoRA adapters in transit: the content of a weight update if the engine has the base weights itself.

A linear layer `<path>` with adapters is two tensors, `<path>.lora_A.weight` [r, in] and `<path>.lora_B.weight` [out, r], the
latter multiplied by the scale lora_alpha / r: the layer's weight is W + B·A. One more tensor, `BASE`, identifies the base of the
adapters. Every update applies to the base, never to the previous update, so engines may skip versions.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from roll.core.weights.bucket import checksum

A, B = ".lora_A.weight", ".lora_B.weight"
BASE = "base_fingerprint"


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """The base and start of an engine whose weight updates are adapters."""

    base: str
    """Model folder of the base weights."""
    rank: int
    start: str | None = None
    """Folder, in peft's format, of the adapters in the engine's first version; None: no adapters."""


def is_adapter(names: Iterable[str]) -> bool:
    """True if a bucket's or manifest's tensors are adapters, not the model's own weights."""
    return any(name.endswith((A, B)) or name == BASE for name in names)


def merge(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Returns W + B·A, [out, in] float32. Trainer and engines merge by this function alone, to get the same bits."""
    return weight.float() + b.float() @ a.float()


def with_base(adapters: Iterable[tuple[str, Tensor]], base: BaseWeights) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of an update."""
    yield BASE, torch.tensor([base.fingerprint])
    yield from adapters


class BaseWeights:
    """The base weights of adapters, in a model folder. They stay in its files; the page cache makes reading them cheap."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Path] = {}
        self.shapes: dict[str, list[int]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for name in file.offset_keys():
                    self._files[name] = path
                    self.shapes[name] = list(file.get_slice(name).get_shape())
        if not self.shapes:
            raise ValueError(f"{folder} has no *.safetensors files")
        self._fingerprint: int | None = None

    def read(self, name: str) -> Tensor:
        """Reads a weight in the type of its file. Thread-safe."""
        with safe_open(self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    @property
    def fingerprint(self) -> int:
        """A hash over names, shapes and first rows of all tensors. It distinguishes models; it does not check every byte."""
        if self._fingerprint is None:
            crc = 0
            for name in sorted(self.shapes):
                with safe_open(self._files[name], framework="pt") as file:
                    part = file.get_slice(name)[:1] if self.shapes[name] else file.get_tensor(name)
                crc = zlib.crc32(f"{name} {self.shapes[name]} {checksum({name: part})}".encode(), crc)
            self._fingerprint = crc
        return self._fingerprint

    def check(self, adapters: Mapping[str, Tensor], rank: int) -> None:
        """Raises `ValueError` unless these are adapter tensors of rank `rank` for layers of this very base."""
        for name, tensor in adapters.items():
            if name == BASE:
                if tensor.tolist() != [self.fingerprint]:
                    raise ValueError(f"the adapters are of another base than the engine's, '{self.folder}'")
                continue
            layer = self.shapes.get(weight_of(name), []) if name.endswith((A, B)) else []
            if len(layer) != 2:
                raise ValueError(f"{name!r} is not an adapter of a linear layer of the model")
            expected = [rank, layer[1]] if name.endswith(A) else [layer[0], rank]
            if list(tensor.shape) != expected:
                raise ValueError(f"adapter {name!r} has shape {list(tensor.shape)}, its layer and rank need {expected}")


def weight_of(name: str) -> str:
    """Returns the name of the weight that an adapter's tensor belongs to."""
    return name.removesuffix(A).removesuffix(B) + ".weight"


def adapted_weights(names: Collection[str]) -> set[str]:
    """Returns the names of the adapted weights. Raises `ValueError` if an adapter is incomplete or `BASE` is missing."""
    given = {name for name in names if name != BASE}
    wanted = {weight_of(name).removesuffix(".weight") + part for name in given for part in (A, B)}
    if missing := ({*wanted, BASE} - set(names)) | (given - wanted):
        raise ValueError(f"the adapters are incomplete: {sorted(missing)} missing")
    return {weight_of(name) for name in given}
