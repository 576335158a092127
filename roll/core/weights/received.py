"""The received buckets of a version, which arrive in any order and perhaps twice."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from roll.core.weights.adapter import A, AdapterSource, B, BaseWeights, adapted_weights, is_adapter, merge
from roll.core.weights.bucket import Bucket, Described, WeightManifest

T = TypeVar("T")


class ReceivedBuckets(Generic[T]):
    """The received buckets of one version, each with a value kept by the receiver. Not thread-safe."""

    def __init__(self) -> None:
        self.version: int | None = None
        self._kept: dict[tuple[str, ...], tuple[int, T]] = {}
        """Names of a bucket -> its checksum and kept value."""

    @property
    def names(self) -> set[str]:
        """Names of all received tensors."""
        return {name for names in self._kept for name in names}

    @property
    def kept(self) -> list[T]:
        return [kept for _, kept in self._kept.values()]

    def make_room(self, version: int, bucket: Described) -> list[T]:
        """Called before `keep`: forgets and returns the values that the bucket replaces. These are all of another version, or
        those of buckets that share a name with it."""
        if version != self.version:
            gone, self.version = self.clear(), version
            return gone
        replaced = [names for names in self._kept if not set(bucket.names).isdisjoint(names)]
        return [self._kept.pop(names)[1] for names in replaced]

    def keep(self, bucket: Described, what: T) -> None:
        self._kept[bucket.names] = bucket.checksum, what

    def check(self, manifest: WeightManifest) -> None:
        """Raises `ValueError` unless the received buckets are exactly those of the manifest, intact."""
        manifest.check(self.version, self.names, [checksum for checksum, _ in self._kept.values()])

    def clear(self) -> list[T]:
        """Forgets and returns all kept values."""
        gone = self.kept
        self.version, self._kept = None, {}
        return gone


class ReceivedWeights:
    def __init__(self, dtype: torch.dtype, adapters: AdapterSource | None = None) -> None:
        """`dtype`: number type that the model computes in. `adapters`: the base of versions that consist of adapters alone;
        None: all versions are whole weights."""
        self._dtype = dtype
        self._base = BaseWeights(Path(adapters.base)) if adapters is not None else None
        self._rank = adapters.rank if adapters is not None else 0
        self._buckets: ReceivedBuckets[Bucket] = ReceivedBuckets()

    def receive(self, version: int, bucket: Bucket) -> None:
        """Keeps a bucket and forgets those of other versions. Raises `ValueError` if the bucket is corrupt."""
        bucket.verify()
        self._buckets.make_room(version, bucket)
        self._buckets.keep(bucket, bucket)

    def take(self, manifest: WeightManifest) -> dict[str, Tensor]:
        """Returns and forgets the manifest's version as whole weights. Raises `ValueError` unless exactly it was received."""
        buckets, self._buckets = self._buckets, ReceivedBuckets()
        buckets.check(manifest)
        received = {name: tensor for bucket in buckets.kept for name, tensor in bucket.tensors.items()}
        return self._merged(received) if is_adapter(received) else received

    def _merged(self, received: dict[str, Tensor]) -> dict[str, Tensor]:
        """Merges the adapters into the base."""
        if self._base is None:
            raise ValueError("adapters were sent to a model that was started without their base")
        self._base.check(received, self._rank)
        adapted = adapted_weights(received)
        whole = {name: self._base.read(name) for name in self._base.shapes if name not in adapted}
        for name in adapted:
            path = name.removesuffix(".weight")
            whole[name] = merge(self._base.read(name).to(self._dtype), received[path + A], received[path + B])
        return whole
