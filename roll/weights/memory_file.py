"""Tensors as an anonymous memory file in the form of safetensors, which other processes read with that library under the file's
/proc path.

Such a file knows no mount's size limit (/dev/shm of a container has 64 MB), and is gone when its descriptor is closed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import Tensor

from roll.weights.bucket import as_bytes
from roll.weights.layout import lay_out


def write_memory_file(tensors: Mapping[str, Tensor]) -> int:
    """The file's descriptor. `ValueError` if safetensors has no such type."""
    layout = lay_out(tensors)
    descriptor = os.memfd_create("weights")
    try:
        _write(descriptor, memoryview(len(layout.header).to_bytes(8, "little") + layout.header))
        for tensor in layout.tensors:
            _write(descriptor, as_bytes(tensor).numpy().data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write(descriptor: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(descriptor, rest) :]
