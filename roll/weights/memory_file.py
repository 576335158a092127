"""Tensors as files in memory, in the form of safetensors: other processes map them with that library.

An anonymous one, which others open by its /proc path, knows no mount's size limit (/dev/shm of a container has 64 MB), and is
gone when its descriptor is closed. Any file is written straight from the tensors: the library's own writing copies them first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from roll.weights.bucket import as_bytes
from roll.weights.layout import TensorLayout, lay_out

MEMORY = Path("/dev/shm")
"""A file system in memory, on Linux."""


def write_memory_file(tensors: Mapping[str, Tensor]) -> int:
    """The file's descriptor. `ValueError` if safetensors has no such type."""
    layout, descriptor = lay_out(tensors), os.memfd_create("weights")
    try:
        _write_layout(descriptor, layout)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_file(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raises `ValueError` as above, and `OSError`."""
    layout = lay_out(tensors)
    with path.open("wb", buffering=0) as file:
        _write_layout(file.fileno(), layout)


def _write_layout(descriptor: int, layout: TensorLayout) -> None:
    _write(descriptor, memoryview(len(layout.header).to_bytes(8, "little") + layout.header))
    for tensor in layout.tensors:
        _write(descriptor, as_bytes(tensor).numpy().data)


def _write(descriptor: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(descriptor, rest) :]
