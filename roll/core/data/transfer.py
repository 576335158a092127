"""Copies tensors from the host to a device together; separate copies would each make the host wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

ALIGNED = 16
"""Alignment of each tensor in bytes, sufficient for a view in any type."""
Move = Callable[[Tensor], Tensor]


class Movable(Protocol):
    def each(self, move: Move) -> Self:
        """Returns the same with `move` of every tensor that it holds, in the same order each time."""


def moved(parts: Sequence[Movable], device: torch.device) -> list[Any]:
    """Returns the parts on the device, after one copy."""
    seen: list[Tensor] = []
    for part in parts:
        part.each(lambda tensor: seen.append(tensor) or tensor)  # type: ignore[func-returns-value]
    there = iter(to_device(seen, device))
    return [part.each(lambda _: next(there)) for part in parts]


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Returns the tensors on the device, as views of one piece of its memory; unchanged if they are there already."""
    if not tensors or tensors[0].device == device:
        return list(tensors)
    places, size = [], 0
    for each in tensors:
        places.append(size)
        size += -(-each.nbytes // ALIGNED) * ALIGNED
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for each, place in zip(tensors, places, strict=True):
        packed[place : place + each.nbytes].view(each.dtype).view(each.shape).copy_(each)
    there = packed.to(device, non_blocking=True)  # pinned memory is used again only when the copy is done
    return [
        there[place : place + each.nbytes].view(each.dtype).view(each.shape) for each, place in zip(tensors, places, strict=True)
    ]
