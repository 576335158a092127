"""Frees an accelerator's memory below live tensors, and gives it back: views, parameters and buffers stay what they are."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor, UntypedStorage

ALIGNED = 512
"""Bytes at a multiple of which contents begin in the host's memory."""

logger = logging.getLogger(__name__)


class StorageOffload:
    """Contents wait in one piece of the host's memory, which is page-locked for the device's copy engine and kept for the next
    time."""

    def __init__(self) -> None:
        self._host = torch.empty(0, dtype=torch.uint8)
        self._waiting: list[tuple[UntypedStorage, Tensor | int]] = []
        """Emptied storages, each with its contents, or with its size alone."""

    def offload(self, kept: Iterable[Tensor], scratch: Iterable[Tensor] = ()) -> None:
        """Moves tensors to the host. `scratch`: those whose contents are not needed again. No effect if already offloaded."""
        if self._waiting:
            return
        seen: set[int] = set()
        keeping, rest = _storages(kept, seen), _storages(scratch, seen)
        *starts, size = accumulate((-(-storage.nbytes() // ALIGNED) * ALIGNED for storage in keeping), initial=0)
        self._make_room(size, any(storage.device.type == "cuda" for storage in keeping))
        for storage, start in zip(keeping, starts, strict=True):
            place = self._host[start : start + storage.nbytes()]
            self._waiting.append((storage, place.copy_(_bytes(storage), non_blocking=True)))
        self._waiting += [(storage, storage.nbytes()) for storage in rest]
        if any(storage.device.type == "cuda" for storage in keeping):
            torch.cuda.synchronize(keeping[0].device)  # the memory is others' now
        for storage, _ in self._waiting:
            storage.resize_(0)

    def reload(self) -> None:
        """Brings the tensors back. Later uses are behind the copies in the device's stream."""
        for storage, content in self._waiting:
            storage.resize_(content if isinstance(content, int) else content.numel())
            if not isinstance(content, int):
                _bytes(storage).copy_(content, non_blocking=True)
        self._waiting.clear()

    def _make_room(self, size: int, locked: bool) -> None:
        if self._host.numel() >= size:
            return
        if locked and self._host.numel():
            torch.cuda.cudart().cudaHostUnregister(self._host.data_ptr())
        self._host = torch.empty(size, dtype=torch.uint8)
        # Not `pin_memory`, which takes up to twice as much: the next power of two.
        if locked and int(torch.cuda.cudart().cudaHostRegister(self._host.data_ptr(), size, 0)) != 0:
            logger.warning("%d bytes cannot be page-locked (ulimit -l): roles that share devices change more slowly", size)


def _storages(tensors: Iterable[Tensor], seen: set[int]) -> list[UntypedStorage]:
    """Returns the storages that have memory and were not seen before."""
    found = []
    for storage in (tensor.untyped_storage() for tensor in tensors):
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found.append(storage)
    return found


def _bytes(storage: UntypedStorage) -> Tensor:
    """[bytes] uint8, a view."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
