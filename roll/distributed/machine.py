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


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """The files in which a container's limits stand. A limit that is no number is none."""

    folder: Path
    limit: str
    used: str
    reclaimable: str
    """The part of `used` that the kernel gives back, in memory.stat."""


CGROUPS = (
    _Cgroup(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    _Cgroup(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def this_machine() -> Machine:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = _memory()
    # Where the accelerator has no memory of its own, it has that of the machine.
    return Machine(cpus, memory, tuple(size or memory for size in nvml.visible_memory()))


def free_memory() -> int:
    """Bytes that processes here can still have: of the machine, or of the container if it has less."""
    available = {"MemAvailable": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")}
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available |= {name: 1024 * int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    free = available["MemAvailable"]
    for group in CGROUPS:
        with suppress(OSError, ValueError, KeyError):
            limit, used = (int((group.folder / name).read_text()) for name in (group.limit, group.used))
            stat = dict(line.split() for line in (group.folder / "memory.stat").read_text().splitlines())
            return max(0, min(free, limit - used + int(stat[group.reclaimable])))
    return free


def _memory() -> int:
    """Bytes of the machine's memory, or of the container's limit if that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in CGROUPS:
        with suppress(OSError, ValueError):
            return min(physical, int((group.folder / group.limit).read_text()))
    return physical
