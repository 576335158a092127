"""New weights on their way into SGLang: verified and kept in this process, loaded by the server's (`loader`).

The server takes weights only while it pauses, and needs all of a version at once. Until then a bucket is a file in memory, the
trainer's own on one host, or, if it is lent on the server's device, a copy in a block of that device. What the server is told is
where they lie: paths under /proc, and handles of CUDA's blocks.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from roll.core.weights.bucket import Bucket, Described, WeightManifest
from roll.core.weights.received import ReceivedBuckets
from roll.transports.lending import Lent, LentBucket, borrowed, check
from roll.transports.node_files import node_file, path_of
from roll.transports.packed import TYPES, view
from roll.transports.shared_buffers import BUFFERS, SharedBuffer


class Block:
    """A copy of a lent bucket, in memory of this process that the server maps."""

    def __init__(self, lent: Lent, device: torch.device, kind: type[SharedBuffer]) -> None:
        """Raises `ValueError` if the bucket cannot be had, or changes meanwhile."""
        self._tensors = {name: (code, list(shape), begin) for name, code, shape, begin, _ in lent.tensors}
        ends = (begin + torch.Size(shape).numel() * TYPES[code].itemsize for code, shape, begin in self._tensors.values())
        self._nbytes = max(ends)
        try:
            self._buffer = kind(self._nbytes, device)
        except (RuntimeError, OSError) as error:
            raise ValueError(f"there is no memory for a copy of a lent bucket: {error}") from error
        try:
            with borrowed(lent, device) as views:
                copies = {name: view(self._buffer.memory, *place) for name, place in self._tensors.items()}
                for name, copy in copies.items():
                    copy.copy_(views[name])
                check(lent, copies)
        except BaseException:
            self.close()
            raise

    @property
    def handle(self) -> tuple[str, int, Mapping[str, Any]]:
        return self._buffer.handle.hex(), self._nbytes, self._tensors

    def close(self) -> None:
        self._buffer.close()


class ServerWeights:
    """Buckets of one version, kept until the server has loaded them. Thread-safe: they may arrive on any thread."""

    def __init__(self, devices: Sequence[str], kinds: Mapping[str, type[SharedBuffer]] = BUFFERS) -> None:
        """`devices`: of the server, as this process counts them. `kinds`: by the type of device."""
        self._device = torch.device(devices[0])
        self._kind = kinds.get(self._device.type) if len(devices) == 1 else None
        self._lock = threading.Lock()
        self._kept: ReceivedBuckets[int | Block] = ReceivedBuckets()
        """Descriptors of memory files, and blocks."""

    def receive(self, version: int, bucket: Bucket) -> None:
        """Keeps a bucket, by a copy unless there is a file of it. Raises `ValueError` if it is corrupt. One of another version
        than the one before begins a new set; one that was received before replaces what it held."""
        bucket.verify()
        self._keep(version, bucket, node_file(bucket))

    def receive_lent(self, version: int, bucket: LentBucket) -> None:
        """Does as `receive`, from device to device. Raises `ValueError`, and keeps nothing, where the file has to be read."""
        if self._kind is None:
            raise ValueError("an engine of several devices reads files")
        self._keep(version, bucket, Block(bucket.lent, self._device, self._kind))

    @contextmanager
    def taken(self, manifest: WeightManifest) -> Iterator[str]:
        """Says in JSON where the version lies. Its memory is given back at the end of the block, when no server may be reading
        it. Raises `ValueError` unless exactly what the manifest names was received, intact."""
        with self._lock:
            self._kept.check(manifest)
            kept = self._kept.clear()
        try:
            files = [path_of(each) for each in kept if isinstance(each, int)]
            yield json.dumps({"files": files, "blocks": [each.handle for each in kept if isinstance(each, Block)]})
        finally:
            _close(kept)

    def close(self) -> None:
        with self._lock:
            _close(self._kept.clear())

    def _keep(self, version: int, bucket: Described, what: int | Block) -> None:
        with self._lock:
            _close(self._kept.make_room(version, bucket))
            self._kept.keep(bucket, what)


def as_tensors(said: str) -> str:
    """Returns a text as SGLang's `serialized_named_tensors` have it: a pickle of one tensor of plain bytes, in base64. It is made
    here, for a server that this process has started, and goes there on the loopback interface with that server's key. The server
    reads it with an unpickler of its own; nothing that comes from a server, or from a network, is unpickled here."""
    tensor = torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8)
    return base64.b64encode(pickle.dumps([("buckets", tensor)])).decode()


def _close(kept: Iterable[int | Block]) -> None:
    for each in kept:
        if isinstance(each, int):
            os.close(each)
        else:
            each.close()
