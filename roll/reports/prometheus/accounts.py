"""Counters of groups that never fall. A run that is killed and resumed goes on from its checkpoint, with lower counts than were
served before; to Prometheus a counter that falls has begun anew, and it would count what it has seen a second time. So what was
served is written down before it is sent, and a counter stands still until the accounts of the run have reached it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock

from roll.core.errors import Superseded
from roll.core.record.journal import write_atomically
from roll.core.record.run_lock import RunLock

FILE = "served_counters.json"


class Accounts:
    def __init__(self, run_dir: Path, lock: RunLock | None) -> None:
        self._file, self._run_lock, self._lock = run_dir / FILE, lock, Lock()
        self._served = _read(self._file)

    def serve(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Returns the counters; on any thread."""
        with self._lock:
            raised = {key: max(counts.get(key, 0), self._served.get(key, 0)) for key in {**self._served, **counts}}
            if raised != self._served:
                with suppress(OSError, Superseded):  # a disk that is full ends no scrape
                    if self._run_lock is not None:
                        self._run_lock.check()
                    write_atomically(self._file, json.dumps(raised).encode())
            self._served = raised
            return raised


def _read(file: Path) -> dict[str, float]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(file.read_text())
        if isinstance(found, dict):
            return {key: count for key, count in found.items() if isinstance(count, int | float)}
    return {}
