"""The buckets of a version for an engine that is another process: files in memory, verified before anyone reads them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from roll.core.weights.bucket import Bucket, WeightManifest
from roll.core.weights.received import ReceivedBuckets
from roll.platform.temp_folder import TempFolder
from roll.transports.node_files import node_file, path_of


class StagedWeights:
    """Keeps the buckets of one version, each a safetensors file in memory under a name in a folder. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = TempFolder("weights")
        self._files: ReceivedBuckets[tuple[Path, int]] = ReceivedBuckets()
        """Names and descriptors."""
        self._count = 0

    def receive(self, version: int, bucket: Bucket) -> None:
        """`ValueError` if the bucket is corrupt. One of another version than the one before begins a new set; one that was
        received before replaces what it held."""
        bucket.verify()
        descriptor = node_file(bucket)
        with self._lock:
            _remove(self._files.make_room(version, bucket))
            name = self._own.path / f"{self._count:05}.safetensors"
            self._count += 1
            name.symlink_to(path_of(descriptor))
            self._files.keep(bucket, (name, descriptor))

    def complete(self, manifest: WeightManifest) -> Path:
        """The folder with the files. `ValueError` unless exactly what the manifest names was received, intact."""
        with self._lock:
            self._files.check(manifest)
            return self._own.path

    def discard(self) -> None:
        """Gives the memory back."""
        with self._lock:
            _remove(self._files.clear())

    def close(self) -> None:
        self.discard()
        self._own.remove()


def _remove(files: Iterable[tuple[Path, int]]) -> None:
    for name, descriptor in files:
        name.unlink()
        os.close(descriptor)
