"""Collectives from device to device for a broadcast of weights: NCCL, with a time limit that is ours.

Experimental: not run on a GPU. Order, failures and time limits are tested with a group that stands for NCCL's.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

UNLIMITED = timedelta(days=1)
"""When the time limit of NCCL's own watchdog is over it ends the process: a trainer's, because of a dead engine."""


class Group(Protocol):
    def broadcast(self, tensor: Tensor, root: int) -> Any: ...

    def abort(self) -> None: ...


class DeviceGroup:
    """Each exchange runs on a thread of its own, for NCCL blocks where a member does not come: the caller gives up in time, and
    the group is aborted, which ends what still runs on the device."""

    def __init__(self, group: Group, device: torch.device, timeout_s: float) -> None:
        self._group, self._device, self._timeout_s = group, device, timeout_s

    def exchange(self, tensor: Tensor) -> Tensor:
        """What the first member has, on the device. Raises `RuntimeError`."""
        arrived: list[Tensor | RuntimeError] = []

        def run() -> None:
            try:
                arrived.append(self._broadcast(tensor))
            except RuntimeError as error:
                arrived.append(error)

        thread = threading.Thread(target=run, name="weights", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        result = arrived[0] if arrived else RuntimeError(f"nothing for {self._timeout_s:g} s")
        if isinstance(result, RuntimeError):
            threading.Thread(target=self._group.abort, name="weights", daemon=True).start()  # which may block, too
            raise result
        return result

    def _broadcast(self, tensor: Tensor) -> Tensor:
        # Not in the default stream, where it would wait for all that a training step or a token step has enqueued.
        with _own_stream(self._device):
            there = tensor.to(self._device)
            self._group.broadcast(there, 0).wait()
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
                there.record_stream(torch.cuda.default_stream(self._device))  # where it is read, and must not be reused before
        return there


def nccl_group(store: object, rank: int, size: int, device: torch.device, timeout_s: float) -> DeviceGroup:
    """It is joined in the first exchange. Raises `RuntimeError` where torch has no NCCL."""
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise RuntimeError("torch is built without NCCL")
    made: Any = dist.ProcessGroupNCCL
    options = made.Options()
    options._timeout = UNLIMITED
    return DeviceGroup(made(store, rank, size, options), device, timeout_s)


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    if device.type != "cuda":
        return nullcontext()
    torch.cuda.set_device(device)  # of this thread
    return torch.cuda.stream(torch.cuda.Stream(device))
