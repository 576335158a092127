"""Safetensors files read tensor by tensor, so that no rank ever holds the whole model for it, and written file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from roll.weights.folder_files import WEIGHTS, weight_files, write_index

SHARD_BYTES = 4 << 30
"""Files of a folder hold at most this much; a smaller model is one file."""
STEM = WEIGHTS.removesuffix(".safetensors")


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of files by name, each mapped from its file when it is asked for: what is not read of it takes no memory."""

    def __init__(self, *paths: Path) -> None:
        self._files: dict[str, Path] = {}
        for path in paths:
            with safe_open(path, framework="pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    @classmethod
    def of_model(cls, folder: Path) -> TensorFiles:
        """The weights of a Hugging Face folder."""
        return cls(*weight_files(folder))

    def read(self, name: str, suffix: str = "") -> Tensor:
        """The tensor that is stored as `name` and `suffix`."""
        return self[name + suffix]

    def meta(self, name: str, suffix: str = "") -> Tensor:
        """A tensor of the same shape as `read` returns, without contents."""
        stored = name + suffix
        with safe_open(self._files[stored], framework="pt") as file:
            return torch.empty(file.get_slice(stored).get_shape(), device="meta")


@dataclass(frozen=True, slots=True)
class FilesOf:
    """Whose files some are: those of one of the ranks that write a folder together."""

    rank: int = 0
    ranks: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def named(self, stem: str, number: int | None = None) -> str:
        """The name of a file; with one rank and no number just the stem's."""
        parts = ([f"{self.rank:05d}"] if self.ranks > 1 else []) + ([f"{number:05d}"] if number is not None else [])
        return "-".join([stem, *parts]) + ".safetensors"


def write_tensors(
    folder: Path, named: Iterable[tuple[str, Tensor]], files_of: FilesOf = FilesOf(), shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes tensors of a model (on the CPU, contiguous) in files of at most `shard_bytes`; of one rank with the index, if they
    are several, of more ranks without: `write_index` completes the folder when all have written."""
    written: list[Path] = []
    pending: dict[str, Tensor] = {}
    size = 0

    def flush() -> None:
        written.append(folder / files_of.named(STEM, len(written) + 1))
        save_file(pending, written[-1], metadata={"format": "pt"})
        pending.clear()

    for name, tensor in named:
        if pending and size + tensor.nbytes > shard_bytes:
            flush()
            size = 0
        pending[name] = tensor
        size += tensor.nbytes
    if pending:
        flush()
    if len(written) == 1:
        written[0].rename(folder / files_of.named(STEM))
    if files_of.ranks == 1:
        write_index(folder)
