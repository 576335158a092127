"""The resources of this machine, found without torch: cores, memory, accelerators. NVIDIA's own library reports those of its
driver, without a CUDA context or a program to be waited for. Also the memory that a process has in use.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from roll.core.configs.sizes import MIB

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96


@dataclass(frozen=True, slots=True)
class Machine:
    cpus: int
    memory: int
    """Bytes that processes here may use together."""
    accelerators: tuple[int, ...]
    """Bytes of each."""
    bf16: str | None = None
    """The instructions by which the processors multiply bfloat16; "": they have none; None: unknown."""


LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with a container's memory limit. A limit that is no number is none."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The container's share of the processors: microseconds of use and of the period, or "max"."""


def usable_cores() -> int:
    """Returns the number of cores that this process may run on, at most those its container may keep busy, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = map(int, QUOTA.read_text().split())
        return max(1, min(cores, round(quota / period)))
    return cores


def given_threads() -> int | None:
    """Returns the threads of a process that the user sets by OMP_NUM_THREADS; None if nothing or no number is there."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(given) if given.isdecimal() and int(given) else None


PROCESSORS = Path("/proc/cpuinfo")
BF16_INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "BF16"}
"""By the flag of the processor; the last is Arm's."""


def bf16_instructions() -> str | None:
    """See `Machine.bf16`."""
    with suppress(OSError):
        for line in PROCESSORS.read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return next((name for flag, name in BF16_INSTRUCTIONS.items() if flag in line.split()), "")
    return None


def this_machine() -> Machine:
    cpus = usable_cores()
    memory = _memory()
    # Where the accelerator has no memory of its own, it has that of the machine.
    return Machine(cpus, memory, tuple(size or memory for size in visible_memory()), bf16_instructions())


def _memory() -> int:
    """Bytes of the machine's memory, or of the container's limit if that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in LIMITS:
        with suppress(OSError, ValueError):
            return min(physical, int(file.read_text()))
    return physical


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def visible_memory() -> list[int]:
    """Bytes of each accelerator that `CUDA_VISIBLE_DEVICES` leaves visible, 0 for one without memory of its own; empty without a
    driver."""
    with _library() as library:
        if library is None:
            return []
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = _all(library)
        if visible is None:
            return [_total(library, device) for device in devices]
        names = [name.strip() for name in visible.split(",")]
        found = (_named(library, devices, name) for name in names)
        return [_total(library, device) for device in found if device is not None]


@contextmanager
def _library() -> Iterator[ctypes.CDLL | None]:
    library: ctypes.CDLL | None = None
    with suppress(OSError):
        library = ctypes.CDLL(_LIBRARY)
    if library is None or library.nvmlInit_v2() != 0:
        yield None
        return
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _all(library: ctypes.CDLL) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    devices = [ctypes.c_void_p() for _ in range(count.value)]
    numbered = enumerate(devices)
    return [each for i, each in numbered if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(i), ctypes.byref(each)) == 0]


def _named(library: ctypes.CDLL, devices: list[ctypes.c_void_p], name: str) -> ctypes.c_void_p | None:
    """The device of a number, of a UUID or its beginning, or of the UUID of a part (MIG)."""
    if name.isdecimal():
        return devices[int(name)] if int(name) < len(devices) else None
    if name.startswith("MIG-"):
        part = ctypes.c_void_p()
        found = library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(part)) == 0
        return part if found else None
    return next((device for device in devices if name and _uuid(library, device).startswith(name)), None)


def _uuid(library: ctypes.CDLL, device: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(_UUID_BYTES)
    return text.value.decode() if library.nvmlDeviceGetUUID(device, text, ctypes.c_uint(_UUID_BYTES)) == 0 else ""


def _total(library: ctypes.CDLL, device: ctypes.c_void_p) -> int:
    memory = _Memory()
    return int(memory.total) if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0 else 0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    rss_mb: float
    """Resident memory."""
    device_peak_mb: float | None
    """The most that torch ever had allocated on a device; None if it has not used one."""


def process_memory(*, with_children: bool) -> ProcessMemory:
    """Returns the memory of this process, and of the processes that it started, if they are asked for."""
    own = psutil.Process()
    family = [own, *own.children(recursive=True)] if with_children else [own]
    return ProcessMemory(sum(map(_resident, family)) / MIB, _device_peak_mb())


def _resident(process: psutil.Process) -> int:
    """Returns bytes; 0 if the process is gone."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _device_peak_mb() -> float | None:
    torch = sys.modules.get("torch")  # a process without it uses no device
    if torch is None or not torch.cuda.is_initialized():
        return None
    peaks: list[int] = [torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())]
    return max(peaks) / MIB
