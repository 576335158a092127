"""Safetensors files read tensor by tensor, so that no rank ever holds the whole model for it, and written file by file; and the
files of a model as the ranks of a trainer read them when they start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Size, Tensor

from roll.core.weights.folder_files import CONFIG, WEIGHTS, read_header, read_json, weight_files, write_index
from roll.transports.experts import Fused, whole_shapes

SHARD_BYTES = 4 << 30
"""Files of a folder hold at most this much; a smaller model is one file."""
STEM = WEIGHTS.removesuffix(".safetensors")


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of files by name, each mapped from its file when it is asked for: unread parts take no memory."""

    def __init__(self, *paths: Path, only: Collection[str] | None = None) -> None:
        """`only`: of all tensors these. Raises `ValueError` for a damaged header."""
        self._files: dict[str, Path] = {}
        self.shapes: dict[str, Size] = {}
        for path in paths:
            for name, tensor in read_header(path).items():
                if only is None or name in only:
                    self._files[name], self.shapes[name] = path, Size(tensor.shape)

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
    def of_model(cls, folder: Path, only: Collection[str] | None = None) -> TensorFiles:
        """The weights of a Hugging Face folder."""
        return cls(*weight_files(folder), only=only)

    def shape(self, name: str) -> Size:
        return self.shapes[name]

    def read(self, name: str, suffix: str = "") -> Tensor:
        """The tensor that is stored as `name` and `suffix`."""
        return self[name + suffix]

    def meta(self, name: str, suffix: str = "") -> Tensor:
        """A tensor of the same shape as `read` returns, without contents."""
        return torch.empty(self.shapes[name + suffix], device="meta")


@dataclass(frozen=True, slots=True)
class FilesOf:
    """Owner of some files: one of the ranks that write a folder together."""

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
        # Other ranks list what lies in the folder meanwhile: a file of tensors that was seen must stay.
        written.append(folder / f"{files_of.named(STEM, len(written) + 1)}.part")
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
    for number, part in enumerate(written, start=1):
        part.rename(folder / files_of.named(STEM, number if len(written) > 1 else None))
    if files_of.ranks == 1:
        write_index(folder)


class MappedTensors:
    """Most tensors are the model's as they lie in the files: mapped, so that what a rank does not read of them takes no memory.
    Experts are one tensor in the model and many in the files; to put them together takes memory of one's own, so each rank does
    that with its own, when the model is divided."""

    def __init__(self, folder: Path) -> None:
        """Raises `ValueError` for a folder with some experts of a layer only, or with experts of several shapes."""
        self._folder = folder
        self._model_type = str(read_json(folder / CONFIG).get("model_type"))
        self._stored = TensorFiles.of_model(folder)
        self._fused = self._put_together(self._stored)
        if lacking := sorted(whole_shapes(self._model_type, self._stored.shapes).keys() - self._fused.experts.keys()):
            raise ValueError(f"the experts of {lacking[0]} in '{folder}' are not all there, or differ in shape")

    def state(self, dtype: torch.dtype) -> dict[str, Tensor] | None:
        """Returns the tensors to make a model of; its experts are untouched memory, which is allocated when it is first touched.
        None: it is made of the files alone."""
        if not self._fused.experts:
            return None
        parts = self._fused.parts
        state = {name: tensor for name, tensor in self._stored.items() if name not in parts}
        return state | {name: untouched(shape, dtype) for name, shape in self._fused.experts.items()}

    def later(self, wider: Collection[str] = ()) -> Fused:
        """Returns the tensors that the model lacks then: its experts, and those of these names in the files."""
        return self._put_together(TensorFiles.of_model(self._folder, only={*self._fused.parts, *wider}))

    @property
    def fused(self) -> set[str]:
        """The names of all parts of experts."""
        return self._fused.parts

    def _put_together(self, stored: TensorFiles) -> Fused:
        return Fused(stored, self._model_type, whole_shapes(self._model_type, stored.shapes))


def untouched(shape: Size, dtype: torch.dtype) -> Tensor:
    """Returns a tensor without contents. Unlike `torch.empty` it fills its memory not even in torch's deterministic mode."""
    storage = torch.UntypedStorage(shape.numel() * dtype.itemsize)
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(dtype).reshape(shape)
