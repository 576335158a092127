"""Versions in anonymous memory files, for trainers and engines of one host: a rank writes its buckets straight from the model,
and what travels is a handle, the file's /proc path, which any process of this user opens and maps.

The driver owns the files: they outlive a rank, and who maps one keeps it as long as it does, so no version is torn or lost under
a reader. Nothing has a name in a file system: whatever is killed, its memory is free when the last of the processes is gone.

The memory of a version that is needed no more is written over by a later one, for new pages cost more than the copy into them. A
file is written again only when the kernel says that nobody else has it open or mapped (a write lease), so that a reader that
was killed holds nothing up, and one that hangs holds its own file alone, in whose place there is a new one.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import resource
import signal
from collections.abc import Collection, Sequence

from roll.core.weights.bucket import WeightManifest
from roll.core.weights.store import BucketRef, MemoryWeightStore, Place
from roll.transports.node_files import path_of

MOST = 1 << 13
"""Descriptors are numbered below this, or below the process's limit."""


class HandleStore(MemoryWeightStore):
    """A `WeightStore`."""

    def __init__(self) -> None:
        super().__init__()
        limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MOST)
        self._first, self._last = limit // 2, limit * 3 // 4
        self._next = self._first
        """No lower number is given to a descriptor, until the last has been."""
        self._files: dict[int, list[int]] = {}
        """Version -> descriptors that were handed out for it."""
        self._spare: list[int] = []
        """Descriptors of former versions, which no other process knows: oldest first."""

    def begin(self, version: int) -> Place:
        self._retire(version)  # of an attempt that failed
        files = self._files[version] = []

        def place(rank: int, number: int) -> str:
            files.append(self._take())
            return path_of(files[-1])

        return place

    async def publish(self, manifest: WeightManifest, buckets: Sequence[BucketRef]) -> None:
        await super().publish(manifest, buckets)
        filled = {getattr(bucket, "path", "") for bucket in buckets}
        handed, version = self._files[manifest.version], manifest.version
        self._files[version] = [file for file in handed if path_of(file) in filled]
        for file in (each for each in handed if path_of(each) not in filled):
            if os.fstat(file).st_size:
                self._spare.append(self._renamed(file))
            else:  # it holds no memory that would be worth a descriptor
                os.close(file)

    async def retain(self, versions: Collection[int]) -> None:
        await super().retain(versions)
        for version in [each for each in self._files if each <= self._latest and each not in versions]:
            self._retire(version)
        most = max(map(len, self._files.values()), default=0)
        least = max(0, len(self._spare) - most)
        gone, self._spare = self._spare[:least], self._spare[least:]
        for file in gone:
            os.close(file)

    def close(self) -> None:
        super().close()
        for file in itertools.chain(self._spare, *self._files.values()):
            os.close(file)
        self._files, self._spare = {}, []

    def _retire(self, version: int) -> None:
        self._spare += map(self._renamed, self._files.pop(version, ()))

    def _take(self) -> int:
        for place, file in enumerate(self._spare):
            if _is_alone(file):
                return self._spare.pop(place)
        new = os.memfd_create("weights")
        file = os.open(path_of(new), os.O_RDWR | os.O_CLOEXEC)  # the kernel counts no writer of the first descriptor
        os.close(new)
        return self._renamed(file)

    def _renamed(self, file: int) -> int:
        """The same under a number that it did not have lately: a handle that somebody still has leads nowhere."""
        number = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, self._next)
        self._next = number + 1 if number < self._last else self._first
        os.close(file)
        return number


def _is_alone(file: int) -> bool:
    """True if no other process has the file open or mapped."""
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # where somebody opens it in between; by default that ends the process
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True
