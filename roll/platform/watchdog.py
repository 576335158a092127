"""A small process that outlives the driver, and does what the driver cannot do any more when it is killed or crashes.

The driver sends orders to the watchdog: processes to kill, folders to remove, a file to amend. The watchdog waits for
the end of its pipe to the driver, which comes whatever ends the driver, and then does all of it, unless the driver dismissed it
before. The script needs nothing but the standard library, and runs in a session of its own: Ctrl-C does not reach it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

END_S = 10.0
"""For the watchdog to end when it is dismissed."""


class Watchdog:
    """The driver's side. The process starts with the first order: a run that is refused needs none."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def kills(self, pids: Iterable[int]) -> None:
        """Processes that must not outlive the driver. One whose number was given to another process meanwhile is spared."""
        self._send({"kill": {str(pid): birth for pid in pids if (birth := birth_of(pid)) is not None}})

    def removes(self, folder: Path) -> None:
        self._send({"remove": str(folder.absolute())})

    def amends(self, path: Path, where: Mapping[str, object], values: Mapping[str, object], error: str) -> None:
        """A JSON file gets `values`, if it has those of `where` by then, whatever else it has; `error` goes to standard error."""
        self._send({"amend": str(path.absolute()), "where": where, "values": values, "error": error})

    def dismiss(self) -> None:
        """The driver ends in order. May be repeated."""
        if self._process is None:
            return
        self._send({"dismiss": True})
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:  # it was stopped, and would never end
            self._process.kill()
            self._process.wait()

    def _send(self, order: dict[str, object]) -> None:
        if self._process is None:
            command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):  # the watchdog was killed, which is no reason to end the run
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()


def birth_of(pid: int) -> str | None:
    """The start time of a process, in the kernel's ticks; None if the process is gone, or this is not Linux."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def serve(source: BinaryIO) -> None:
    orders: list[dict[str, Any]] = []
    for line in source:
        order = json.loads(line)
        if "dismiss" in order:
            return
        orders.append(order)
    for order in orders:
        for pid, birth in order.get("kill", {}).items():
            if birth_of(int(pid)) == birth:
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
    for order in orders:
        if "remove" in order:
            shutil.rmtree(order["remove"], ignore_errors=True)
        if "amend" in order:
            _amend(order["amend"], order["where"], order["values"])
            print(order["error"], file=sys.stderr)


def _amend(path: str, where: dict[str, object], values: dict[str, object]) -> None:
    aside = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(Path(path).read_text())
        if where.items() <= found.items():
            Path(aside).write_text(json.dumps(found | values, indent=2))
            os.replace(aside, path)


if __name__ == "__main__":
    serve(sys.stdin.buffer)
