"""Weights in transit: named tensors in buckets of bounded size, with a manifest that lets the receiver verify them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
import xxhash
from safetensors.torch import load_file
from torch import Tensor

from roll.core.errors import boundary
from roll.core.weights.layout import PROCESSES, as_bytes, write_file

Named = Iterable[tuple[str, Tensor]]


class Described(Protocol):
    """A bucket, or a reference to one."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def checksum(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Readable(Protocol):
    """A receiver's argument: a bucket sent with the call, or one that the receiver reads from its place."""

    def read(self) -> Bucket:
        """Reads the bucket, blocking. Raises `ValueError` for other content, `ConnectionError` if unavailable now."""


@dataclass(slots=True)
class Bucket:
    """Some of a model's tensors, contiguous, under their Hugging Face names; on the CPU, unless sent from device to
    device."""

    tensors: dict[str, Tensor]
    checksum: int
    """XXH3 over the tensors' bytes in the order of the names: detects damage, not forgery."""
    file: str | None = None
    """The safetensors file in this machine's memory that the tensors are views of; opening it avoids a copy."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    def __reduce__(self) -> tuple[object, ...]:
        # As plain byte arrays the tensors travel out of band: through Ray's store they are shared memory, not copies.
        parts = [(n, as_bytes(t).numpy(), str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in self.tensors.items()]
        return _rebuild, (parts, self.checksum)

    def read(self) -> Bucket:
        return self

    def verify(self) -> None:
        """Raises `ValueError` if the bytes differ from the sent ones."""
        if checksum(self.tensors) != self.checksum:
            raise ValueError(f"weight bucket is corrupt: checksum differs for tensors {sorted(self.tensors)}")


@dataclass(slots=True)
class WeightManifest:
    """Names, checksums and size of a complete set of weights of one version."""

    version: int
    names: list[str] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    nbytes: int = 0
    base: int | None = None
    """The version that this delta applies to (`roll.transports.delta`); None: the version is whole."""

    def check(self, version: int | None, names: Iterable[str], checksums: Iterable[int]) -> None:
        """Raises `ValueError` unless the received tensors, of `version`, are exactly this set, intact."""
        if version != self.version:
            raise ValueError(f"weights of version {self.version} were requested, but the received weights are of {version}")
        if difference := set(names).symmetric_difference(self.names):
            raise ValueError(f"weights of version {self.version}: received and manifest differ in {sorted(difference)}")
        if sorted(checksums) != sorted(self.checksums):
            raise ValueError(f"weights of version {self.version}: checksums differ from the manifest's")


def checksum(tensors: dict[str, Tensor]) -> int:
    digest = xxhash.xxh3_64()
    for name in sorted(tensors):
        digest.update(as_bytes(tensors[name]).numpy().data)
    return digest.intdigest()


def _rebuild(parts: list[tuple[str, object, str, tuple[int, ...]]], checked: int) -> Bucket:
    with warnings.catch_warnings():
        # The array is read-only shared memory; receivers only copy from it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensors = {
            name: torch.from_numpy(array).view(getattr(torch, dtype)).reshape(shape) for name, array, dtype, shape in parts
        }
    return Bucket(tensors, checked)


def make_buckets(
    named: Named, bucket_bytes: int, rank: int = 0, ranks: int = 1, copies: PinnedCopies | None = None, borrow: bool = False
) -> Iterator[Bucket]:
    """Groups tensors, in their order, into buckets of at most `bucket_bytes` (a larger tensor gets its own bucket).

    All `ranks` iterate over the same tensors; each gets every `ranks`-th bucket, beginning with the one of its own number, and
    keeps nothing of the others. If the tensors come by collectives, a rank that hashes a bucket would delay all others; so each
    rank yields its bucket when all have theirs, and they hash in parallel. Tensors are copied to the CPU, so training does not
    change a bucket. `copies`: copies them from an accelerator; each bucket is then yielded when the copies of the next one are
    under way, and no more than two exist unless the caller keeps them. `borrow`: lent, until the next, if on the CPU."""
    copy = copies.copy if copies else lambda tensor: tensor.detach().to("cpu", copy=not borrow).contiguous()
    shares = _shares(named, bucket_bytes, rank, ranks, copy)
    for tensors in shares if copies is None else _one_ahead(shares, copies):
        yield Bucket(tensors, checksum(tensors))
        del tensors


def _shares(
    named: Named, bucket_bytes: int, rank: int, ranks: int, copy: Callable[[Tensor], Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Yields this rank's tensors of each round over the ranks, at the end of the round."""
    own: dict[str, Tensor] = {}
    index = count = size = 0
    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        if count and size + nbytes > bucket_bytes:
            index, count, size = index + 1, 0, 0
            if own and index % ranks == 0:
                yield own
                own = {}
        if index % ranks == rank:
            own[name] = copy(tensor)
        count, size = count + 1, size + nbytes
    if own:
        yield own


def _one_ahead(shares: Iterator[dict[str, Tensor]], copies: PinnedCopies) -> Iterator[dict[str, Tensor]]:
    """Yields each share, copied, after the copies of the next one have begun."""
    waiting: list[tuple[torch.cuda.Event, dict[str, Tensor]]] = []
    for share in shares:
        waiting.append((copies.mark(), share))
        del share
        if len(waiting) > 1:
            yield _copied(*waiting.pop(0))
    for last in waiting:
        yield _copied(*last)


def _copied(mark: torch.cuda.Event, share: dict[str, Tensor]) -> dict[str, Tensor]:
    mark.synchronize()
    return share


def manifest_of(version: int, buckets: Collection[Described], base: int | None = None) -> WeightManifest:
    names = [name for bucket in buckets for name in bucket.names]
    checksums = [bucket.checksum for bucket in buckets]
    return WeightManifest(version, names, checksums, sum(bucket.nbytes for bucket in buckets), base)


class PinnedCopies:
    """Copies tensors into page-locked memory by the device's copy engine. torch's allocator reuses a block when its last tensor
    is gone and the copy into it has ended; so buckets that are handed over one by one share a few blocks. The copies run in the
    device's current stream, so they are ordered with the kernels that compute and overwrite the tensors, without waiting."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, tensor: Tensor) -> Tensor:
        """Begins a contiguous copy in its own host memory, which may be read when the next mark is reached."""
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor.detach(), non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


def host_copies(device: torch.device) -> PinnedCopies | None:
    """Returns None if tensors are in host memory already."""
    return PinnedCopies(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class BucketFile:
    """A bucket stored in a file."""

    path: str
    names: tuple[str, ...]
    checksum: int
    nbytes: int

    @property
    def argument(self) -> BucketFile:
        return self

    @classmethod
    def write(cls, bucket: Bucket, path: Path) -> BucketFile:
        try:
            write_file(bucket.tensors, path)
        except OSError as error:  # which names no file
            raise OSError(f"weight bucket '{path}' cannot be written: {error}") from error
        return cls(str(path), bucket.names, bucket.checksum, bucket.nbytes)

    def read(self) -> Bucket:
        """Reads the bucket; its `verify` detects changed bytes. Raises `ValueError` if the file has other tensors, or is no
        bucket file."""
        with boundary(ValueError, f"weight bucket '{self.path}' cannot be read", say=str):
            tensors = load_file(self.path)
        if tensors.keys() != set(self.names):
            raise ValueError(f"weight bucket '{self.path}' has tensors {sorted(tensors)} instead of {sorted(self.names)}")
        file = self.path if Path(self.path).is_relative_to(PROCESSES) else None
        return Bucket({name: tensors[name] for name in self.names}, self.checksum, file)
