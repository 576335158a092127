"""Tensors as views of the bytes in which they came."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from roll.core.weights.layout import CODES, METADATA

TYPES = {code: dtype for dtype, code in CODES.items()}


def view(content: Tensor, code: str, shape: Sequence[int], begin: int) -> Tensor:
    """Returns the tensor that begins there in `content` ([nbytes] uint8)."""
    dtype = TYPES[code]
    return content[begin : begin + torch.Size(shape).numel() * dtype.itemsize].view(dtype).reshape(tuple(shape))


def read_layout(header: bytes, content: Tensor) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors of a `TensorLayout`, and the metadata."""
    entries = json.loads(header)
    metadata: dict[str, str] = entries.pop(METADATA, {})
    return {
        name: view(content, each["dtype"], each["shape"], each["data_offsets"][0]) for name, each in entries.items()
    }, metadata
