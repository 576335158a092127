"""Limits of programs in the sandbox, and their common use of what limits of one process do not bound: memory, and files where
they have no /tmp of their own.

Both are read from outside, while they run. A process of its own deletes the files they leave: that takes as long as it takes.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import resource
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from roll.graders.sandbox.namespaces import NOBODY

PREFIX = "roll-sandbox-"
YOUNG_S = 60.0
"""A folder as young as this may still be without its lock."""
_DELETE = 'chmod -R u+rwx -- "$@"; exec rm -rf -- "$@"'


@dataclass(frozen=True, slots=True)
class Limits:
    wall_s: float = 6.0
    """Time from its start to its end."""
    cpu_s: int = 4
    """Processor time of one process."""
    memory_mb: int = 1024
    """Address space of one process, and memory of all of a solution's processes and its tests' together."""
    processes: int = 4
    """Processes and threads at a time, in addition to the first."""
    files: int = 32
    """Open at a time."""
    file_mb: int = 8
    """Size of one file; all files together may have eight times as much, and be `most_files`."""
    output_kb: int = 1024
    """Size of its output."""

    @property
    def most_files(self) -> int:
        return 1024

    @property
    def tmp_bytes(self) -> int:
        return 8 * self.file_mb << 20

    def apply(self, others: int | None) -> None:
        """Limits this process and those that it starts. `others`: processes of the same user that are no part of the program;
        None if there are more than are known, and processes are counted otherwise."""
        processes = [] if others is None else [(resource.RLIMIT_NPROC, self.processes + others)]
        for kind, most in (
            *processes,
            (resource.RLIMIT_CPU, self.cpu_s),
            (resource.RLIMIT_AS, self.memory_mb << 20),
            (resource.RLIMIT_NOFILE, self.files),
            (resource.RLIMIT_FSIZE, self.file_mb << 20),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (most, most))


def new_place(as_nobody: bool) -> tuple[str, int]:
    """A folder for the folders of programs, and its lock: while that is open, it is in use."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    os.chmod(folder, 0o711)
    if as_nobody and os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder, _lock(folder)


def abandoned() -> list[str]:
    """Returns this user's folders whose processes have ended."""
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found_out = folder.lstat()
            old = time.time() - found_out.st_ctime > YOUNG_S
            if old and found_out.st_uid in (os.getuid(), NOBODY) and stat.S_ISDIR(found_out.st_mode):
                os.close(_lock(str(folder)))
                found.append(str(folder))
    return found


def _lock(folder: str) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def delete(folders: list[str]) -> subprocess.Popen[bytes]:
    """Starts to delete them; programs may have made them unreadable, and deep."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(["/bin/sh", "-c", _DELETE, "sh", *folders], stdin=quiet, stdout=quiet, stderr=quiet)


def exceeded(forker: int, own: set[int], folders: list[str], limits: Limits) -> str:
    """Says "memory" or "files", if what is below the forker uses more of it together than `limits` allow. `own`: the processes
    there that are no programs."""
    programs = [_thread_of(process) for process in below(forker) if process not in own]
    most_kb = limits.memory_mb << 10
    if sum(map(_resident_kb, programs)) > most_kb and sum(map(_own_kb, programs)) > most_kb:
        return "memory"
    return "files" if any(_fills(folder, programs, limits) for folder in folders) else ""


def children(process: int) -> list[int]:
    """Read from /proc alone: psutil looks at every process of the machine, and this is asked many times per second."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def below(process: int) -> Iterator[int]:
    for child in children(process):
        yield child
        yield from below(child)


def _thread_of(process: int) -> str:
    """Returns its folder in /proc, as its newest thread's: a first thread that has ended has nothing to say."""
    with contextlib.suppress(OSError, IndexError):  # it is ending
        return f"/proc/{process}/task/{os.listdir(f'/proc/{process}/task')[-1]}"
    return f"/proc/{process}"


def _resident_kb(process: str) -> int:
    return _sum_of(f"{process}/status", ("VmRSS:", "VmSwap:"))


def _own_kb(process: str) -> int:
    """Returns its own memory, without shared parts where they may be read."""
    return _sum_of(f"{process}/smaps_rollup", ("Pss:", "SwapPss:")) or _resident_kb(process)


def _sum_of(file: str, names: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError):
        return sum(int(line.split()[1]) for line in Path(file).read_text().splitlines() if line.startswith(names))
    return 0


def _nameless(folder: str, process: str) -> Iterator[tuple[int, int]]:
    """Files of the folder that are deleted, but kept by a descriptor or in memory, where that may be read: number and size."""
    begin, end = f"{folder}/", " (deleted)"
    with contextlib.suppress(OSError):
        for each in os.listdir(f"{process}/fd"):
            with contextlib.suppress(OSError):  # closed in the meantime
                to = os.readlink(f"{process}/fd/{each}")
                if to.startswith(begin) and to.endswith(end):
                    found = os.stat(f"{process}/fd/{each}")
                    yield found.st_ino, 512 * found.st_blocks
        for line in Path(f"{process}/maps").read_text(errors="replace").splitlines():
            if begin in line and line.endswith(end):
                addresses, _, _, _, number, _ = line.split(maxsplit=5)
                first, last = (int(each, 16) for each in addresses.split("-"))
                yield int(number), last - first


def _fills(folder: str, programs: list[str], limits: Limits) -> bool:
    nameless = dict(each for process in programs for each in _nameless(folder, process))
    size = 0.0
    for count, each in enumerate(chain(nameless.values(), _sizes_in(folder)), 1):
        size += each
        if count > limits.most_files or size > limits.tmp_bytes:
            return True
    return False


def _sizes_in(folder: str) -> Iterator[float]:
    """A folder that cannot be looked into is full."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    yield 512 * entry.stat(follow_symlinks=False).st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except FileNotFoundError:  # deleted in the meantime
            continue
        except OSError:
            yield math.inf
