"""A group as bytes, exact: safetensors with per-token values as arrays, and everything else as JSON in one of them."""

from __future__ import annotations

import json
from array import array
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from roll.core.configs.plain import JsonObject
from roll.core.data.sample import MASK, PER_TOKEN, SampleGroup
from roll.core.errors import PackingError, boundary

REST = "rest"
"""Holds UTF-8 text; the other arrays (`PER_TOKEN`) the values of all samples, one after the other."""


def packed(group: SampleGroup, finite: bool = True) -> bytes:
    """`finite`: raises `ValueError` for a reward, or another number of the JSON, that is not."""
    row, samples = group.to_json(per_token=False), [*group.samples, *([group.baseline] if group.baseline is not None else [])]
    for described, sample in zip(_samples(row), samples, strict=True):
        described["tokens"], described["masked"] = len(sample.response_ids), sample.loss_mask is not None
    text = json.dumps(row, allow_nan=not finite).encode()
    arrays: dict[str, np.ndarray[Any, Any]] = {REST: np.frombuffer(text, dtype=np.uint8)}
    for name, kind in PER_TOKEN.items():
        values = b"".join(getattr(sample, name) or b"" for sample in samples)
        arrays[name] = np.frombuffer(values, dtype=kind)
    return save(arrays)


def unpacked(data: bytes) -> SampleGroup:
    """Raises `PackingError`."""
    with boundary(PackingError, "its samples cannot be read"):
        arrays = load(data)
        row = json.loads(arrays[REST].tobytes())
        at = dict.fromkeys(PER_TOKEN, 0)
        for sample in _samples(row):
            count, masked = sample.pop("tokens"), sample.pop("masked")
            for name, kind in PER_TOKEN.items():
                there = kind != MASK or masked
                start, at[name] = at[name], at[name] + count * there
                sample[name] = array(kind, arrays[name][start : at[name]].astype(kind).tobytes()) if there else None
        return SampleGroup.from_json(row)


def _samples(row: JsonObject) -> list[JsonObject]:
    """Returns the samples of a group's JSON, the greedy one included."""
    return [*row["samples"], *([row["baseline"]] if row["baseline"] is not None else [])]
