"""Safetensors files read tensor by tensor, so that no rank ever holds the whole model for it, and written file by file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from roll.weights.folder_files import INDEX, weight_files

SHARD_BYTES = 4 << 30
"""Files of a folder hold at most this much; a smaller model is one file."""


class TensorFiles:
    """The tensors of some files by name; a name that none of them has raises `KeyError`."""

    def __init__(self, *paths: Path) -> None:
        self._files: dict[str, Path] = {}
        for path in paths:
            with safe_open(path, framework="pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))

    @classmethod
    def of_model(cls, folder: Path) -> TensorFiles:
        """The weights of a Hugging Face folder."""
        return cls(*weight_files(folder))

    def read(self, name: str, suffix: str = "") -> Tensor:
        """The tensor that is stored as `name` and `suffix`."""
        stored = name + suffix
        with safe_open(self._files[stored], framework="pt") as file:
            tensor: Tensor = file.get_tensor(stored)
            return tensor

    def meta(self, name: str, suffix: str = "") -> Tensor:
        """A tensor of the same shape as `read` returns, without contents."""
        stored = name + suffix
        with safe_open(self._files[stored], framework="pt") as file:
            return torch.empty(file.get_slice(stored).get_shape(), device="meta")


def write_model(folder: Path, named: Iterable[tuple[str, Tensor]], shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the tensors (on the CPU, contiguous) in files of at most `shard_bytes`, and an index if they need several."""
    files: dict[str, list[str]] = {}
    pending: dict[str, Tensor] = {}
    size = total = 0

    def flush() -> None:
        file = f"model-{len(files) + 1:05d}.safetensors"
        save_file(pending, folder / file, metadata={"format": "pt"})
        files[file] = list(pending)
        pending.clear()

    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        if pending and size + nbytes > shard_bytes:
            flush()
            size = 0
        pending[name] = tensor
        size, total = size + nbytes, total + nbytes
    flush()
    if len(files) == 1:
        (folder / next(iter(files))).rename(folder / "model.safetensors")
    else:
        weight_map = {name: file for file, names in files.items() for name in names}
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2) + "\n")
