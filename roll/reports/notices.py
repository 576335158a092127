"""`on_event`: a run tells others when it has ended, when an alarm was given, and when a checkpoint is the best so far.

Each event is told at most once, also across a resumption: it is written down before it is sent. A thread does both; the run
neither waits for it nor fails with it, until its end, when the last notices have their time.
"""

from __future__ import annotations

import json
import logging
import platform
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from roll.core.errors import boundary
from roll.core.record.callbacks import Callback, Summary
from roll.core.record.journal import write_atomically
from roll.core.record.run_progress import RunProgress
from roll.reports.best_steps import told_best
from roll.reports.receivers import Receiver

FILE = "told_events.json"
PENDING = 100
"""Notices that may wait for slow receivers; more are left out."""

logger = logging.getLogger(__name__)


class Event(NamedTuple):
    name: str
    key: str
    """The same whenever the same event is met again."""
    facts: dict[str, Any]


class Notices(Callback):
    def __init__(self, receivers: Sequence[Receiver], run: str, run_dir: Path) -> None:
        self._receivers = {receiver.event: receiver for receiver in receivers}
        self._run, self._folder = run, run_dir
        self._told = _read(run_dir / FILE)
        self._waiting: queue.Queue[tuple[str, Receiver, dict[str, Any]] | None] = queue.Queue(PENDING)
        self._thread = threading.Thread(target=self._send, name="notices", daemon=True)
        self._thread.start()

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        for event in events_of(summary):
            self._tell(event, progress.step)

    def on_run_end(self, summary: Summary) -> None:
        for event in end_of(summary):
            self._tell(event, summary.get("steps"))
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        limit = max(receiver.timeout_s for receiver in self._receivers.values())
        self._thread.join(2 * limit)
        if self._thread.is_alive():
            logger.warning("on_event: notices were left unsent %.0f s after the end", 2 * limit)

    def _tell(self, event: Event, step: object) -> None:
        if event.key in self._told or (receiver := self._receivers.get(event.name)) is None:
            return
        self._told |= {event.key}
        who = {"event": event.name, "run": self._run, "folder": str(self._folder.absolute()), "host": platform.node()}
        notice = who | {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "step": step} | event.facts
        try:
            self._waiting.put_nowait((event.key, receiver, notice))
        except queue.Full:
            logger.warning("on_event.%s: %d notices wait already: this one is left out", event.name, PENDING)

    def _send(self) -> None:
        written = _read(self._folder / FILE)
        while (waiting := self._waiting.get()) is not None:
            key, receiver, notice = waiting
            written |= {key}
            with suppress(OSError):  # that the disk is full is worth a notice, too
                write_atomically(self._folder / FILE, json.dumps(sorted(written), indent=0).encode())

            def warn(why: str, receiver: Receiver = receiver) -> None:
                logger.warning("on_event.%s: %s (the run goes on)", receiver.event, receiver.hidden(why))

            with boundary(warn):
                if why := receiver.send(notice):
                    warn(why)


def events_of(summary: Mapping[str, Any]) -> Iterator[Event]:
    """Yields the events so far."""
    for alarm in summary.get("alarms", ()):
        limit = alarm["text"].partition(", ")[2]  # without the value, which another training of the step may not repeat
        yield Event("alarm", f"alarm {alarm['step']} {alarm['metric']} {limit}", {**alarm, "text": f"alarm: {alarm['text']}"})
    if best := summary.get("best"):
        facts = {name: best[name] for name in ("metric", "value", "step")}
        yield Event("best", f"best {best['step']}", {**facts, "text": told_best(best)})


def end_of(summary: Mapping[str, Any]) -> Iterator[Event]:
    """Yields the end of a run. One that a signal has ended is none: who sent it knows."""
    status, reason, steps = summary["status"], summary.get("reason", ""), summary.get("steps")
    verdict = (summary.get("verdict") or {}).get("text", "")
    text = f"{status} after step {steps}" + "".join(f": {each}" for each in (reason, verdict) if each)
    facts = {"status": status, "reason": reason, "verdict": verdict, "text": text}
    if status == "finished":
        yield Event("finished", f"finished {steps}", facts)
    elif status in ("failed", "stopped"):
        yield Event("failed", f"failed {time.time()}", facts)


def _read(file: Path) -> frozenset[str]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(file.read_text())
        if isinstance(found, list):
            return frozenset(key for key in found if isinstance(key, str))
    return frozenset()
