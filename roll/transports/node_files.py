"""Buckets as memory files that engines of one node share: those that receive the same bucket map one copy of it.

Whoever is first writes the file and leaves a note where it is; the others open it under its /proc path. The memory is free when
the last descriptor is closed, however its process ends, so a note that is left over costs nothing: it leads nowhere, or to
another file, whose inode is another.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import xxhash
from torch import Tensor

from roll.core.distributed.processes import boot_id, process_table
from roll.core.weights.bucket import Bucket
from roll.core.weights.layout import PROCESSES, lay_out, write_layout

NOTES = 256
"""Files with a note, for good. Buckets that share one go on as if they had been first."""


def node_file(bucket: Bucket) -> int:
    """The descriptor of a safetensors file with the bucket's tensors: the one that they are views of, or a memory file.
    `ValueError` if safetensors has no such type."""
    return os.open(bucket.file, os.O_RDONLY) if bucket.file is not None else shared_file(bucket.tensors, bucket.checksum)


def shared_file(tensors: Mapping[str, Tensor], checksum: int) -> int:
    """The descriptor of a memory file, that of another process of this user if one has it. `checksum`: of the tensors' bytes."""
    what = [(name, str(tensor.dtype), *tensor.shape) for name, tensor in tensors.items()]
    key = f"{checksum:x}-{xxhash.xxh3_128_hexdigest(repr(what).encode())}"
    try:
        name = str(xxhash.xxh3_64_intdigest(key.encode()) % NOTES)
        note = os.open(_notes() / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # a full disk, or the folder is another user's: nothing is shared
        return write_memory_file(tensors)
    try:
        fcntl.flock(note, fcntl.LOCK_EX)  # the others wait until the first has written
        if (there := _opened(os.pread(note, 4096, 0).decode(errors="replace"), key)) is not None:
            return there
        file = write_memory_file(tensors)
        found = os.fstat(file)
        with suppress(OSError):
            os.ftruncate(note, 0)
            os.pwrite(note, f"{key} {os.getpid()} {file} {found.st_dev} {found.st_ino}".encode(), 0)
        return file
    finally:
        os.close(note)


def write_memory_file(tensors: Mapping[str, Tensor]) -> int:
    """Writes a file in memory and returns its descriptor. Raises `ValueError` if safetensors lacks a tensor's type."""
    layout, descriptor = lay_out(tensors), os.memfd_create("weights")
    try:
        write_layout(descriptor, layout)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def path_of(file: int) -> str:
    """Under which other processes of the host open a file of this one."""
    return f"{PROCESSES}/{os.getpid()}/fd/{file}"


def host() -> str:
    """The same in processes that see each other under these paths."""
    return f"{boot_id()} {process_table()}"


def _notes() -> Path:
    """A folder of this user's alone. Raises `OSError`."""
    folder = Path(tempfile.gettempdir()) / f"roll-buckets-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"'{folder}' is another user's")
    return folder


def _opened(note: str, key: str) -> int | None:
    """The file that the note is of, if it is still that one."""
    try:
        known, *where = note.split()
        process, file, device, inode = map(int, where)
        if known != key:
            return None
        descriptor = os.open(f"{PROCESSES}/{process}/fd/{file}", os.O_RDONLY | os.O_NONBLOCK)
    except (ValueError, OSError):  # nothing yet; the process is gone, or has closed it
        return None
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) == (device, inode):
        return descriptor
    os.close(descriptor)
    return None
