"""What the machine offers a run: processors, memory, shared memory, disk, open files, ports."""

from __future__ import annotations

import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from roll.cli.findings import Finding
from roll.configs.problems import Problem
from roll.distributed.machine import Machine

GIB = 1 << 30
LEAST_MEMORY = 4 * GIB
"""The demo's processes have 1.7 GiB together; torch and the file cache want the rest."""
LEAST_SHARED = 1 * GIB
"""Ray keeps what its processes hand to each other in /dev/shm; below it, Ray writes to the disk."""
LEAST_DISK = 5 * GIB
LEAST_FILES = 4096
"""Ray asks for as many: every worker has sockets to all others."""

FEWEST_FILES = {"one process": 16, "Ray": 256}
"""With fewer no event loop can be made, and Ray waits half a minute and then blames something else."""


def surroundings(machine: Machine, output_dir: str) -> Iterator[Finding]:
    yield Finding("ok", "processors", f"{machine.cpus} cores")
    yield _memory(machine)
    shown = ", ".join(f"{size / GIB:.0f} GiB" for size in machine.accelerators)
    yield Finding("ok", "accelerators", shown or "none: devices are shares of the processors")
    yield shared_memory(Path("/dev/shm"))
    yield disk(Path(output_dir))
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield ports()


def _memory(machine: Machine) -> Finding:
    text = f"{machine.memory / GIB:.1f} GiB"
    if machine.memory >= LEAST_MEMORY:
        return Finding("ok", "memory", text)
    return Finding("warn", "memory", f"{text} is little", f"at least {LEAST_MEMORY / GIB:.0f} GiB, or run with --local")


def shared_memory(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding("warn", "shared memory", f"{folder} is not there: Ray writes to the disk instead", "run with --local")
    size = shutil.disk_usage(folder).total
    if size >= LEAST_SHARED:
        return Finding("ok", "shared memory", f"{folder}: {size / GIB:.1f} GiB")
    fix = "start the container with --shm-size=2g, or run with --local"
    return Finding("warn", "shared memory", f"{folder}: {size / GIB:.2f} GiB is little for Ray and data loaders", fix)


def disk(folder: Path) -> Finding:
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / GIB:.1f} GiB free in {place}"
    if free >= LEAST_DISK:
        return Finding("ok", "disk", text)
    return Finding("warn", "disk", f"{text}: checkpoints may not fit", "free some, or set output_dir to another disk")


def open_files(limit: int) -> Finding:
    if limit == resource.RLIM_INFINITY:
        return Finding("ok", "open files", "no limit")
    if limit >= LEAST_FILES:
        return Finding("ok", "open files", f"at most {limit:,} a process")
    return Finding("warn", "open files", f"at most {limit:,} a process", f"ulimit -n {LEAST_FILES}")


def too_few_files(limit: int, local: bool) -> Problem | None:
    """Said before a start, which would fail with less than this."""
    kind = "one process" if local else "Ray"
    least = FEWEST_FILES[kind]
    if limit == resource.RLIM_INFINITY or limit >= least:
        return None
    message = f"is too few open files: a run with {kind} needs {least} at least"
    return Problem("ulimit -n", limit, message, f"ulimit -n {LEAST_FILES}")


def ports() -> Finding:
    """Workers meet on loopback; a cluster's nodes by the address of the host's name."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
            pass
    except OSError as error:
        return Finding(
            "missing", "ports", f"no port of 127.0.0.1 can be opened and reached: {error}", "allow loopback connections"
        )
    return Finding("ok", "ports", "processes can meet on 127.0.0.1")
