"""Checkpoints are written while training goes on: it waits for the snapshot only.

    begin:   the driver's state, then a snapshot on every rank (`Snapshot`)      the trainer waits
    behind:  every rank writes its files, then the store commits them            the next steps train

One checkpoint is written at a time: the next waits until the one before is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Protocol

from roll.core.configs.plain import JsonObject
from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.errors import BackendLost
from roll.core.groups.groups import Groups
from roll.core.record.checkpoint import CRITIC, DATABASE, TRAINER, CheckpointStore
from roll.core.record.ledger import BUSY, STAGE, Ledger
from roll.core.record.run_record import RunRecord


class Saved(Protocol):
    """The driver's part of a checkpoint."""

    groups: Groups
    record: RunRecord
    checkpoints: CheckpointStore
    saved_step: int
    """Step of the newest complete checkpoint; the writer moves it on."""

    def snapshot(self) -> JsonObject:
        """Returns the state that a checkpoint of this moment keeps besides the buffered groups."""

    async def copy_database(self, file: Path, step: int) -> None:
        """Copies the database for the checkpoint of `step`, if groups lie in one."""


class CheckpointWriter:
    """Enter it by `async with` around training: if training fails, the checkpoint that is being written is still completed, if it
    can be; if training is cancelled, or all workers are lost, it is given up."""

    def __init__(self, state: Saved, clusters: Mapping[str, Cluster], ledger: Ledger) -> None:
        """`ledger`: gets the seconds of snapshots, of writing, and of waiting for the checkpoint before, and from it each step's
        metrics (`time/checkpoint_snapshot_s`, `time/checkpoint_write_s`, `time/checkpoint_wait_s`)."""
        parts = {TRAINER: "actor_train", CRITIC: "critic"}
        self._clusters = {part: clusters[role] for part, role in parts.items() if role in clusters}
        self._state = state
        self._ledger = ledger
        self._writing: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    async def snapshot_critic(self) -> None:
        """Takes the critic's part of the next checkpoint; the critic must not change until `begin` takes the rest."""
        await self.settle()
        await self._snapshot(CRITIC)

    async def begin(self) -> None:
        """Begins a checkpoint of this very moment: takes the driver's state before the first await, and the policy does not train
        before this returns. The critic's snapshot was taken before."""
        step, state, rows = self._state.record.step, self._state.snapshot(), self._state.groups.buffered()
        await self.settle()
        await self._snapshot(TRAINER)
        self._writing = asyncio.create_task(self._write(step, state, rows))
        self._begun.set()

    async def settle(self) -> None:
        """Returns when no checkpoint is being written. Raises the error that kept the last one from being completed."""
        with self._busy("checkpoint_wait"):
            await self._written()

    async def ended(self, given_up: bool = False) -> None:
        """Waits like `settle`, but ignores the result of the last one. `given_up`: returns at once."""
        if given_up:
            self.give_up()
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self._writing = None

    def give_up(self) -> None:
        """Gives up the checkpoint that is being written."""
        if self._writing is not None:
            self._writing.cancel()

    async def watch(self) -> None:
        """Ends only by raising the error that keeps a checkpoint from being completed."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            await self._written()

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._writing is None:
            return
        if isinstance(error, asyncio.CancelledError) or (error is not None and isinstance(error.__cause__, BackendLost)):
            self.give_up()
        await asyncio.gather(self._writing, return_exceptions=True)  # the run has its reason already

    async def _snapshot(self, part: str) -> None:
        with self._busy("checkpoint_snapshot"):
            await self._clusters[part].call_all("snapshot")

    async def _written(self) -> None:
        """Waits for the writing, which goes on if the waiter is cancelled."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self._writing.result()

    async def _write(self, step: int, state: dict[str, object], rows: list[dict[str, object]]) -> None:
        with self._busy("checkpoint_write"):
            folder = await asyncio.to_thread(self._state.checkpoints.begin, step)
            writing = (cluster.call_all("write", str(folder / part)) for part, cluster in self._clusters.items())
            _check_seen(chain.from_iterable(chain.from_iterable(await asyncio.gather(*writing))))
            await self._state.copy_database(folder / DATABASE, step)
            await asyncio.to_thread(self._state.record.journals.sync)
            await asyncio.to_thread(self._state.checkpoints.commit, step, state, rows)
            await self._state.groups.saved(step, self._state.saved_step)
        self._state.saved_step = step

    @contextlib.contextmanager
    def _busy(self, what: str) -> Iterator[None]:
        self._ledger.enter(STAGE + what, BUSY, monotonic())
        try:
            yield
        finally:
            self._ledger.enter(STAGE + what, "idle", monotonic())


def _check_seen(files: Iterable[str]) -> None:
    """Raises `OSError` for a file that only another machine can see: the checkpoint would lack it."""
    if hidden := next((file for file in files if not Path(file).is_file()), None):
        reason = "output_dir has to be on a file system that all machines see"
        raise OSError(f"the checkpoint cannot be completed: {hidden} was written on another machine: {reason}")
