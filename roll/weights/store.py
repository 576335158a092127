"""The WeightStore: policy versions on their way from the trainer to the engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from roll.weights.bucket import WeightManifest


class VersionGone(LookupError):
    """The store has the version no longer."""


@dataclass(frozen=True, slots=True)
class KeptBucket:
    """A bucket that the back end keeps where a rank of the trainer made it."""

    rank: int
    reference: Any
    names: tuple[str, ...]
    checksum: int
    nbytes: int


BucketRef = Any
"""A `KeptBucket`, the `BucketFile` that one lies in, or the `ServedBucket` that another process has."""


def as_argument(bucket: BucketRef) -> object:
    """What a receiver's worker is called with."""
    return bucket.reference if isinstance(bucket, KeptBucket) else bucket


Receive = Callable[[int, BucketRef], Coroutine[Any, Any, None]]
"""`receive(version, bucket)`: one receiver's way to take a bucket."""


class WeightSource(Protocol):
    """Where engines find versions."""

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        """Hands every bucket of `version` to the receiver. Raises `VersionGone`."""

    def manifest(self, version: int) -> WeightManifest:
        """The manifest of a version. Raises `VersionGone`."""

    async def retain(self, versions: Collection[int]) -> None:
        """Retains these versions; the store may delete all others."""


class WeightStore(WeightSource, Protocol):
    """Where a trainer leaves them."""

    def begin(self, version: int) -> Path | None:
        """The folder that the trainer's ranks write their buckets to, as `BucketFile`s; None: they leave them with the back
        end."""

    async def publish(self, manifest: WeightManifest, buckets: list[BucketRef]) -> None:
        """Publishes a whole version: from now on it can be pulled."""


class MemoryWeightStore:
    """Keeps references to the buckets of the versions that are needed; the bytes lie with the back end (shared memory under
    Ray)."""

    def __init__(self) -> None:
        self._latest = -1
        self._held: dict[int, tuple[WeightManifest, list[BucketRef]]] = {}

    def begin(self, version: int) -> None:
        return None

    async def publish(self, manifest: WeightManifest, buckets: list[BucketRef]) -> None:
        if manifest.version <= self._latest:
            raise ValueError(f"version {manifest.version} published after version {self._latest}")
        self._held[manifest.version] = (manifest, buckets)
        self._latest = manifest.version

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        manifest, buckets = self._of(version)
        for bucket in buckets:
            await into(version, bucket)
        return manifest

    def manifest(self, version: int) -> WeightManifest:
        return self._of(version)[0]

    async def retain(self, versions: Collection[int]) -> None:
        self._held = {version: held for version, held in self._held.items() if version in versions}

    def _of(self, version: int) -> tuple[WeightManifest, list[BucketRef]]:
        if version not in self._held:
            raise VersionGone(f"version {version} is not kept any more")
        return self._held[version]
