"""Buckets that a trainer's rank lends to the engines of its device: it puts the tensors, in the type that they are sent in, into
one of two buffers there, and an engine copies them out of that, device to device, without a byte through host memory.

Beside it the bucket is written to its file, as without: an engine that puts the version off, comes back after a death, lies on
another device or cannot map the buffer reads that. `loans` says when a buffer may be written again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from roll.core.weights.bucket import Bucket, BucketFile
from roll.core.weights.layout import CODES
from roll.transports.packed import view
from roll.transports.shared_buffers import BUFFERS, SharedBuffer, mapped, memory_of

COUNT = 2
"""Buffers of a rank: one is written while the other is read."""
ALIGNED = 16
SLACK = 1 << 16
"""Bytes of a buffer for gaps between tensors."""
WORDS = 1 << 20
"""Numbers of eight bytes that are summed at once."""
PRIME = 0x100000001B3


@dataclass(frozen=True, slots=True)
class Lent:
    """Tensors in another process's buffer, by plain values."""

    memory: str
    """See `memory_of`."""
    process: int
    handle: bytes
    nbytes: int
    tensors: Sequence[tuple[str, str, Sequence[int], int, int]]
    """Name, type, shape, position and seal of each."""

    def plain(self) -> tuple[Any, ...]:
        """The arguments of an equal one."""
        return astuple(self)

    @property
    def shapes(self) -> dict[str, list[int]]:
        return {name: list(shape) for name, _, shape, _, _ in self.tensors}

    @property
    def seals(self) -> dict[str, int]:
        return {name: seal for name, _, _, _, seal in self.tensors}


@dataclass(frozen=True, slots=True)
class LentBucket(BucketFile):
    """A bucket in its file, which is lent, too."""

    lent: Lent


@runtime_checkable
class Borrower(Protocol):
    """A strategy of inference that copies lent tensors."""

    async def receive_lent(self, version: int, bucket: LentBucket) -> None:
        """Does what `receive_bucket` does. Raises `ValueError`, and keeps nothing, where the file has to be read."""


class Lender:
    """The buffers of a rank, which stay as long as the rank."""

    def __init__(self, kinds: Mapping[str, type[SharedBuffer]] = BUFFERS) -> None:
        """`kinds`: by the type of device; tensors of others are not lent."""
        self._kinds = kinds
        self._buffers: list[SharedBuffer | None] = [None] * COUNT
        self._bucket_bytes = 0
        self._slot: int | None = None
        """The buffer of the bucket that is being made; None: it is not lent."""
        self._placed: list[tuple[Tensor, int]] = []
        """The tensors that are in it, and where."""
        self._end = 0

    def begin(self, bucket_bytes: int) -> Callable[[Tensor], Tensor]:
        """Begins an export. Returns the function that places each tensor."""
        self._bucket_bytes = bucket_bytes
        return self._place

    def use(self, slot: int | None) -> None:
        """Called before each bucket. `slot`: a buffer that nobody reads."""
        self._slot, self._placed, self._end = slot, [], 0

    def lent(self, names: Sequence[str]) -> Lent | None:
        """Returns the bucket, whose copies are done: the seals are computed from them. None: it is not lent."""
        if self._slot is None or len(names) != len(self._placed) or (buffer := self._buffers[self._slot]) is None:
            return None
        seals = torch.stack([seal(tensor) for tensor, _ in self._placed]).tolist()  # waits for the device
        tensors = [
            (name, CODES[tensor.dtype], tuple(tensor.shape), begin, seal)
            for name, (tensor, begin), seal in zip(names, self._placed, seals, strict=True)
        ]
        memory = memory_of(self._placed[0][0].device)
        return Lent(memory, os.getpid(), buffer.handle, buffer.memory.numel(), tensors)

    def _place(self, tensor: Tensor) -> Tensor:
        """Copies a tensor into the buffer. Returns the copy, or the tensor where there is no buffer for it."""
        tensor = tensor.detach()
        begin = -(-self._end // ALIGNED) * ALIGNED
        end = begin + tensor.numel() * tensor.element_size()
        if self._slot is None or (buffer := self._buffer(self._slot, tensor.device, end)) is None:
            self._slot = None
            return tensor
        copy = buffer.memory[begin:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._placed.append((copy, begin))
        self._end = end
        return copy

    def _buffer(self, slot: int, device: torch.device, end: int) -> SharedBuffer | None:
        """A buffer of at least `end` bytes: a bucket that is larger than others is a single tensor, so nothing is in it yet."""
        kind, there = self._kinds.get(device.type), self._buffers[slot]
        if kind is None or (self._placed and (there is None or end > there.memory.numel())):
            return None
        if there is None or end > there.memory.numel():
            self._buffers[slot] = None
            if there is not None:
                there.close()
            try:
                self._buffers[slot] = kind(max(end, self._bucket_bytes + SLACK), device)
            except (RuntimeError, OSError) as error:
                logging.getLogger(__name__).warning("a bucket is not lent to the engines of %s: %s", device, error)
        return self._buffers[slot]


def seal(tensor: Tensor) -> Tensor:
    """[] int64, of the tensor's bytes and their order, computed where it lies, the same on every device: detects damage, not
    forgery."""
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    flat = flat.clone() if flat.storage_offset() % 8 else flat
    words = flat[: flat.numel() // 8 * 8].view(torch.int64)
    weights = torch.arange(1, 2 * min(WORDS, words.numel() or 1), 2, device=tensor.device)
    found = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in words.split(WORDS):
        found = found * PRIME + (part * weights[: len(part)]).sum()
    for byte in flat[words.numel() * 8 :]:
        found = found * PRIME + byte
    return found


@contextmanager
def borrowed(lent: Lent, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """Yields the tensors, as views of the lender's memory. Raises `ValueError` if they cannot be had on this device."""
    if lent.memory != memory_of(device):
        raise ValueError("the bucket lies on another device")
    if lent.process == os.getpid():
        raise ValueError("the bucket is of the process itself")
    try:
        with mapped(lent.handle, lent.nbytes, device) as content:
            yield {name: view(content, code, shape, begin) for name, code, shape, begin, _ in lent.tensors}
    except (RuntimeError, OSError) as error:
        raise ValueError(f"a lent bucket cannot be read: {error}") from error


def check(lent: Lent, copies: Mapping[str, Tensor]) -> None:
    """Waits for the copies. Raises `ValueError` unless they are what was lent."""
    found = torch.stack([seal(copies[name]) for name in lent.seals]).tolist()
    if found != list(lent.seals.values()):
        raise ValueError("the memory of a lent bucket has changed")


@dataclass(slots=True)
class BorrowedBucket(Bucket):
    """A bucket of views, which a receiver in this process verifies and copies."""

    lent: Lent | None = None

    def verify(self) -> None:
        assert self.lent is not None
        check(self.lent, self.tensors)


def take(bucket: LentBucket, device: torch.device, receive: Callable[[Bucket], None]) -> None:
    """Hands the receiver a bucket of views, and looks once more at what it has copied from. Raises `ValueError`."""
    with borrowed(bucket.lent, device) as views:
        receive(there := BorrowedBucket(views, bucket.checksum, lent=bucket.lent))
        there.verify()


class LentCopies:
    """Copies of one version's lent tensors on a device, until the engine loads them. Raises `ValueError` and `RuntimeError`."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._tensors: dict[str, Tensor] = {}

    def receive(self, version: int, lent: Lent, device: torch.device) -> None:
        if version != self._version:
            self._version, self._tensors = version, {}
        with borrowed(lent, device) as views:
            copies = {name: view.clone() for name, view in views.items()}
            check(lent, copies)
        self._tensors |= copies

    def take(self, names: Sequence[str]) -> list[tuple[str, Tensor]]:
        """Returns and forgets the tensors."""
        tensors, self._version, self._tensors = self._tensors, None, {}
        return [(name, tensors[name]) for name in names]
