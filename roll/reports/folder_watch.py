"""Reports a folder that does not answer, such as a network folder whose server is away: writers to it are blocked meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 10.0


class FolderWatch:
    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._asked_at, self._asks = 0.0, threading.Thread()
        self.is_silent = False

    def look(self) -> None:
        """Checks the folder; to be called repeatedly. Never waits for it."""
        now = time.monotonic()
        silent = self._asks.is_alive() and now - self._asked_at > PATIENCE_S
        if silent and not self.is_silent:
            self._say(f"{self._folder} has not answered for {PATIENCE_S:.0f} s: what is written there waits for it")
        if not self._asks.is_alive():
            if self.is_silent:
                self._say(f"{self._folder} answers again, after {now - self._asked_at:.0f} s")
            self._asked_at = now
            self._asks = threading.Thread(target=self._ask, daemon=True)  # the end waits for no daemon
            self._asks.start()
        self.is_silent = silent

    def _ask(self) -> None:
        """Asks the server, not this machine's cache of it."""
        with contextlib.suppress(OSError):  # an answer, too
            os.statvfs(self._folder)
