"""Tensors as an anonymous memory file in the form of safetensors (https://huggingface.co/docs/safetensors), which other processes
read with that library under the file's /proc path.

Written tensor by tensor: the library's own `save` holds the content twice more while it is made. Such a file knows no mount's
size limit (/dev/shm of a container has 64 MB), and is gone when its descriptor is closed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from roll.weights.bucket import as_bytes

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


def write_memory_file(tensors: Mapping[str, Tensor]) -> int:
    """The file's descriptor. Tensors stand in their order, but wider types before narrower ones, so that each begins where its
    type may. `ValueError` if one is of a type that is not in `CODES`."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    entries, end = {}, 0
    for name, tensor in ordered:
        if tensor.dtype not in CODES:
            raise ValueError(f"weight {name!r}: safetensors files have no {tensor.dtype}")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    descriptor = os.memfd_create("weights")
    try:
        _write(descriptor, memoryview(len(header).to_bytes(8, "little") + header))
        for _, tensor in ordered:
            _write(descriptor, as_bytes(tensor).numpy().data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write(descriptor: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(descriptor, rest) :]
