"""Memory that one process makes and others of the host map by a handle, plain bytes: a block of a GPU (CUDA IPC), or an
anonymous file, by which the same is done and tested without a GPU.

A block of a GPU is CUDA's own, not a tensor's: torch's allocator hands out parts of blocks, which may be expandable segments that
have no handle, and torch's handles count their readers in files, where one that was killed is counted for good. A handle is of a
physical device: `CUDA_VISIBLE_DEVICES` gives it other numbers in other processes, so its UUID says which it is.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from roll.core.distributed.processes import boot_id, process_table
from roll.core.weights.layout import PROCESSES


class SharedBuffer(Protocol):
    """Memory of this process. It is closed, or written again, only when no other process has it mapped."""

    handle: bytes
    memory: Tensor
    """[bytes] uint8."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        """Raises `RuntimeError` or `OSError` if there is no such memory."""

    def close(self) -> None: ...


def memory_of(device: torch.device) -> str:
    """Names the memory of a device, or the host's; the same in all processes that can map each other's parts of it."""
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_properties(device).uuid}"
    return f"host {boot_id()} {process_table()}"


@contextmanager
def mapped(handle: bytes, nbytes: int, device: torch.device) -> Iterator[Tensor]:
    """Yields another process's buffer, [nbytes] uint8; no view of it may outlive this. Raises `RuntimeError` or `OSError`."""
    with _mapped_block(handle, nbytes, device) if device.type == "cuda" else _mapped_file(handle, nbytes) as memory:
        yield memory


class FileBuffer:
    """A `SharedBuffer` in host memory; its handle is the file's path under /proc."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._file = os.memfd_create("lent")
        os.truncate(self._file, nbytes)
        self.handle = f"{PROCESSES}/{os.getpid()}/fd/{self._file}".encode()
        self.memory = torch.frombuffer(mmap.mmap(self._file, nbytes), dtype=torch.uint8)

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def _mapped_file(handle: bytes, nbytes: int) -> Iterator[Tensor]:
    file = os.open(handle, os.O_RDONLY)
    try:
        content = mmap.mmap(file, nbytes, access=mmap.ACCESS_COPY)  # of which torch reads
    except ValueError as error:
        raise OSError(str(error)) from error
    finally:
        os.close(file)
    yield torch.frombuffer(content, dtype=torch.uint8)


class CudaBuffer:
    """A `SharedBuffer` on a GPU. Not run on a GPU."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._device, self._address, handle = device, ctypes.c_void_p(), _Handle()
        with torch.cuda.device(device):
            _finish(device)  # CUDA's context of this device is this thread's from here on
            _call("cudaMalloc", ctypes.byref(self._address), ctypes.c_size_t(nbytes))
            try:
                _call("cudaIpcGetMemHandle", ctypes.byref(handle), self._address)
            except RuntimeError:
                self.close()
                raise
        self.handle = bytes(handle)
        self.memory = _tensor_at(self._address, nbytes, device)

    def close(self) -> None:
        with torch.cuda.device(self._device):
            _call("cudaFree", self._address)


@contextmanager
def _mapped_block(handle: bytes, nbytes: int, device: torch.device) -> Iterator[Tensor]:
    """CUDA refuses the process that made the block."""
    address = ctypes.c_void_p()
    with torch.cuda.device(device):
        _finish(device)
        peers = ctypes.c_uint(1)  # cudaIpcMemLazyEnablePeerAccess, the only value there is
        _call("cudaIpcOpenMemHandle", ctypes.byref(address), _Handle.from_buffer_copy(handle), peers)
        try:
            yield _tensor_at(address, nbytes, device)
        finally:
            _finish(device)  # what was begun on the memory
            _call("cudaIpcCloseMemHandle", address)


def _finish(device: torch.device) -> None:
    """Waits for what this thread has begun there. To wait for the whole device is forbidden, and ends the graph, while another
    thread captures one."""
    torch.cuda.current_stream(device).synchronize()


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


@functools.cache
def _runtime() -> Any:
    """CUDA's runtime, the one that torch has loaded."""
    version = torch.version.cuda
    if version is None:
        raise RuntimeError("torch was built without CUDA")
    return ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}")


def _call(name: str, *arguments: object) -> None:
    if code := getattr(_runtime(), name)(*arguments):
        _runtime().cudaGetLastError()  # otherwise torch takes it for its next kernel's
        raise RuntimeError(f"{name} failed with CUDA's error {code}")


def _tensor_at(address: ctypes.c_void_p, nbytes: int, device: torch.device) -> Tensor:
    """A view of memory that is nobody's tensor."""
    interface = {"shape": (nbytes,), "typestr": "|u1", "data": (address.value, False), "version": 3}
    return torch.as_tensor(type("Block", (), {"__cuda_array_interface__": interface})(), device=device)


BUFFERS: dict[str, type[SharedBuffer]] = {"cuda": CudaBuffer}
"""By the type of device; on a CPU the files of `ipc` are mapped themselves."""
