"""The WeightStore: holds policy versions between the trainer and the engines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from roll.core.configs.sizes import WINDOW
from roll.core.errors import VersionGone
from roll.core.weights.bucket import Bucket, BucketFile, Described, Put, Readable, WeightManifest


class BucketRef(Described, Protocol):
    """A reference to a bucket in a worker's memory, in a file, or on a server."""

    @property
    def argument(self) -> Readable:
        """The argument that the receiver's worker gets."""


@dataclass(frozen=True, slots=True)
class KeptBucket:
    """A bucket that the back end keeps on the trainer rank that made it."""

    rank: int
    reference: Any
    """The back end's reference; the receiver gets the bucket itself."""
    names: tuple[str, ...]
    checksum: int
    nbytes: int

    @property
    def argument(self) -> Any:
        return self.reference


@runtime_checkable
class LentRef(BucketRef, Protocol):
    """A bucket that is in memory of a device, too, while receivers copy it from there."""

    async def hand_to(self, deliver: Callable[[Readable], Awaitable[object]]) -> None:
        """Calls a receiver with its argument. A true answer: it has copied from the device."""


Made = tuple[tuple[str, ...], int, int] | tuple[tuple[str, ...], int, int, object]
"""A bucket's names, checksum and bytes, and, if it is lent, the object that the driver hands on."""
Place = Callable[[int, int], str]
"""`place(rank, number)`: names the file of a rank's bucket, once."""
Receive = Callable[[int, BucketRef], Coroutine[object, object, None]]
"""`receive(version, bucket)`: delivers a bucket to one receiver."""


class Buckets:
    """The buckets of a version: all of them, or those made so far with more to come."""

    def __init__(self, version: int, made: Iterable[BucketRef] | None = None) -> None:
        """`made`: all buckets; None: they are added by `add`, and `end` marks the end."""
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
        """Sends the buckets to one receiver in their order, `WINDOW` at a time. After a failure no other bucket is begun, and the
        failure is raised when none is under way: nothing arrives late."""
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
    """A version's place in its chain of deltas."""

    version: int
    base: int | None
    """The version that this delta applies to; None: the version is whole."""


class WeightSource(Protocol):
    """A source from which engines pull versions."""

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        """Hands every bucket of `version` to the receiver (`Buckets.hand_over`). Raises `VersionGone`."""

    def manifest(self, version: int) -> WeightManifest:
        """Returns the manifest of a version. Raises `VersionGone`."""

    async def retain(self, versions: Collection[int]) -> None:
        """Retains these versions; the store may delete all others."""


class WeightStore(WeightSource, Protocol):
    """A store to which a trainer publishes versions."""

    def begin(self, version: int) -> Place | None:
        """Returns the places of the buckets that the trainer's ranks write, as `BucketFile`s; None: they leave them with the back
        end."""

    def link(self, version: int) -> Link | None:
        """Returns the version's place in its chain; None: the store has no chains."""

    async def publish(self, manifest: WeightManifest, buckets: Sequence[BucketRef]) -> None:
        """Publishes a complete version, which can be pulled from now on."""

    def has(self, version: int) -> bool:
        """True if the version can be pulled."""

    def close(self) -> None:
        """Closes the store at the trainer's end. Versions in a folder that outlives the trainer stay."""


@runtime_checkable
class LendingStore(WeightStore, Protocol):
    """A store whose ranks put buckets into buffers of their devices, besides the files."""

    async def slot(self, rank: int) -> int | None:
        """Returns the rank's buffer for its next bucket; None: the bucket is not lent."""

    def lend(self, rank: int, file: BucketFile, lent: object) -> LentRef:
        """Returns a bucket that the rank has put into this buffer, too."""


class Broadcast(Protocol):
    """Sends a version to all engines of the same driver at once."""

    sent: int
    failed: int
    """Counts of versions that reached all engines they were sent to, and of versions that did not."""

    async def send(self, store: WeightSource, version: int, engines: Sequence[int]) -> bool:
        """Returns True if all these engines have all buckets of the version; otherwise each has to pull it."""


@dataclass(frozen=True, slots=True)
class BroadcastMember:
    """One member of a broadcast group; a plain value, by which the member's process joins."""

    address: str
    port: int
    group: str
    sender: int
    """Number of the sending process: its new group replaces its old one."""
    rank: int
    size: int
    timeout_s: float
    """The limit for all members to join, and for each of their exchanges."""
    device: str = ""
    """torch's name for the device that it exchanges through; none: host memory."""


class SendingEnd(Protocol):
    """The end of a version's way in the worker of a trainer's rank."""

    def lend(self, bucket_bytes: int) -> Put:
        """Returns the function that puts tensors into the buffers of this rank."""

    def begin(self, buckets: Iterator[Bucket], link: Link | None = None) -> None:
        """Begins a share. `link`: the buckets become those of a version in a chain."""

    def next(self, path: str = "", slot: int | None = None) -> tuple[Bucket | None, Made | None]:
        """Returns the next bucket of the share, and its description for the driver; with a path it becomes a file, and the bucket
        is None. (None, None) after the last. `slot`: the buffer that it is put into."""

    async def broadcast(self, member: BroadcastMember, *buckets: Bucket) -> None:
        """Sends the buckets to the group of which this rank is `member`."""


class ReceivingEnd(Protocol):
    """The end of a version's way in an engine's worker, for broadcasts."""

    def host(self) -> str:
        """Returns the host, whose workers can open each other's files under /proc."""

    def give_up(self) -> None:
        """Gives up the broadcasts that are still on their way."""

    async def borrow(self, strategy: object, version: int, bucket: Readable) -> bool:
        """Returns True if the strategy has copied the bucket from the device where it is lent."""

    async def receive(
        self, into: Callable[[int, Bucket], Awaitable[None]], version: int, member: BroadcastMember, count: int, shares: bool
    ) -> list[BucketFile]:
        """Hands `count` buckets on, one after the other. `shares`: returns them for other engines of the host, which can read
        them until `loaded`."""

    def loaded(self) -> None:
        """Releases the shared buckets."""


class MemoryWeightStore:
    """Keeps references to the buckets of the retained versions; the back end holds the bytes (shared memory under
    Ray)."""

    def __init__(self) -> None:
        self._latest = -1
        self._held: dict[int, tuple[WeightManifest, Sequence[BucketRef]]] = {}

    def begin(self, version: int) -> Place | None:
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
