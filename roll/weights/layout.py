"""Named tensors as bytes, in the layout of safetensors (https://huggingface.co/docs/safetensors): a header saying what they are
and where each lies in what follows.

The library's own `save` holds the content twice more while it is made; here the tensors' own memory is written or sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES = {code: dtype for dtype, code in CODES.items()}
METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class TensorLayout:
    header: bytes
    """JSON, filled up to a multiple of 8 bytes."""
    tensors: list[Tensor]
    """The tensors in the order of their bytes, which follow each other without a gap."""
    nbytes: int
    """Bytes of all tensors together."""


def lay_out(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> TensorLayout:
    """Lays tensors out in the order of their names, but wider types before narrower ones, so that each tensor is aligned.
    `ValueError` if one is of a type that is not in `CODES`."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    entries: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in CODES:
            raise ValueError(f"weight {name!r}: safetensors files have no {tensor.dtype}")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    return TensorLayout(header + b" " * (-len(header) % 8), [tensor for _, tensor in ordered], end)


def read_layout(header: bytes, content: Tensor) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors as views of `content` ([nbytes] uint8), and the metadata."""
    entries = json.loads(header)
    metadata: dict[str, str] = entries.pop(METADATA, {})
    tensors = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        tensors[name] = content[begin:end].view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata
