"""The second set of parameters an engine keeps: new weights are copied into it while the old ones generate, then swapped in, or
copied again where graphs read the model's own memory.

Invariant: the model never holds a mixture of versions. `flip` swaps every parameter or none, and only if exactly
what the manifest names was received and it covers the model. Of adapters (`weights.adapter`) it swaps the layers that have
them, merged here with their base; the others are the base's in every version.
"""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import Tensor, nn

from roll.core.weights.adapter import BASE, A, AdapterSource, B, BaseWeights, adapted_weights, is_adapter, merge, weight_of
from roll.core.weights.bucket import Bucket, WeightManifest
from roll.core.weights.received import ReceivedBuckets
from roll.transports.experts import published


class ShadowWeights:
    """Thread-safe: buckets may arrive on any thread while another one generates; `flip` belongs to the generating thread."""

    def __init__(self, model: nn.Module, source: AdapterSource | None = None, in_place: bool = False) -> None:
        """`source`: of the adapters that updates are; None: updates are whole weights. `in_place`: the model's weights keep
        their memory."""
        self._in_place = in_place
        self._rank = source.rank if source else 0
        self._base = BaseWeights(Path(source.base)) if source else None
        self._adapters: dict[str, Tensor] = {}
        """Received, of the version under way."""
        self._adapted: set[str] = set()
        """Canonical names of the weights that the last update's adapters changed."""
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
        self._parts: dict[str, frozenset[str]] = {}
        """Canonical name -> the names that updates have for its parts (`roll.transports.experts`)."""
        self._model_type = str(getattr(getattr(model, "config", None), "model_type", ""))
        for canonical, tensor in self._targets.items():
            if (parts := published(self._model_type, canonical, tensor)) and parts[0][0] != canonical:
                self._parts[canonical] = frozenset(name for name, _ in parts)
                self._canonical |= dict.fromkeys(self._parts[canonical], canonical)
        self._views: dict[str, dict[str, Tensor]] = {}
        """Canonical name -> the parts of its shadow."""
        self._shadow: dict[str, Tensor] = {}
        self._received: ReceivedBuckets[None] = ReceivedBuckets()

    @property
    def device(self) -> torch.device:
        return next(iter(self._targets.values())).device

    def receive(self, version: int, bucket: Bucket) -> None:
        """Copies a bucket aside. `ValueError` if it is corrupt or does not fit the model; nothing is copied then.

        A bucket of another version than the one before begins a new set; what was received of the other one is forgotten."""
        bucket.verify()
        adapters = is_adapter(bucket.tensors)
        with self._lock, torch.no_grad():
            if not adapters:
                self._refuse_misshapen(bucket)
            elif self._base is None:
                raise ValueError("adapters were sent to an engine that was started without their base")
            else:
                self._base.check(bucket.tensors, self._rank)
            if version != self._received.version:
                self._adapters = {}
            self._received.make_room(version, bucket)
            if adapters:
                self._merge(bucket)
            else:
                self._refuse_untied(bucket)
                for name, tensor in bucket.tensors.items():
                    self._part(name, self._place(self._canonical[name])).copy_(tensor)
            self._received.keep(bucket, None)

    def flip(self, manifest: WeightManifest) -> None:
        """Swaps the received weights with the model's (pointers only, unless `in_place`); the old memory becomes the next shadow.

        `ValueError`, and nothing is swapped, unless exactly the manifest's weights were received, intact, and cover the model."""
        with self._lock:
            changed = self._check(manifest)
            for canonical in changed:
                target = self._targets[canonical]
                if self._in_place:
                    target.data.copy_(self._shadow[canonical])
                    continue
                self._shadow[canonical], target.data = target.data, self._shadow[canonical]
            self._adapted = changed if is_adapter(manifest.names) else set()
            self._received.clear()
            self._adapters, self._views = {}, {}

    def free(self) -> None:
        """Gives the second set's memory back, unless it holds weights that wait for `flip`."""
        with self._lock:
            if self._received.version is None:
                self._shadow, self._views = {}, {}

    def _check(self, manifest: WeightManifest) -> set[str]:
        """The canonical names of the weights that change."""
        self._received.check(manifest)
        received = self._received.names
        adapters = is_adapter(received)
        changed = {self._canonical[name] for name in (adapted_weights(received) if adapters else received)}
        # A layer without adapters in this version would keep the adapters of the version before.
        missing = (self._adapted if adapters else self._required) - changed
        for canonical, parts in self._parts.items():
            if canonical not in received and not adapters:
                missing |= parts - received
        if missing:
            raise ValueError(f"weights of version {manifest.version} do not cover the model: {sorted(missing)} missing")
        return changed

    def _merge(self, bucket: Bucket) -> None:
        """Fills the shadows of the layers whose adapters are complete with this bucket."""
        assert self._base is not None
        self._adapters |= {name: tensor.clone() for name, tensor in bucket.tensors.items() if name != BASE}
        for weight in {weight_of(name) for name in bucket.tensors if name != BASE}:
            path = weight.removesuffix(".weight")
            if path + A in self._adapters and path + B in self._adapters:
                target = self._targets[self._canonical[weight]]
                base = self._base.read(weight).to(target.device, target.dtype)
                a, b = (self._adapters[path + part].to(target.device) for part in (A, B))
                self._place(self._canonical[weight]).copy_(merge(base, a, b))

    def _refuse_misshapen(self, bucket: Bucket) -> None:
        for name, tensor in bucket.tensors.items():
            if name not in self._canonical:
                raise ValueError(f"weight {name!r} is unknown to the model")
            expected = self._part(name, self._place(self._canonical[name])).shape
            if tensor.shape != expected:
                raise ValueError(f"weight {name!r} has shape {list(tensor.shape)}, the model's has {list(expected)}")

    def _refuse_untied(self, bucket: Bucket) -> None:
        """A state may name a tied weight once or under all its names; they must then be equal."""
        seen = {self._canonical[name]: self._shadow[self._canonical[name]] for name in self._received.names}
        for name, tensor in bucket.tensors.items():
            if self._canonical[name] in self._parts:
                continue
            tied = seen.setdefault(self._canonical[name], tensor)
            if tied is not tensor and not torch.equal(tied, tensor.to(tied)):
                raise ValueError(f"weight {name!r} is tied in the model but differs from what came under its other name")

    def _part(self, name: str, whole: Tensor) -> Tensor:
        """The part of the shadow `whole` that `name` names."""
        canonical = self._canonical[name]
        if name not in self._parts.get(canonical, ()):
            return whole
        if canonical not in self._views:
            self._views[canonical] = dict(published(self._model_type, canonical, whole))
        return self._views[canonical][name]

    def _place(self, canonical: str) -> Tensor:
        if canonical not in self._shadow:
            self._shadow[canonical] = torch.empty_like(self._targets[canonical].data)
        return self._shadow[canonical]
