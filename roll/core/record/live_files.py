"""The files of a run that are rewritten while it runs, and so are there whatever ends it: summary.json and trace/.

They are written in a thread, as often as a hundredth of the run's time allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

from roll.core.configs.plain import JsonObject
from roll.core.distributed.clock import monotonic
from roll.core.distributed.processes import Process
from roll.core.record.journal import write_atomically
from roll.core.record.ledger import Ledger
from roll.core.record.run_lock import RunLock
from roll.core.record.trace import Trace

logger = logging.getLogger(__name__)

SUMMARY = "summary.json"
AS_OF = "as_of"
"""Time at which the figures in summary.json were taken, while the run runs. Its journals go on."""
EVERY_S = 5.0
"""The files are not rewritten more often than this, ..."""
SHARE = 0.01
"""... and take no more than this share of the driver's time."""
Status = Literal["finished", "stopped", "failed", "interrupted"]
"""Status of a run that has ended."""


class LiveFiles:
    def __init__(self, run_dir: Path, lock: RunLock | None) -> None:
        self.trace = Trace(run_dir / "trace")
        self._run_dir = run_dir
        self._lock = lock
        self._writing = threading.Lock()
        """One thread writes at a time, and none writes after the end."""
        self._over = False
        self._failed = False
        """True if the files are not up to date."""

    async def keep(self, figures: Callable[[], Awaitable[JsonObject]], ledger: Ledger) -> None:
        """Rewrites the files as long as the run lasts. `figures`: figures of the run so far. Raises `Superseded`."""
        head = running(self._lock.owner.started if self._lock is not None else "")
        due = 0.0
        while True:
            await asyncio.sleep(EVERY_S)
            more: list[Callable[[], object]] = []
            now, files = monotonic(), self.trace.full
            if now >= due:
                files = self.trace.files(ledger.open_spans(now))
                summary = json.dumps(head | {AS_OF: time.strftime("%Y-%m-%d %H:%M:%S")} | await figures(), indent=2)
                more = [partial(write_atomically, self._run_dir / SUMMARY, summary.encode())]
            cost_s = await asyncio.to_thread(self._rewrite, [*(file.write for file in files), *more])
            if not self._failed:
                self.trace.written(files)
            if more:
                due = now + cost_s / SHARE

    def finish(self, summary: dict[str, object] | None, ledger: Ledger | None) -> None:
        """Writes the last contents. A run whose summary cannot be written has failed, and `summary` says so; None: the run goes
        on, with files of its own. Raises `Superseded`."""
        with self._writing:
            self._over = True
            self._check_lock()
            if summary is not None:
                write_summary(self._run_dir, summary)
            files = self.trace.files(ledger.open_spans(monotonic()) if ledger is not None else ())
            self._write([file.write for file in files])

    def _rewrite(self, files: Sequence[Callable[[], object]]) -> float:
        """Returns the seconds that it kept a processor busy."""
        began = time.thread_time()
        with self._writing:
            if files and not self._over:
                self._check_lock()
                self._write(files)
        return time.thread_time() - began

    def _write(self, files: Sequence[Callable[[], object]]) -> None:
        """Writes the files; one that cannot be written stays as it was, with a warning."""
        try:
            for write in files:
                write()
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("summary.json or the trace is not up to date: %s", error)
            self._failed = True

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()


def running(started: str) -> JsonObject:
    """Returns the first entries of summary.json while this process runs the run."""
    return {"status": "running", "reason": "", "process": asdict(Process.this()), "started": started}


def announce_running(run_dir: Path, started: str) -> dict[str, object]:
    """Writes a summary.json of a running run, in place of an earlier end. Returns the entries that it keeps until the end,
    whatever is added. Raises `OSError`."""
    announced = running(started)
    write_atomically(run_dir / SUMMARY, json.dumps(announced, indent=2).encode())
    return announced


def write_summary(run_dir: Path, summary: dict[str, object]) -> None:
    """Writes the summary. If it cannot, `summary` becomes that of a run which failed for this reason, if for no other."""
    path = run_dir / SUMMARY
    try:
        write_atomically(path, json.dumps(summary, indent=2).encode())
    except OSError as error:
        if summary["status"] != "failed":
            summary |= {"status": "failed", "reason": f"the results cannot be written: {error}"}
        short = json.dumps({"status": "failed", "reason": summary["reason"], "steps": summary.get("steps")})
        # Overwriting the file in place works on a full disk, too.
        with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
            file.write(short.encode())
            file.truncate()


def is_running(run_dir: Path) -> bool:
    """True if summary.json reports no end yet."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads((run_dir / SUMMARY).read_text())["status"] == "running")
    return True


def read_summary(run_dir: Path) -> JsonObject:
    """Returns the summary; empty if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((run_dir / SUMMARY).read_text())
        return found if isinstance(found, dict) else {}
    return {}


def amend_summary(run_dir: Path, end: JsonObject) -> None:
    """Adds the end of a run that ended before it could write one: its last figures stay."""
    write_summary(run_dir, read_summary(run_dir) | end)
