"""Versions that a trainer of another process publishes, for an explorer's engines.

It may be away, and come back; and it may publish chains of versions (`roll.transports.delta`), which are put together here: each
link comes once, however many engines there are, which get the whole buckets from this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import Collection
from functools import partial
from pathlib import Path

from torch import Tensor

from roll.core.distributed.backend import Backend
from roll.core.distributed.clock import monotonic
from roll.core.errors import Unreachable
from roll.core.weights.bucket import Bucket, WeightManifest, checksum, manifest_of
from roll.core.weights.store import BucketRef, KeptBucket, MemoryWeightStore, Receive
from roll.transports.delta import changed
from roll.transports.directory import WeightFolder

RETRY_S = 0.5
"""Time between two attempts to reach a trainer that is away."""

logger = logging.getLogger(__name__)


class AssembledWeights(WeightFolder):
    """A version that is in no chain is handed over as it is: each engine gets its buckets by itself."""

    def __init__(self, folder: Path, run_id: str, patience_s: float, backend: Backend) -> None:
        """`patience_s`: how long the trainer may be away (peer_timeout)."""
        super().__init__(folder, run_id)
        self._patience_s = patience_s
        self._backend = backend
        self._lock = asyncio.Lock()
        self._whole = MemoryWeightStore()
        self._newest: int | None = None
        self._tensors: list[dict[str, Tensor]] = []
        """Tensors of the newest version that was put together, bucket by bucket."""

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        began, warned = monotonic(), False
        while True:
            try:
                if self._whole.has(version) or self.is_chained(version):
                    return await (await self._assembled(version)).pull(version, into)
                return await super().pull(version, into)
            except Unreachable as error:
                if monotonic() - began > self._patience_s:
                    raise RuntimeError(
                        f"weights could not be fetched for {self._patience_s:g} s (peer_timeout): {error}"
                    ) from error
                if not warned:
                    logger.warning("%s; trying again until the trainer is there (peer_timeout)", error)
                warned = True
            await asyncio.sleep(RETRY_S)

    def manifest(self, version: int) -> WeightManifest:
        return self._whole.manifest(version) if self._whole.has(version) else super().manifest(version)

    async def retain(self, versions: Collection[int]) -> None:
        await self._whole.retain(versions)

    async def _assembled(self, version: int) -> MemoryWeightStore:
        """The store, in which the version is whole."""
        async with self._lock:
            if not self._whole.has(version):
                await self._assemble(version)
        return self._whole

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
        """Puts the version together. After an interruption it goes on from the last link. `ValueError` if a bucket is damaged, or
        is no change of the version before."""
        for link in self.links(version, self._newest):
            before = None if link.base is None else dict(ChainMap(*self._tensors))
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
