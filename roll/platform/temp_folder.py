"""Temporary folders that belong to a process, and do not outlive one that is killed for long: the next folder of a kind is
made after those whose owner is gone were removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

FRESH_S = 60.0
"""An empty folder that is younger may be about to be locked."""


class TempFolder:
    """A new folder `roll-<kind>-...`. It is locked as long as its process lives, which other processes can test: a lock, unlike a
    process id, means the same in every container that shares the folder's parent."""

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        """`parent`: by default that of temporary files."""
        above = parent or Path(tempfile.gettempdir())
        for left in above.glob(f"roll-{kind}-*"):
            _remove_if_left(left)
        self.path = Path(tempfile.mkdtemp(prefix=f"roll-{kind}-", dir=above))
        lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._end = weakref.finalize(self, _remove, self.path, lock)

    def remove(self) -> None:
        """May be repeated; a folder whose object is collected, or whose process ends, is removed, too."""
        self._end()


def own_package(kind: str) -> TempFolder:
    """For the path of another interpreter: it has this project's package alone. The folder around that may hold many others."""
    folder = TempFolder(kind)
    (folder.path / "roll").symlink_to(Path(__file__).parents[1])
    return folder


def temporary_files_in(folder: Path) -> dict[str, str]:
    """Variables with which another process keeps its temporary files in this folder. The kernels that torch compiles stay where
    the next process finds them."""
    kernels = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
    return {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": kernels}


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_if_left(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # the path is another user's, is no folder, or is gone meanwhile
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its owner lives
        return
    else:
        if any(folder.iterdir()) or time.time() - folder.stat().st_mtime > FRESH_S:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
