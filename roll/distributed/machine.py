"""What this machine has, found without torch: cores, memory, accelerators."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from roll.distributed import nvml


@dataclass(frozen=True, slots=True)
class Machine:
    cpus: int
    memory: int
    """Bytes that processes here may use together."""
    accelerators: tuple[int, ...]
    """Bytes of each."""


LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""The files in which a container's limit stands. A limit that is no number is none."""


def this_machine() -> Machine:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = _memory()
    # Where the accelerator has no memory of its own, it has that of the machine.
    return Machine(cpus, memory, tuple(size or memory for size in nvml.visible_memory()))


def _memory() -> int:
    """Bytes of the machine's memory, or of the container's limit if that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in LIMITS:
        with suppress(OSError, ValueError):
            return min(physical, int(file.read_text()))
    return physical
