"""A version as what changed since the one before, for explorers behind a slow link.

A chain of versions begins with a whole one, its anchor; each further link says of every tensor which elements have other bits and
what they are now, and has a hash of the tensor as it is then. bfloat16 keeps 8 bits of a number, so a step at RL's learning rates
changes a few elements in a hundred; float32 changes nearly all, and what would not become smaller goes whole.

A link's bucket has, for each of its tensors, `hash:<name>` and one of: nothing else (no bit changed), `whole:<name>`, or
`gaps:<name>` and `values:<name>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roll.core.weights.bucket import Bucket, WeightManifest, checksum
from roll.core.weights.layout import as_bytes
from roll.core.weights.store import Link

HASH, WHOLE, GAPS, VALUES = "hash:", "whole:", "gaps:", "values:"
WORTH = 0.5
"""A tensor, or a version, is sent as its changes if these take at most so much of its bytes."""


class Chain:
    """The versions that are published whole: the first and every `every`-th, and, while changes are too large to be worth it, all
    but one of as many, which is tried."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.share = 0.0
        """Share of a whole version's bytes that the last changes took."""
        self._newest: int | None = None
        self._count = self._whole_bytes = 0

    def link(self, version: int) -> Link | None:
        """Returns the next version's link; None if all are whole and nobody has to remember them."""
        if self.every == 1:
            return None
        place = self._count % self.every
        whole = place == 0 or (place > 1 and self.share > WORTH)
        return Link(version, None if whole else self._newest)

    def published(self, manifest: WeightManifest) -> None:
        if manifest.base is None:
            self._whole_bytes = manifest.nbytes
        else:
            self.share = manifest.nbytes / max(self._whole_bytes, 1)
        self._newest = manifest.version
        self._count += 1


class LastShare:
    """The last export of a trainer's rank, kept in host memory to find the changes."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._tensors: dict[str, Tensor] = {}

    def linked(self, link: Link, buckets: Iterator[Bucket]) -> Iterator[Bucket]:
        """The rank's buckets of a version as the link wants them. Of a rank that does not have the base all tensors are whole."""
        if link.base is None or self._version != link.base:
            self._tensors = {}
        self._version = None  # an export that ends early leaves a mixture
        for bucket in buckets:
            yield bucket if link.base is None else changes(self._tensors, bucket)
            # What is page-locked has to be free for the next buckets.
            self._tensors |= {name: each.clone() if each.is_pinned() else each for name, each in bucket.tensors.items()}
        self._version = link.version


def changes(before: Mapping[str, Tensor], bucket: Bucket) -> Bucket:
    """The bucket of a link, from the tensors of the version before."""
    parts: dict[str, Tensor] = {}
    for name, tensor in bucket.tensors.items():
        parts[HASH + name] = _hash(tensor)
        parts |= {prefix + name: part for prefix, part in _changes(before.get(name), tensor).items()}
    return Bucket(parts, checksum(parts))


def changed(before: Mapping[str, Tensor], bucket: Bucket) -> dict[str, Tensor]:
    """Returns the tensors that a link's bucket makes of those before, which stay as they are. `ValueError` unless each is, bit by
    bit, the trainer's."""
    tensors = {}
    for part in bucket.names:
        if part.startswith(HASH):
            name = part.removeprefix(HASH)
            tensors[name] = _changed(before.get(name), name, bucket.tensors)
            if not torch.equal(_hash(tensors[name]), bucket.tensors[part]):
                raise ValueError(f"weight {name!r} is not what was published: its hash differs")
    return tensors


def _changes(old: Tensor | None, new: Tensor) -> dict[str, Tensor]:
    if old is None or (old.dtype, old.shape) != (new.dtype, new.shape):
        return {WHOLE: new}
    different, most = _bits(old) != _bits(new), WORTH * new.nbytes
    if np.count_nonzero(different) * (1 + new.element_size()) > most:
        return {WHOLE: new}
    places = np.flatnonzero(different)
    return {GAPS: pack(places), VALUES: new.reshape(-1)[torch.from_numpy(places)]} if len(places) else {}


def _changed(old: Tensor | None, name: str, parts: Mapping[str, Tensor]) -> Tensor:
    if WHOLE + name in parts:
        return parts[WHOLE + name].clone()  # which may be a view of a file
    if old is None:
        raise ValueError(f"there is nothing that weight {name!r} could be a change of")
    if GAPS + name not in parts:
        return old
    new, places, values = old.clone(), unpack(parts[GAPS + name]), _bits(parts[VALUES + name])
    bits = _bits(new)
    if len(places) != len(values) or (places >= len(bits)).any():
        raise ValueError(f"the change of weight {name!r} does not fit it")
    bits[places] = values
    return new


def pack(places: NDArray[np.int64]) -> Tensor:
    """Ascending numbers, at least one, as the gaps between them: [n] uint8 or int16, each gap as often the type's largest number,
    unsigned, as that goes into it, and then the rest."""
    gaps = np.diff(places, prepend=-1) - 1
    sizes = {unit: unit().itemsize * int(np.sum(gaps // np.iinfo(unit).max) + len(gaps)) for unit in (np.uint8, np.uint16)}
    unit = min(sizes, key=sizes.__getitem__)
    most = np.iinfo(unit).max
    ends = np.cumsum(gaps // most + 1) - 1
    packed = np.full(ends[-1] + 1, most, unit)
    packed[ends] = gaps % most
    return torch.from_numpy(packed if unit is np.uint8 else packed.view(np.int16))


def unpack(packed: Tensor) -> NDArray[np.int64]:
    numbers = packed.numpy().view(f"u{packed.element_size()}")
    ends = numbers != np.iinfo(numbers.dtype).max
    places: NDArray[np.int64] = np.cumsum(numbers + ends.astype(np.int64))[ends] - 1
    return places


def _bits(tensor: Tensor) -> NDArray[np.generic]:
    """[elements] as unsigned integers, so that -0 and 0 differ and NaNs do not; a view of a tensor that is contiguous."""
    return as_bytes(tensor).numpy().view(f"u{tensor.element_size()}")


def _hash(tensor: Tensor) -> Tensor:
    """[8] uint8: XXH3 of the tensor's bytes."""
    return torch.frombuffer(bytearray(checksum({"": tensor}).to_bytes(8, "little")), dtype=torch.uint8)
