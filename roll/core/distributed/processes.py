"""A process among those of all machines.

A host's name and a number tell no two processes apart: pods on a host's network and cloned machines share the name, and every
process table counts from 1. The boot, the process table and the moment of the start do.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STARTED = 19
"""Index of the start in the fields of /proc/<pid>/stat that follow the name."""


@dataclass(frozen=True, slots=True)
class Process:
    host: str
    """The name of its machine, for people."""
    pid: int
    boot: str = ""
    """See `boot_id`."""
    table: str = ""
    """See `process_table`."""
    ticks: int = 0
    """From the boot to its start."""

    @classmethod
    def this(cls) -> Process:
        return cls.here(os.getpid())

    @classmethod
    def here(cls, pid: int) -> Process:
        """The one that has this number now on this machine. Raises `OSError`."""
        return cls(socket.gethostname(), pid, boot_id(), process_table(), _stat(pid)[1])

    @classmethod
    def read(cls, found: object) -> Process | None:
        """Reads back `asdict` of a process; None for anything else."""
        kinds = {"host": str, "pid": int, "boot": str, "table": str, "ticks": int}
        if isinstance(found, dict) and {name: type(value) for name, value in found.items()} == kinds:
            return cls(**found)
        return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def alive(self) -> bool | None:
        """True if it exists, stopped or not, as this machine's process table says; None: that table says nothing of it."""
        if not self.boot or not self.table or (self.boot, self.table) != (boot_id(), process_table()):
            return None
        try:
            state, ticks = _stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return None if _hidden(self.pid) else False
        except OSError:
            return None
        return state not in "ZX" and ticks == self.ticks


def boot_id() -> str:
    """The same in all processes of one kernel until it ends; empty where that cannot be read."""
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


def process_table() -> str:
    """Namespaces of process numbers and of start times; empty where that cannot be read."""
    return _spaces("pid", "time")


def network() -> str:
    """The same in processes that reach each other by the loopback interface; empty where that cannot be read."""
    boot, space = boot_id(), _spaces("net")
    return f"{boot} {space}" if boot and space else ""


def _spaces(first: str, *more: str) -> str:
    try:
        found = [os.readlink(f"/proc/self/ns/{first}")]
    except OSError:
        return ""
    for name in more:
        with suppress(OSError):  # an older kernel
            found.append(os.readlink(f"/proc/self/ns/{name}"))
    return " ".join(found)


def _stat(pid: int) -> tuple[str, int]:
    """State and start. Raises `OSError`, and is empty where there is no /proc for this process itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if pid == os.getpid():
            return "", 0
        raise
    return fields[0], int(fields[_STARTED])


def _hidden(pid: int) -> bool:
    """True if /proc hides the processes of others (hidepid), and there is one of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
