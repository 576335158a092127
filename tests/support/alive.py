"""How many bytes of tensors are alive at a time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """Bytes of the tensors that are made inside, while they live, and their largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.shapes: set[tuple[int, ...]] = set()
        """Of every tensor that was made."""
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage(), made=False)
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.shapes.add(tuple(tensor.shape))
                self._note(tensor.untyped_storage(), made=True)
        return out

    def _note(self, storage: torch.UntypedStorage, made: bool) -> None:
        key, size = storage._cdata, storage.nbytes() if made else 0
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
