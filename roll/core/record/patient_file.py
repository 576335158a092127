"""A file that grows by whole lines, which a thread writes. Whoever appends waits a moment for it, and no longer: a folder that
hangs, as a network folder does whose server is away, holds up only those who need to know that a line is there."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from pathlib import Path

MOMENT_S = 0.5
"""Time that an append waits for the line to be written; none while earlier ones are late."""
MOST_BYTES = 64 << 20
"""So much may wait to be written, before an append waits for the folder, however long."""
IDLE_S = 5.0
"""A thread that has nothing to write ends then."""


class PatientFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        # Without a buffer: a line that a full disk refuses must not come up again when the file is closed.
        self._file = path.open("ab", buffering=0)
        self._written = self.end = os.fstat(self._file.fileno()).st_size
        """`end`: the size when all is written."""
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._error: OSError | RuntimeError | None = None

    def append(self, line: bytes) -> None:
        """Hands the line, or several, to the operating system, or to the thread if that does not answer.

        Raises `OSError`, naming the file, if this line or one before cannot be written; then nothing of it stays. Raises
        `RuntimeError` if another process writes there, too."""
        with self._changed:
            self._changed.wait_for(lambda: self.end - self._written < MOST_BYTES)
            self._raise()
            patience_s = 0.0 if self._lines else MOMENT_S
            self._lines.append(line)
            self.end += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._lines, patience_s)
            self._raise()

    def settle(self) -> None:
        """Returns when all lines are written, however long that takes. Raises as `append`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines)
            self._raise()

    def truncate(self, end: int) -> None:
        self.settle()
        self._file.truncate(end)
        self._written = self.end = end

    def close(self) -> None:
        try:
            self.settle()
        finally:
            self._file.close()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._lines, IDLE_S):
                    self._thread = None
                    return
                line = self._lines[0]
            error = self._write(line)
            with self._changed:
                if error is None:
                    self._lines.popleft()
                    self._written += len(line)
                else:
                    self._error, self.end = error, self._written
                    self._lines.clear()  # no line without the one before it
                self._changed.notify_all()

    def _write(self, line: bytes) -> OSError | RuntimeError | None:
        try:
            size = os.fstat(self._file.fileno()).st_size
            if size != self._written:
                said = f"{self._path} has {size} bytes where this run left {self._written}: another process writes to it"
                return RuntimeError(said)
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._written)
            return OSError(error.errno, error.strerror, str(self._path))
        return None

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
