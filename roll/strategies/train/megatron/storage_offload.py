"""Frees an accelerator's memory below live tensors, and gives it back: views, parameters and buffers stay what they are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class StorageOffload:
    """Contents wait in the CPU's memory while the storages are empty."""

    def __init__(self) -> None:
        self._waiting: list[tuple[torch.UntypedStorage, torch.UntypedStorage | int]] = []

    def offload(self, kept: Iterable[Tensor], scratch: Iterable[Tensor] = ()) -> None:
        """`scratch`: tensors whose contents are not needed again. No effect if already offloaded."""
        if self._waiting:
            return
        seen: set[int] = set()
        for tensors, keep in ((kept, True), (scratch, False)):
            for tensor in tensors:
                storage = tensor.untyped_storage()
                if storage.data_ptr() in seen or storage.nbytes() == 0:
                    continue
                seen.add(storage.data_ptr())
                content: torch.UntypedStorage | int = storage.nbytes()
                if keep:
                    content = torch.UntypedStorage(storage.nbytes())
                    content.copy_(storage, non_blocking=False)
                self._waiting.append((storage, content))
        for storage, _ in self._waiting:
            storage.resize_(0)

    def reload(self) -> None:
        for storage, content in self._waiting:
            storage.resize_(content if isinstance(content, int) else content.nbytes())
            if not isinstance(content, int):
                storage.copy_(content)
        self._waiting.clear()
