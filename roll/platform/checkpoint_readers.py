"""Processes that read a checkpoint hold it, so that the run that wrote it does not delete it meanwhile.

A reader has a shared lock on its manifest, which ends with the process at the latest; a run deletes a checkpoint only under an
exclusive one. On a file system without locks readers are on their own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from roll.core.errors import CheckpointError
from roll.core.record.manifest import MANIFEST
from roll.core.record.run_lock import NO_LOCKS


class Hold:
    """A lock on the manifests of some checkpoints, from its creation until `close` or the end of the object."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def add(self, folder: Path, kind: int, flags: int) -> None:
        """Raises `OSError`, `BlockingIOError` if others hold it."""
        descriptor = os.open(folder / MANIFEST, flags)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), os.stat(folder / MANIFEST)):
                raise FileNotFoundError(f"{folder} was replaced")
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in NO_LOCKS:
                return
            raise
        self._files.append(descriptor)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def __del__(self) -> None:
        self.close()


def reading(*folders: Path) -> Hold:
    """Holds checkpoints against deletion; called before they are verified, which also finds those that are not there. Raises
    `CheckpointError` for one that is just being deleted."""
    hold = Hold()
    for folder in folders:
        try:
            hold.add(folder, fcntl.LOCK_SH, os.O_RDONLY)
        except BlockingIOError:
            hold.close()
            raise CheckpointError(f"{folder} is being deleted by its run (max_ckpt_to_keep): name a newer one") from None
        except OSError:
            continue
    return hold


def deletable(folders: Iterable[Path]) -> tuple[Hold, set[Path]]:
    """Returns those of the checkpoints that nobody reads; nobody can begin to, as long as the lock is held."""
    hold, found = Hold(), set[Path]()
    for folder in folders:
        try:
            hold.add(folder, fcntl.LOCK_EX, os.O_RDWR)
        except BlockingIOError:
            continue
        except OSError:  # nobody can read it either, or its deletion will say why
            pass
        found.add(folder)
    return hold, found
