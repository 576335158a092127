"""The second set of parameters an engine keeps: new weights are copied into it while the old ones generate, then swapped in.

Invariant: the model never holds a mixture of versions. `flip` swaps every parameter or none, and only if exactly
what the manifest names was received and it covers the model.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from roll.weights.bucket import Bucket, Manifest


class ShadowWeights:
    """Thread-safe: buckets may arrive on any thread while another one generates; `flip` belongs to the generating thread."""

    def __init__(self, model: nn.Module) -> None:
        self._lock = threading.Lock()
        self._targets: dict[str, Tensor] = {}
        """Canonical name -> parameter (or persistent buffer) of the model."""
        self._canonical: dict[str, str] = {}
        """Every name, also those of tied parameters -> canonical name."""
        first_name: dict[int, str] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            canonical = first_name.setdefault(id(tensor), name)
            self._canonical[name] = canonical
            self._targets[canonical] = tensor
        self._required = {self._canonical[name] for name, _ in model.named_parameters()}
        self._shadow: dict[str, Tensor] = {}
        self._version: int | None = None
        self._buckets: dict[tuple[str, ...], int] = {}
        """Names of a received bucket -> its checksum."""

    def receive(self, version: int, bucket: Bucket) -> None:
        """Copies a bucket aside. `ValueError` if it is corrupt or does not fit the model; nothing is copied then.

        A bucket of another version than the one before begins a new set; what was received of the other one is forgotten."""
        bucket.verify()
        with self._lock, torch.no_grad():
            for name, tensor in bucket.tensors.items():
                if name not in self._canonical:
                    raise ValueError(f"weight {name!r} is unknown to the model")
                expected = self._targets[self._canonical[name]].shape
                if tensor.shape != expected:
                    raise ValueError(f"weight {name!r} has shape {list(tensor.shape)}, the model's has {list(expected)}")
            if version != self._version:
                self._version, self._buckets = version, {}
            names = frozenset(bucket.tensors)
            self._buckets = {held: crc for held, crc in self._buckets.items() if names.isdisjoint(held)}
            self._refuse_untied(bucket)
            for name, tensor in bucket.tensors.items():
                self._place(self._canonical[name]).copy_(tensor)
            self._buckets[tuple(bucket.tensors)] = bucket.checksum

    def flip(self, manifest: Manifest) -> None:
        """Swaps the received weights with the model's (pointers only); the old memory becomes the next shadow.

        `ValueError`, and nothing is swapped, unless exactly the manifest's weights were received, intact, and cover the model."""
        with self._lock:
            self._check(manifest)
            for canonical in {self._canonical[name] for name in manifest.names}:
                target = self._targets[canonical]
                self._shadow[canonical], target.data = target.data, self._shadow[canonical]
            self._version, self._buckets = None, {}

    def free(self) -> None:
        """Gives the second set's memory back, unless it holds weights that wait for `flip`."""
        with self._lock:
            if self._version is None:
                self._shadow = {}

    def _check(self, manifest: Manifest) -> None:
        if manifest.version != self._version:
            raise ValueError(f"weights of version {manifest.version} asked for, those received are of {self._version}")
        received = self._received_names()
        if difference := received.symmetric_difference(manifest.names):
            raise ValueError(f"weights of version {manifest.version}: received and manifest differ in {sorted(difference)}")
        if sorted(self._buckets.values()) != sorted(manifest.checksums):
            raise ValueError(f"weights of version {manifest.version}: checksums differ from the manifest's")
        if missing := self._required - {self._canonical[name] for name in received}:
            raise ValueError(f"weights of version {manifest.version} do not cover the model: {sorted(missing)} missing")

    def _refuse_untied(self, bucket: Bucket) -> None:
        """A state may name a tied weight once or under all its names; they must then be equal."""
        seen = {self._canonical[name]: self._shadow[self._canonical[name]] for name in self._received_names()}
        for name, tensor in bucket.tensors.items():
            tied = seen.setdefault(self._canonical[name], tensor)
            if tied is not tensor and not torch.equal(tied, tensor.to(tied)):
                raise ValueError(f"weight {name!r} is tied in the model but differs from what came under its other name")

    def _received_names(self) -> set[str]:
        return {name for names in self._buckets for name in names}

    def _place(self, canonical: str) -> Tensor:
        if canonical not in self._shadow:
            self._shadow[canonical] = torch.empty_like(self._targets[canonical].data)
        return self._shadow[canonical]
