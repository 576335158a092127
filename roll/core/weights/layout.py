"""Named tensors as bytes, in the layout of safetensors (https://huggingface.co/docs/safetensors): a header with the name, type,
shape and position of each tensor, then the tensors.

The library's own `save` needs the memory of the content twice more; here the tensors' own memory is written or sent. A file in
memory that others open by its /proc path has no mount's size limit (/dev/shm of a container has 64 MB), and is gone when its
descriptor is closed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
METADATA = "__metadata__"
PROCESSES = Path("/proc")
"""The folder through which processes open each other's files in memory."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    header: bytes
    """JSON, padded to a multiple of 8 bytes."""
    tensors: list[Tensor]
    """The tensors in the order of their bytes, which are contiguous."""
    nbytes: int
    """Bytes of all tensors together."""


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns [bytes] uint8 on the CPU; a view if the tensor is on the CPU and contiguous."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)


def lay_out(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> TensorLayout:
    """Lays tensors out in the order of their names, but wider types before narrower ones, so that each tensor is aligned.
    Raises `ValueError` if a type is not in `CODES`."""
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


def write_file(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a file. Raises `ValueError` if safetensors lacks a tensor's type, and `OSError`."""
    layout = lay_out(tensors)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb", buffering=0) as file:
        write_layout(file.fileno(), layout)
        file.truncate()  # only now: a file in memory keeps the pages that are written over


def write_layout(descriptor: int, layout: TensorLayout) -> None:
    _write(descriptor, memoryview(len(layout.header).to_bytes(8, "little") + layout.header))
    for tensor in layout.tensors:
        _write(descriptor, as_bytes(tensor).numpy().data)


def _write(descriptor: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(descriptor, rest) :]
