"""Copies tensors from the host to a device together; separate copies would each make the host wait for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED = 16
"""Alignment of each tensor in bytes, sufficient for a view in any type."""


def to_device(tensors: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Returns the tensors on the device, as views of one piece of its memory; unchanged if they are there already."""
    there = next((each.device for each in tensors if each is not None), device)
    if there == device:
        return list(tensors)
    places, size = [], 0
    for each in tensors:
        places.append(size)
        size += 0 if each is None else -(-each.nbytes // ALIGNED) * ALIGNED
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for each, place in zip(tensors, places, strict=True):
        if each is not None:
            packed[place : place + each.nbytes].view(each.dtype).view(each.shape).copy_(each)
    moved = packed.to(device, non_blocking=True)  # pinned memory is used again only when the copy is done
    return [
        None if each is None else moved[place : place + each.nbytes].view(each.dtype).view(each.shape)
        for each, place in zip(tensors, places, strict=True)
    ]
