"""What programs use together, which limits of one process do not bound: memory, and files where they have no /tmp of their own.

Both are read from outside, while they run. What they leave is deleted by a process of its own: that takes as long as it takes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roll.distributed.watchdog import children_of
from roll.pipeline.rlvr.rewards.sandbox.limits import Limits

PREFIX = "roll-sandbox-"
_DELETE = 'chmod -R u+rwx -- "$@"; exec rm -rf -- "$@"'


def new_folder(place: str, held: list[Any]) -> str:
    """For the folders of programs. It is this process's until that ends, which whoever finds it can see: `held` gets its lock."""
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=place)
    os.chmod(folder, 0o711)
    held.append(_lock(folder))
    return folder


def abandoned() -> list[str]:
    """This user's folders whose processes have ended."""
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and folder.is_dir():
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
    """Begins to; programs may have made them unreadable, and deep."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(["/bin/sh", "-c", _DELETE, "sh", *folders], stdin=quiet, stdout=quiet, stderr=quiet)


def exceeded(forker: int, isolated: bool, folders: list[str], limits: Limits) -> str:
    """ "memory" or "files", if the forker's programs use more of it together than `limits` say."""
    if isolated:  # the programs are children of the forker's child
        forker = next(iter(children_of(forker)), 0)
    programs = list(_below(forker))
    most_kb = limits.memory_mb << 10
    if sum(map(_resident_kb, programs)) > most_kb and sum(map(_own_kb, programs)) > most_kb:
        return "memory"
    return "files" if any(_fills(folder, limits) for folder in folders) else ""


def _below(process: int) -> Iterator[int]:
    for child in children_of(process):
        yield child
        yield from _below(child)


def _resident_kb(process: int) -> int:
    return _sum_of(f"/proc/{process}/status", ("VmRSS:", "VmSwap:"))


def _own_kb(process: int) -> int:
    """Without what it shares with others, where that may be read."""
    return _sum_of(f"/proc/{process}/smaps_rollup", ("Pss:", "SwapPss:")) or _resident_kb(process)


def _sum_of(file: str, names: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError):
        return sum(int(line.split()[1]) for line in Path(file).read_text().splitlines() if line.startswith(names))
    return 0


def _fills(folder: str, limits: Limits) -> bool:
    """A folder that cannot be looked into is full."""
    count, size = 0, 0
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    count, size = count + 1, size + 512 * found.st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    if count > limits.most_files or size > limits.tmp_bytes:
                        return True
        except FileNotFoundError:  # deleted in the meantime
            continue
        except OSError:
            return True
    return False
