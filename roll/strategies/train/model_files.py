"""The files of a model as the ranks of a trainer read them when they start, none of them the whole of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Size, Tensor

from roll.strategies.train.tensor_files import TensorFiles
from roll.weights.experts import Fused, whole_shapes
from roll.weights.folder_files import CONFIG, read_json


class ModelFiles:
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
        """What a model is made of; its experts are memory that nobody has touched, and that is there as soon as somebody does.
        None: it is made of the files alone."""
        if not self._fused.experts:
            return None
        parts = self._fused.parts
        state = {name: tensor for name, tensor in self._stored.items() if name not in parts}
        return state | {name: untouched(shape, dtype) for name, shape in self._fused.experts.items()}

    def later(self, wider: Collection[str] = ()) -> Fused:
        """What the model lacks then: its experts, and the tensors of these names in the files."""
        return self._put_together(TensorFiles.of_model(self._folder, only={*self._fused.parts, *wider}))

    @property
    def fused(self) -> set[str]:
        """The names of all parts of experts."""
        return self._fused.parts

    def _put_together(self, stored: TensorFiles) -> Fused:
        return Fused(stored, self._model_type, whole_shapes(self._model_type, stored.shapes))


def untouched(shape: Size, dtype: torch.dtype) -> Tensor:
    """Without contents. Unlike `torch.empty` it fills its memory not even in torch's deterministic mode."""
    storage = torch.UntypedStorage(shape.numel() * dtype.itemsize)
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(dtype).reshape(shape)
