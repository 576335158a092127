"""A control group for each forker, where this process may make one: the kernel bounds what all that the forker starts have in
memory together, and ends some of it when that is too much.

Version 1 is asked for a group below this process's own; version 2, where processes stand in leaves alone, for one beside it, if
memory is handed on to that place already. Nothing that was there is changed, and no process is moved but the forker's.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from roll.core.errors import SandboxFailed
from roll.graders.sandbox.usage import PREFIX, Limits

IN_FORCE = "control group: the kernel bounds what all processes of a sample have in memory together"
WATCHED = "watched memory: what all processes of a sample have in memory together is looked at 20 times a second"
END_S = 2.0
"""Time for ended processes to leave their group."""
TASKS = 24
"""Tasks of forkers, and room besides: no program meets the group's bound on tasks before its own."""


@dataclass(frozen=True, slots=True)
class Files:
    most: str
    swap: str
    """With 0 in it, no swap is used."""
    events: str
    counts: str
    """The word of `events` before the number of times that the bound was met and nothing could be given back."""


_V1 = Files("memory.limit_in_bytes", "memory.swappiness", "memory.oom_control", "oom_kill")
_V2 = Files("memory.max", "memory.swap.max", "memory.events", "oom")


class ControlGroup:
    def __init__(self, folder: Path, files: Files, processes: Sequence[int]) -> None:
        """Raises `OSError`."""
        self._folder, self._files, self._most, self._before = folder, files, 0, 0
        for process in processes:
            (folder / "cgroup.procs").write_text(str(process))
        self._write_if_there(files.swap, 0)

    def bound(self, limits: Limits, loaded: int = 0) -> None:
        """Sets the bound: beside `memory_mb`, room for the files in /tmp of both programs, which are in memory, too. The forker's
        own is not counted: it had it before it came here, or has `loaded` so much for programs that use libraries."""
        self._before = self._count()
        if (most := (limits.memory_mb << 20) + 2 * limits.tmp_bytes + loaded) == self._most:
            return
        try:
            (self._folder / self._files.most).write_text(str(most))
        except OSError as error:
            raise SandboxFailed(f"the control group {self._folder} takes no bound: {error}") from None
        self._write_if_there("pids.max", 2 * limits.processes + TASKS)
        self._most = most

    def met(self) -> bool:
        """True if the bound was met since the last `bound`, and more was wanted than could be given back."""
        return self._count() > self._before

    def _count(self) -> int:
        with contextlib.suppress(OSError, ValueError):  # a kernel that does not count
            words = (self._folder / self._files.events).read_text().split()
            return int(words[words.index(self._files.counts) + 1])
        return 0

    def _write_if_there(self, name: str, value: int) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).write_text(str(value))

    def remove(self) -> None:
        """Removes the group with all that is still in it, as a forker may have ended before its children. Leftovers after `END_S`
        are removed at the next start."""
        _remove(self._folder, time.monotonic() + END_S, signal.SIGKILL)


def new(processes: Sequence[int]) -> ControlGroup | None:
    """A group with these processes in it; None where this process may make none."""
    remove_abandoned(0.0)
    for place, files in _places():
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
            try:
                return ControlGroup(folder, files, processes)
            except OSError:
                folder.rmdir()
    return None


def remove_abandoned(limit_s: float = END_S) -> None:
    """Removes groups whose makers have ended. Waits at most that long for processes that are ending there."""
    deadline = time.monotonic() + limit_s
    for folder in (folder for place, _ in _places() for folder in place.glob(f"{PREFIX}*-*")):
        if not Path("/proc", folder.name.removeprefix(PREFIX).partition("-")[0]).exists():
            _remove(folder, deadline, 0)  # forkers are tidying up


def _remove(folder: Path, deadline: float, by: int) -> None:
    with contextlib.suppress(OSError):
        for process in map(int, (folder / "cgroup.procs").read_text().split()):
            with contextlib.suppress(OSError), open(os.pidfd_open(process)) as ends:
                signal.pidfd_send_signal(ends.fileno(), by)
                select.select([ends], [], [], max(0.0, deadline - time.monotonic()))
        folder.rmdir()


def _places() -> Iterator[tuple[Path, Files]]:
    """Yields places for groups of this process's own, if it has the rights."""
    with contextlib.suppress(OSError):
        groups = [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in line]
        for mount, (controllers, group) in product(mounts, groups):
            what, _, how = mount.partition(" - ")
            (root, target), (kind, *_, options) = what.split()[3:5], how.split()
            if ".." in group or not Path(group).is_relative_to(root):
                continue
            own = Path(target, Path(group).relative_to(root))
            if kind == "cgroup" and "memory" in controllers.split(",") and "memory" in options.split(","):
                yield own, _V1
            elif kind == "cgroup2" and not controllers:
                yield from ((place, _V2) for place in (own.parent, own) if _hands_on_memory(place))


def _hands_on_memory(place: Path) -> bool:
    with contextlib.suppress(OSError):
        return "memory" in (place / "cgroup.subtree_control").read_text().split()
    return False
