"""Versions of a trainer that publishes chains of them (`roll.weights.delta`), put together in an explorer's process: each link
comes once, however many engines there are, which get the whole buckets from here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from pathlib import Path

from torch import Tensor

from roll.distributed.backend import Backend
from roll.weights.bucket import Bucket, WeightManifest, checksum, manifest_of
from roll.weights.delta import changed
from roll.weights.directory import AwaitedWeights, WeightFolder
from roll.weights.store import BucketRef, KeptBucket, MemoryWeightStore, Receive

logger = logging.getLogger(__name__)


class AssembledWeights(AwaitedWeights):
    """A version that is in no chain is handed over as it is: each engine gets its buckets by itself."""

    def __init__(self, folder: Path, run_id: str, patience_s: float, backend: Backend) -> None:
        super().__init__(folder, run_id, patience_s)
        self._backend = backend
        self._lock = asyncio.Lock()
        self._whole = MemoryWeightStore()
        self._newest: int | None = None
        self._tensors: list[dict[str, Tensor]] = []
        """Those of the newest version that was put together."""

    def manifest(self, version: int) -> WeightManifest:
        return self._whole.manifest(version) if self._whole.has(version) else super().manifest(version)

    async def retain(self, versions: Collection[int]) -> None:
        await self._whole.retain(versions)

    async def _take(self, version: int, into: Receive) -> WeightManifest:
        if not self._whole.has(version):
            if not self.is_chained(version):
                return await super()._take(version, into)
            async with self._lock:
                if not self._whole.has(version):
                    await self._assemble(version)
        return await self._whole.pull(version, into)

    async def _assemble(self, version: int) -> None:
        try:
            await self._follow(version)
        except ValueError as error:
            if self._newest is None:
                raise
            logger.warning("%s; taking the newest whole version again, and what has changed since", error)
            self._newest, self._tensors = None, []
            await self._follow(version)
        kept = []
        for tensors in self._tensors:
            bucket = Bucket(tensors, await asyncio.to_thread(checksum, tensors))
            kept.append(KeptBucket(0, await self._backend.put(bucket), bucket.names, bucket.checksum, bucket.nbytes))
        # What the back end keeps is what the next link is applied to, so that it is there once.
        self._tensors = [(await asyncio.to_thread(self._backend.value, each.reference)).tensors for each in kept]
        await self._whole.publish(manifest_of(version, kept), kept)

    async def _follow(self, version: int) -> None:
        """Puts the version together. Who is interrupted goes on from the last link. `ValueError` if a bucket is damaged, or is no
        change of what was put together before."""
        for link in self.links(version, self._newest):
            before = (
                {name: tensor for tensors in self._tensors for name, tensor in tensors.items()} if link.base is not None else None
            )
            buckets: list[dict[str, Tensor]] = []
            await WeightFolder.pull(self, link.version, partial(_receive, before, buckets))
            self._newest, self._tensors = link.version, buckets


async def _receive(before: dict[str, Tensor] | None, buckets: list[dict[str, Tensor]], version: int, bucket: BucketRef) -> None:
    buckets.append(await asyncio.to_thread(_read, before, bucket))


def _read(before: dict[str, Tensor] | None, bucket: BucketRef) -> dict[str, Tensor]:
    read = bucket.argument.read()
    read.verify()
    # Not a view of a file, which would be read again from where it lies, or be gone.
    return changed(before, read) if before is not None else {name: tensor.clone() for name, tensor in read.tensors.items()}
