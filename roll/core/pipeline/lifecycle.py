"""A run from its first worker to its summary: the reason of its end and its figures are always recorded, and no other process is
left waiting for it. The stages in between are in `run.py`.

SIGTERM: schedulers and service managers send it once, and then SIGKILL. The run then gives up work that would take too long, and
the process ends after `stop_within_s` at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from roll.core.configs.derived import decisions
from roll.core.configs.plain import JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.sizes import duration
from roll.core.distributed.backend import Backend, WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Inventory
from roll.core.engines.engine_fleet import EngineFleet
from roll.core.errors import CallbackError, Superseded, boundary
from roll.core.explorer.explorer import Exploration, Explorer
from roll.core.flow.flow import one_line
from roll.core.flow.stage import AnyStage
from roll.core.pipeline.clusters import device_locks, start_clusters
from roll.core.pipeline.failures import Fallback, TrainerRestarts
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.state import RunState
from roll.core.pipeline.summary import OF_THE_TIME, CarriedOver, RunComponents, figures
from roll.core.record.ledger import Ledger
from roll.core.record.live_files import Status, amend_summary, is_running, read_summary
from roll.core.record.run_lock import RunLock
from roll.core.record.run_record import Counter
from roll.core.trainer.advantages import Advantages

LEAVING_S = 5.0
"""Seconds of `stop_within_s` reserved for the end of the workers and the last files."""
EXIT_CODE = 130

TRACEBACK = "traceback.txt"
"""File with the traceback of the error that has ended the run."""

logger = logging.getLogger(__name__)


class RunLifecycle(ABC):
    def __init__(self, config: PPOConfig, prepared: Prepared, inventory: Inventory, backend: Backend) -> None:
        self.inventory = inventory
        self.backend = backend
        self._observers = prepared.observers(prepared, inventory, backend)
        self.state = RunState(config, prepared, self.advantages(config), self._observers)
        self.config = config
        self.prepared = prepared
        self.devices = device_locks(config)
        self.restarts = TrainerRestarts(config, backend.isolated)
        self.fallback = Fallback(config.synchronous_after_failures)
        self._limited = False
        self.stopped_by = ""
        self._task: asyncio.Task[object] | None = None
        self._components: RunComponents | None = None
        """Set from the moment that all workers are up."""
        self._carried_over = CarriedOver(self.state.first_step)
        self._before = read_summary(prepared.run_dir) if prepared.continues and config.trains else {}
        """Summary of an earlier start of this run."""

    # -- what a kind of run gives: `Any` is its own configuration and its own explorer -------------------------------------

    @abstractmethod
    def own_specs(self) -> Mapping[str, Sequence[WorkerSpec]]:
        """Returns the workers of roles that only this kind of run has."""

    @staticmethod
    @abstractmethod
    def advantages(config: Any) -> Advantages:
        """Returns the advantages of a run that begins."""

    @staticmethod
    @abstractmethod
    def rollouts(config: Any, explorer: Any) -> list[AnyStage]:
        """Returns the stages from an admitted group to one whose samples have rewards."""

    @abstractmethod
    async def explorer(
        self, exploration: Exploration, clusters: Mapping[str, Cluster], engines: EngineFleet, ledger: Ledger
    ) -> Explorer:
        """Makes the explorer, when all workers are up. `ledger`: for time that no stage accounts for."""

    # -- from the first worker to the summary -----------------------------------------------------------------------------

    @abstractmethod
    async def work(self, clusters: dict[str, Cluster]) -> None:
        """Does all work between the start of the workers and their end."""

    def begin(self, components: RunComponents, counter: Counter) -> None:
        """Called when all workers are up, and the stages begin, for the first time or again."""
        self._components = components
        places = components.explorer.places if components.explorer is not None else None
        started_s = self.state.record.begin(counter, components.flow.ledger, places)
        self.state.note(f"started in {duration(started_s)}")
        self.restarts.done(self.state.first_step)

    def go_back(self, prepared: Prepared) -> None:
        """Sets the state to that of `prepared`, a resumed run; counts of the whole run are carried over."""
        if self._components is not None:
            self._carried_over.add(self._components)
        self._components = None
        self.state.record.interrupt()
        self.prepared = prepared
        before = self.state
        self.state = RunState(self.config, prepared, self.advantages(self.config), self._observers, before.record)
        if before.interrupted:
            self.state.interrupted = True
            self.state.groups.stop(before.groups.hurried)

    async def run(self) -> JsonObject:
        self._heed_signals()
        self._task = asyncio.current_task()
        note = self.state.note
        status: Status = "finished"
        reason = ""
        try:
            await self.state.reports.begin()
            (self.prepared.run_dir / TRACEBACK).unlink(missing_ok=True)  # of an earlier start, which this one goes on from
            warnings = [f"warning: {line}" for line in self.prepared.warnings]
            for line in (*decisions(self.config, self.prepared.derived), *self.prepared.remarks, *warnings):
                note(line)
            if self.config.trains and (done := self.state.first_step) > (last := self.config.max_steps):
                note(f"warning: nothing is trained: the run goes on from step {done}, and max_steps is {last}")
            own = self.own_specs() if self.config.has_engines else {}
            parts = (own, self.inventory, self.backend, note, self.devices)
            await self.work(await start_clusters(self.config, self.prepared, *parts))
            status, reason = self._orderly_end()
        except asyncio.CancelledError:
            if not self.state.interrupted:
                raise
            status, reason = "interrupted", f"stopped immediately by a signal after {self.state.record.reached}"
        except Exception as error:  # boundary: a role may raise anything, which is the run's one-line reason
            status, reason = "failed", one_line(error)
            with contextlib.suppress(OSError):  # a full disk may be the reason itself
                (self.prepared.run_dir / TRACEBACK).write_text(traceback.format_exc())
        finally:
            self._task, wall_s = None, self.state.record.running_s()
            await self._leave(status, reason)
            await self.backend.shutdown()
        return await self._finish(status, reason, wall_s)

    async def _finish(self, status: Status, reason: str, wall_s: float) -> JsonObject:
        """Writes the summary, and returns it."""
        reports = self.state.reports
        summary = {"status": status, "reason": reason} | self.figures(wall_s) | self._kept(status)
        try:
            await reports.summarise(summary)
            await reports.tell("on_run_end", summary | self._measured_before())
        except CallbackError as error:
            if status != "failed":  # the first reason counts
                summary |= {"status": "failed", "reason": one_line(error)}
                reports.report("on_summary", summary, self.state.record.progress())
        summary |= self._measured_before()
        self.state.record.finish(summary, lambda: reports.report("on_run_end", summary))
        return summary

    def _orderly_end(self) -> tuple[Status, str]:
        """Returns status and reason of a run whose stages have ended."""
        reached = self.state.record.reached
        why, status = self.state.reports.stop_request or ("", "finished")
        if self.state.interrupted:
            return "interrupted", f"stopped by a signal after {reached}"
        if status == "stopped" or self.stopped_by:
            return "stopped", why if status == "stopped" else self.stopped_by
        return "finished", f"after {reached}, as {why}" if why else ""

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not on Windows, and not outside the main thread
            loop.add_signal_handler(signal.SIGINT, self.interrupt)
            loop.add_signal_handler(signal.SIGTERM, self.terminate)
            signal.signal(signal.SIGTERM, self._limit)  # called immediately even where the loop is blocked, as while Ray starts

    def figures(self, wall_s: float) -> JsonObject:
        """Returns the figures of the run so far."""
        found = figures(self.state, wall_s, self._components, self._carried_over, self.restarts, self.fallback.since)
        if failed := {stage.name: {stage.on_error: dict(stage.errors)} for stage in self.prepared.stages if stage.errors}:
            found["stage_errors"] = failed
        return found

    async def figures_so_far(self) -> JsonObject:
        """Returns `figures`, with the additions of callbacks."""
        record = self.state.record
        found = self.figures(record.running_s()) | {"roles": record.roles()}
        await self.state.reports.summarise(found)
        return found

    def _kept(self, status: str) -> JsonObject:
        """Returns the newest checkpoint of a trainer that has not done all its steps; and, if it lacks some, the reason."""
        state = self.state
        if not self.config.trains or status == "finished" or not state.record.step:
            return {}
        lacks = state.record.step > state.saved_step
        why = f"none of step {state.record.step}: {state.lost or 'the run was ended before it was written'}"
        return {"checkpoint": {"step": state.saved_step, "lost": why if lacks else ""}}

    def _measured_before(self) -> JsonObject:
        """Returns the earlier speed of the run if this start has trained nothing, and so measured nothing."""
        if self.state.record.step > self._carried_over.first_step or self._before.get("steps") != self.state.record.step:
            return {}
        return {name: self._before[name] for name in OF_THE_TIME if name in self._before}

    async def _leave(self, status: str, reason: str) -> None:
        """Tells the other processes of the run, if any, that this one has left. An interrupted trainer may come back; explorers
        wait for it."""
        with boundary(partial(logger.warning, "the database of groups cannot be reached: %s"), say=one_line):
            if self.config.trains and status != "interrupted":
                await self.state.groups.announce_end(status, reason)
            await self.state.groups.leave()

    def interrupt_from_thread(self) -> None:
        """`interrupt`, called on another thread than the run's."""
        if (task := self._task) is not None:
            task.get_loop().call_soon_threadsafe(self.interrupt)

    def interrupt(self) -> None:
        """Ends the run after the step that is being trained, with a checkpoint; immediately, without one, if that was asked for
        before or workers are only just starting."""
        if self.state.interrupted or self._components is None:
            self._cancel()
        else:
            self.state.note("stopping after this step; once more to stop immediately")
        self.state.interrupted = True
        self.state.groups.stop()

    def terminate(self) -> None:
        """SIGTERM: as `interrupt`, but its sender kills soon. A validation is given up, a step that waits to be trained is not
        trained, and work that takes longer than `stop_within_s` is abandoned. A second one changes nothing: `timeout` sends two,
        one to its child and one to the group."""
        limit, groups = self.config.stop_within_s, self.state.groups
        if groups.hurried:
            return
        if self._components is None or self.config.only_evaluates:
            self._cancel()
        else:
            self.state.note(f"SIGTERM: stopping within {limit:g} s, with a checkpoint if this step ends by then")
            asyncio.get_running_loop().call_later(patience_s(limit), self._cancel)
        self.state.interrupted = True
        groups.stop(hurried=True)

    def _limit(self, *_: object) -> None:
        """Limits, at the first SIGTERM, the time for all that follows."""
        if not self._limited:
            self._limited = True
            end_within(self.config.stop_within_s, self.prepared.run_dir, self.prepared.lock)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def patience_s(stop_within_s: float) -> float:
    """Seconds to wait for the step that is being trained, and its checkpoint."""
    return stop_within_s - min(LEAVING_S, stop_within_s / 3)


def end_within(seconds: float, run_dir: Path, lock: RunLock | None) -> None:
    """Ends this process then, if it is still there: a call to a worker of this process, or to a disk, may never return."""
    timer = threading.Timer(seconds, _end, (seconds, run_dir, lock))
    timer.daemon = True
    timer.start()


def _end(seconds: float, run_dir: Path, lock: RunLock | None) -> None:
    why = f"stopped by SIGTERM; what it was doing did not end within {seconds:g} s (stop_within_s)"
    try:
        with contextlib.suppress(Superseded):
            if lock is not None:
                lock.check()
            if is_running(run_dir):
                amend_summary(run_dir, {"status": "interrupted", "reason": why})
        print(why, file=sys.stderr, flush=True)
    finally:  # also where the disk is full, or nobody reads any more
        os._exit(EXIT_CODE)
