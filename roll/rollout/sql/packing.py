"""A group with its samples as safetensors bytes: per-token values as arrays, everything else as JSON in one of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from roll.data.sample import SampleGroup
from roll.errors import PackingError, boundary

TOKENS, LOGPROBS, MASKS, REST = "response_ids", "behaviour_logprobs", "loss_mask", "rest"
"""`REST` holds UTF-8 text; the others the values of all samples, one after the other."""


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def pack(group: SampleGroup) -> bytes:
    row = group.to_json()
    samples = _samples(row)
    tokens = [sample.pop(TOKENS) for sample in samples]
    logprobs = [sample.pop(LOGPROBS) for sample in samples]
    masks: list[list[bool]] = []
    for sample, ids in zip(samples, tokens, strict=True):
        mask = sample.pop(MASKS)
        masks.append(mask or [])
        sample["tokens"], sample["masked"] = len(ids), mask is not None
    arrays: dict[str, np.ndarray[Any, Any]] = {
        TOKENS: np.asarray([token for of_sample in tokens for token in of_sample], dtype=np.int32),
        # Doubles: what comes back has to be what an engine said, to the last bit.
        LOGPROBS: np.asarray([value for of_sample in logprobs for value in of_sample], dtype=np.float64),
        MASKS: np.asarray([value for of_sample in masks for value in of_sample], dtype=np.uint8),
        REST: np.frombuffer(json.dumps(row, allow_nan=False).encode(), dtype=np.uint8),
    }
    return save(arrays)


def unpack(data: bytes, expected: str) -> SampleGroup:
    """`expected`: the digest that was stored with the data. Raises `PackingError`."""
    if digest(data) != expected:
        raise PackingError("its samples are not the ones that were stored")
    with boundary(PackingError, "its samples cannot be read"):
        arrays = load(data)
        row = json.loads(arrays[REST].tobytes())
        at = masked = 0
        for sample in _samples(row):
            count = sample.pop("tokens")
            sample[TOKENS] = arrays[TOKENS][at : at + count].tolist()
            sample[LOGPROBS] = arrays[LOGPROBS][at : at + count].tolist()
            at += count
            sample[MASKS] = None
            if sample.pop("masked"):
                sample[MASKS] = arrays[MASKS][masked : masked + count].astype(bool).tolist()
                masked += count
        return SampleGroup.from_json(row)


def unpack_group(group_id: int, stored: tuple[bytes, str] | None) -> SampleGroup:
    """`stored`: data and digest, if there are any. Raises `PackingError`."""
    if stored is None:
        raise PackingError("its samples are gone")
    group = unpack(*stored)
    if group.group_id != group_id:
        raise PackingError(f"its samples are those of group {group.group_id}")
    return group


def _samples(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples of a group's JSON, the greedy one included."""
    return [*row["samples"], *([row["baseline"]] if row["baseline"] is not None else [])]
