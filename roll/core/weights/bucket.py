"""Weights in transit: named tensors in buckets of bounded size, with a manifest that lets the receiver verify them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
import xxhash
from safetensors.torch import load_file
from torch import Tensor

from roll.core.errors import boundary
from roll.core.weights.layout import PROCESSES, as_bytes, write_file

Put = Callable[[Tensor], Tensor]


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


def manifest_of(version: int, buckets: Collection[Described], base: int | None = None) -> WeightManifest:
    names = [name for bucket in buckets for name in bucket.names]
    checksums = [bucket.checksum for bucket in buckets]
    return WeightManifest(version, names, checksums, sum(bucket.nbytes for bucket in buckets), base)


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
