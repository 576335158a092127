"""Copies from an accelerator to the host that do not make the caller wait."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    def synchronize(self) -> None:
        """Returns when the copies before it are there."""


class HostCopies(Protocol):
    def copy(self, tensor: Tensor) -> Tensor:
        """Begins a copy, contiguous and in host memory of its own, which may be read after the next mark."""

    def mark(self) -> Mark: ...


class PinnedCopies:
    """Into page-locked memory, by the device's copy engine. The memory is torch's, which has a block for a new tensor again when
    the tensor before is gone and what was to be copied to it is there; so buckets that are handed over one by one share a few
    blocks. All of it happens in the device's current stream: what the tensors are made by, and what overwrites them, is in
    order without waiting."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, tensor: Tensor) -> Tensor:
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor.detach(), non_blocking=True)

    def mark(self) -> Mark:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


def host_copies(device: torch.device) -> HostCopies | None:
    """None where tensors are in host memory already."""
    return PinnedCopies(device) if device.type == "cuda" else None
