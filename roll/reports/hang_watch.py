"""Explains hangs: writes the stacks of the driver and of all workers to the run's folder, and logs one line for people. Also
reports a folder that hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from roll.core.distributed.backend import WorkerHandle
from roll.core.distributed.cluster import Cluster
from roll.core.errors import reason
from roll.core.flow.flow import Flow, Suspect, item_name
from roll.core.record.callbacks import Reports
from roll.platform import stacks
from roll.reports.folder_watch import FolderWatch

LOOK_S = 1.0
"""Time between two looks."""
ASKED_AT_ONCE = 16
"""Workers asked at the same time. One that does not answer takes seconds."""


class HangWatch:
    def __init__(self, flow: Flow, clusters: Mapping[str, Cluster], folder: Path, reports: Reports) -> None:
        """`folder`: receives the stacks, a file for each hang."""
        self._flow = flow
        self._clusters = clusters
        self._folder = folder
        self._reports = reports
        self._of_folder = FolderWatch(folder.parent, reports.note)

    async def run(self) -> None:
        """Runs as long as the run does, in a thread, because the driver's event loop itself may hang."""
        stopped = threading.Event()
        try:
            await asyncio.to_thread(self._watch, asyncio.get_running_loop(), stopped)
        finally:
            stopped.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
        while not stopped.wait(LOOK_S):
            self._of_folder.look()
            for suspect in self._flow.hangs.suspects(time.monotonic()):
                silent = self._silent(suspect.stage)
                try:
                    if self._of_folder.is_silent:
                        raise TimeoutError("the folder does not answer")
                    where = f"stacks: {self._write(suspect.stage, loop)}"
                except OSError as error:  # a full disk
                    where = f"its stacks cannot be written: {error}"
                waits = self._flow.waits.get(suspect.stage)
                why = f" and waits until {waits}" if waits else ""
                self._reports.note(f"{sentence(suspect)}{why}{silent}; {where}")

    def _silent(self, stage: str) -> str:
        """Returns the call that is open longest, of the role that works for the stage if it has one."""
        roles = {stage.name: stage.role for stage in self._flow.stages}
        calls = {role: call for role, cluster in self._clusters.items() if (call := cluster.oldest_call()) is not None}
        own = [call for role, call in calls.items() if role.partition(".")[0] == roles[stage]]
        if not (concerned := own or list(calls.values())):
            return ""
        call = min(concerned, key=lambda call: call.since)
        return f": {call.worker} has not answered {call.method} for {time.monotonic() - call.since:.0f} s"

    def _write(self, stage: str, loop: asyncio.AbstractEventLoop) -> Path:
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{datetime.now():%Y-%m-%dT%H-%M-%S}-{stage}.txt"
        workers = [worker for cluster in self._clusters.values() for worker in cluster.workers]
        with path.open("w") as file, ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            file.write("== the driver\n")
            stacks.write_own(file, loop)
            for worker, text in zip(workers, pool.map(_stacks, workers), strict=True):
                if text:
                    file.write(f"\n== {worker.name}\n{text}\n")
        return path


def _stacks(worker: WorkerHandle) -> str:
    try:
        return worker.stacks()
    except Exception as error:  # boundary: Ray may raise anything, and an explanation must not end what it explains
        return f"(cannot be asked: {reason(error)})"


def sentence(suspect: Suspect) -> str:
    before = "its first" if suspect.median_s is None else f"median {suspect.median_s:.1f} s"
    return f"{suspect.stage} works on {item_name(suspect.item)} for {suspect.seconds:.0f} s ({before})"
