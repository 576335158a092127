"""The buffer of a run whose two halves share a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from roll.buffer.interface import Accounts, Lease, Selection
from roll.data.sample import SampleGroup


class MemoryBuffer:
    """Holds the groups; the accounts decide which of them a step takes. `changed()` must be called when a group was dropped
    or admitted elsewhere, because that can end a wait."""

    def __init__(self, accounts: Accounts, on_drop: Callable[[int, str], None], clock: Callable[[], float]) -> None:
        """`on_drop(group_id, reason)` is told of each group that a selection gives up; it settles the accounts."""
        self._accounts = accounts
        self._on_drop = on_drop
        self._clock = clock
        self._groups: dict[int, SampleGroup] = {}
        self._leased: Lease | None = None
        self._change = asyncio.Event()
        self._complete_since: float | None = None
        self._waiting_for = ""

    async def put(self, group: SampleGroup) -> None:
        self._accounts.finish(group.group_id)
        self._groups[group.group_id] = group
        self.changed()

    async def lease(self, step: int) -> Lease:
        if self._leased is not None:
            raise RuntimeError(f"step {step} asks for groups while step {self._leased.step} holds its lease")
        asked = self._clock()
        while True:
            selection = self._select(step)
            if selection.take:
                break
            self._waiting_for = selection.waiting_for
            self._change.clear()
            await self._change.wait()
        self._waiting_for = ""
        slack_s = max(0.0, asked - self._complete_since) if self._complete_since is not None else 0.0
        self._leased = Lease(step, tuple(self._groups[i] for i in selection.take), slack_s)
        self._complete_since = None
        return self._leased

    async def ack(self, lease: Lease) -> None:
        self._accounts.train(lease.group_ids)
        for group_id in lease.group_ids:
            del self._groups[group_id]
        self._leased = None
        self.changed()

    async def release(self, lease: Lease) -> None:
        self._leased = None
        self.changed()

    @property
    def waiting_for(self) -> str:
        return self._waiting_for

    def changed(self) -> None:
        leased = len(self._leased.groups) if self._leased else 0
        if len(self._groups) - leased >= self._accounts.batch_groups:
            self._complete_since = self._complete_since if self._complete_since is not None else self._clock()
        else:
            self._complete_since = None
        self._change.set()

    def stats(self) -> dict[str, Any]:
        leased = len(self._leased.groups) if self._leased else 0
        return {"buffered": len(self._groups), "leased": leased, "waiting_for": self._waiting_for}

    def drop(self, group_id: int) -> None:
        """Forgets a group that was dropped while it lay here."""
        self._groups.pop(group_id, None)
        self.changed()

    @property
    def groups(self) -> list[SampleGroup]:
        return list(self._groups.values())

    def snapshot(self) -> list[dict[str, Any]]:
        """All groups held, as JSON values."""
        return [self._groups[i].to_json() for i in sorted(self._groups)]

    def restore(self, rows: list[dict[str, Any]]) -> dict[int, int]:
        """Takes the groups of a checkpoint; returns group id -> start version."""
        groups = [SampleGroup.from_json(row) for row in rows]
        self._groups = {group.group_id: group for group in groups}
        self.changed()
        return {group.group_id: group.start_version for group in groups}

    def _select(self, step: int) -> Selection:
        selection = self._accounts.select(step)
        for group_id, reason in selection.drop.items():
            self._on_drop(group_id, reason)
        return selection
