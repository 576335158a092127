"""The memory that a process has in use, and what its machine has left."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roll.configs.units import MIB
from roll.distributed.machine import free_memory
from roll.distributed.watchdog import children_of


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    host: str
    pid: int
    rss_mb: float
    """Resident memory."""
    private_mb: float
    """That part of it which is shared with nobody: without files and Ray's object store."""
    free_mb: float
    """What is free on the host, or to the container."""
    device_peak_mb: float | None
    """The most that torch ever had allocated on a device; None if it has not used one."""


def process_memory(*, with_children: bool) -> ProcessMemory | None:
    """Of this process, and of the processes that it started, if they are asked for; None where there is no /proc."""
    pages = [_pages(pid) for pid in (_family(os.getpid()) if with_children else [os.getpid()])]
    resident, shared = (sum(column) for column in zip(*pages, strict=True))
    if not resident:
        return None
    page_mb = os.sysconf("SC_PAGE_SIZE") / MIB
    host, free_mb = socket.gethostname(), free_memory() / MIB
    return ProcessMemory(host, os.getpid(), resident * page_mb, (resident - shared) * page_mb, free_mb, _device_peak_mb())


def _pages(pid: int) -> tuple[int, int]:
    """Resident ones, and those of them that are shared; none if the process is gone."""
    with contextlib.suppress(OSError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        return int(resident), int(shared)
    return 0, 0


def _family(pid: int) -> Iterator[int]:
    yield pid
    for child in children_of(pid):
        yield from _family(child)


def _device_peak_mb() -> float | None:
    torch = sys.modules.get("torch")  # a process without it uses no device
    if torch is None or not torch.cuda.is_initialized():
        return None
    peaks: list[int] = [torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())]
    return max(peaks) / MIB
