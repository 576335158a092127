"""The WeightStore: policy versions on their way from the trainer to the engines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from roll.configs.sizes import WINDOW
from roll.errors import VersionGone
from roll.weights.bucket import Described, Readable, WeightManifest


class BucketRef(Described, Protocol):
    """Stands for a bucket that is in a worker's memory, in a file, or with a server."""

    @property
    def argument(self) -> Readable:
        """What a receiver's worker is called with."""


@dataclass(frozen=True, slots=True)
class KeptBucket:
    """A bucket that the back end keeps where a rank of the trainer made it."""

    rank: int
    reference: Any
    """The back end's; in the receiver's hands it is the bucket."""
    names: tuple[str, ...]
    checksum: int
    nbytes: int

    @property
    def argument(self) -> Any:
        return self.reference


Receive = Callable[[int, BucketRef], Coroutine[object, object, None]]
"""`receive(version, bucket)`: one receiver's way to take a bucket."""


class Buckets:
    """Those of a version: all, or those that are made by now, and more to come."""

    def __init__(self, version: int, made: Iterable[BucketRef] | None = None) -> None:
        """`made`: all of them; None: they come by `add`, and `end` says that there are no more."""
        self.version = version
        self.whole = made is not None
        self._made = list(made or ())
        self._ended = self.whole
        self._changed = asyncio.Event()

    def add(self, bucket: BucketRef) -> None:
        self._made.append(bucket)
        self._notify()

    def end(self, whole: bool) -> None:
        self._ended, self.whole = True, whole
        self._notify()

    async def hand_over(self, into: Receive) -> None:
        """To one receiver, begun in their order, `WINDOW` at a time. When one fails no other is begun, and the failure is raised
        when none is under way: nothing arrives late."""
        places, goes_on = itertools.count(), True

        async def carry() -> None:
            nonlocal goes_on
            try:
                for place in places:
                    while goes_on and not self._ended and place >= len(self._made):
                        await self._changed.wait()
                    if not goes_on or place >= len(self._made):
                        break
                    await into(self.version, self._made[place])
            finally:
                goes_on = False
                self._notify()

        ended = await asyncio.gather(*(carry() for _ in range(WINDOW)), return_exceptions=True)
        for failure in filter(None, ended):
            raise failure

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(frozen=True, slots=True)
class Link:
    """What a version is in its chain."""

    version: int
    base: int | None
    """The version that it is the changes of; None: it is whole."""


class WeightSource(Protocol):
    """Where engines find versions."""

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        """Hands every bucket of `version` to the receiver (`Buckets.hand_over`). Raises `VersionGone`."""

    def manifest(self, version: int) -> WeightManifest:
        """The manifest of a version. Raises `VersionGone`."""

    async def retain(self, versions: Collection[int]) -> None:
        """Retains these versions; the store may delete all others."""


class WeightStore(WeightSource, Protocol):
    """Where a trainer leaves them."""

    def begin(self, version: int) -> Path | None:
        """The folder that the trainer's ranks write their buckets to, as `BucketFile`s; None: they leave them with the back
        end."""

    def link(self, version: int) -> Link | None:
        """What the version is to be in its chain; None: the store has no chains."""

    async def publish(self, manifest: WeightManifest, buckets: Sequence[BucketRef]) -> None:
        """Publishes a version of which all is there: from now on it can be pulled."""

    def has(self, version: int) -> bool:
        """Whether the version can be pulled."""

    def close(self) -> None:
        """The trainer ends. Versions in a folder that outlives it stay."""


class Broadcast(Protocol):
    """A way to all engines of the same driver together."""

    sent: int
    failed: int
    """Versions that reached all engines that they were sent to, and versions that did not."""

    async def send(self, store: WeightSource, version: int, engines: Sequence[int]) -> bool:
        """True if all of these engines have all buckets of the version; if not, each has to pull it."""


class MemoryWeightStore:
    """Keeps references to the buckets of the versions that are needed; the bytes lie with the back end (shared memory under
    Ray)."""

    def __init__(self) -> None:
        self._latest = -1
        self._held: dict[int, tuple[WeightManifest, Sequence[BucketRef]]] = {}

    def begin(self, version: int) -> None:
        return None

    def link(self, version: int) -> None:
        return None

    async def publish(self, manifest: WeightManifest, buckets: Sequence[BucketRef]) -> None:
        if manifest.version <= self._latest:
            raise ValueError(f"version {manifest.version} published after version {self._latest}")
        self._held[manifest.version] = (manifest, buckets)
        self._latest = manifest.version

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        manifest, buckets = self._of(version)
        await Buckets(version, buckets).hand_over(into)
        return manifest

    def manifest(self, version: int) -> WeightManifest:
        return self._of(version)[0]

    def has(self, version: int) -> bool:
        return version in self._held

    def close(self) -> None:
        self._held.clear()

    async def retain(self, versions: Collection[int]) -> None:
        self._held = {version: held for version, held in self._held.items() if version in versions}

    def _of(self, version: int) -> tuple[WeightManifest, Sequence[BucketRef]]:
        if version not in self._held:
            raise VersionGone(f"version {version} is not kept any more")
        return self._held[version]
