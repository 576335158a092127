"""The groups of a run, with their contents and states. One owner, from the moment of admission to the one terminal status.

    start ──▶ in flight ──complete──▶ buffered ──lease──▶ leased ──trained──▶ (journal)
                  └──────────────── drop(reason) ───────────────────────▶ (journal)

A group that was trained may be leased and trained again (`max_reuse`); each such use is a row of the journal, too.

`Admission` decides about the groups; here are their samples, the tasks that are still to be served, and the journal with the
status of each. Every verb changes accounts and contents together, in one `_transaction`, after which the accounts must balance.
Where groups are kept is the affair of a `GroupStorage`: `MemoryGroups` keeps those of a run of one process, and
`roll.topologies.sql.groups.SqlGroups` those of several, in a database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from roll.core.configs.plain import JsonObject
from roll.core.data.sample import SampleGroup
from roll.core.errors import Closed
from roll.core.groups.changes import Changes
from roll.core.groups.group_storage import GroupStorage
from roll.core.groups.lease import Lease
from roll.core.groups.parts import GroupParts
from roll.core.groups.ticket import Selection

T = TypeVar("T")

logger = logging.getLogger(__name__)

START, LEASE = "admit", "lease"
"""Names of the waiters in `Changes.waits`."""


class Groups(GroupStorage):
    """The one owner of all groups of a run, wherever they are kept."""

    def __init__(self, parts: GroupParts) -> None:
        self.admission = parts.admission
        self.depth = parts.depth
        self.changes = Changes()
        self._source, self._journal, self._trace = parts.source, parts.journal, parts.trace
        self._progress, self._clock = parts.progress, parts.clock
        self._live: dict[int, SampleGroup] = {}
        """Live groups, and those that may be trained again."""
        self._work: dict[int, asyncio.Future[Any]] = {}
        """Group -> its running work, which is cancelled when the group is dropped."""
        self._leased: dict[int, tuple[SampleGroup, ...]] = {}
        """Step -> the groups that it has: one step trains, and the next may have groups already."""
        self._leased_ids: frozenset[int] = frozenset()
        self._complete_since: float | None = None
        """Time since which all groups that the next step lacks lie ready."""
        self.stop_asked = False  # by this process, which may be the only one that ends
        self.hurried = False
        """True if the run stops and gives up all work that only serves a run that goes on."""

    async def until(self, predicate: Callable[[], T], who: str = "", what: str = "") -> T:
        """Waits as `Changes.until`: the predicate is called now and after every change of any group."""
        return await self.changes.until(predicate, who, what)

    # -- the explorer's verbs -------------------------------------------------------------------------------------------

    async def start(self, begun: Callable[[str], Iterable[int]] = lambda uid: ()) -> SampleGroup:
        """Starts a group with the next task, as soon as admission lets one start. `begun`: task -> versions under which parts of
        it came about, before the run went on from a checkpoint. Raises `Closed` after `stop`."""
        while True:
            await self.until(lambda: self.stopped or self._may_start())
            self.changes.waits.pop(START, None)
            if self.stopped:
                raise Closed
            async with self._transaction():
                if self.stopped or not self._has_room():  # another process was faster
                    continue
                prompt = self._source.next()
                ticket = self.admission.start(self.admission.earliest(begun(prompt.uid)))
                group = SampleGroup(ticket.group_id, ticket.start_version, prompt)
                self._live[group.group_id] = group
                self._trace.enter_phase(group.group_id, "rollout")
                self._started(group)
                self._changed()
            return group

    async def while_live(self, group_id: int, work: Coroutine[object, object, T]) -> T | None:
        """Returns the result of `work`; None if the group is dropped before, which cancels it."""
        if not self.is_live(group_id):
            work.close()
            return None
        task = self._work[group_id] = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            del self._work[group_id]
        return None if task.cancelled() else task.result()

    async def complete(self, group: SampleGroup) -> None:
        """Buffers a complete group, which can be trained. One that has ended already keeps it."""
        async with self._transaction():
            if not self.is_live(group.group_id):
                return
            self.admission.complete(group.group_id)
            self._live[group.group_id] = group
            self._trace.enter_phase(group.group_id, "buffered")
            self._completed(group)
            self._progress.finished()
            self._changed()

    async def drop(self, group_id: int, reason: str, detail: str = "") -> None:
        """The group will not be trained; its ticket is free again. One that has ended already keeps it. `detail`: more of
        the reason, for people. Raises `NoProgress` if too many groups are dropped."""
        async with self._transaction():
            if self.is_live(group_id):
                self._drop(group_id, reason, detail)
                self._changed()

    def is_live(self, group_id: int) -> bool:
        return group_id in self.admission.live

    # -- the trainer's verbs --------------------------------------------------------------------------------------------

    async def lease(self, step: int, on_arrival: bool = False) -> Lease:
        """The groups that `step` trains, as soon as admission lets it have them; `on_arrival`: those that it may have by now, at
        least one. Raises `Closed` after `stop`, and when `step` is beyond the last."""
        lacking = self.admission.batch_groups - len(self._leased.get(step, ()))
        if not lacking:
            raise RuntimeError(f"step {step} asks for groups, and has all")
        if step >= self.admission.max_steps:
            raise Closed
        asked, some = self._clock(), lacking if on_arrival else None
        while True:
            await self.until(lambda: self.stopped or self._offers(step, some))
            self.changes.waits.pop(LEASE, None)
            if self.stopped:
                raise Closed
            await self._fetch(self._select(step, some).take)
            async with self._transaction():
                lease = await self._take(step, some, asked)
            if lease is not None:
                return lease

    async def observe_step(self, wait_s: float, train_s: float, slack_s: float, reused: float, ess: float | None) -> None:
        """Records the trainer's measurements of a step: see `PipelineDepth.observe`."""
        self.depth.observe(wait_s, train_s, slack_s, reused, ess)
        await self._tell()

    async def trained(self, lease: Lease) -> None:
        """Marks the lease's groups trained."""
        async with self._transaction():
            first = {group_id for group_id in lease.group_ids if self.is_live(group_id)}
            self.admission.train(lease.group_ids)
            self._progress.trained()
            del self._leased[lease.step]
            self._leased_ids -= frozenset(lease.group_ids)
            for group in lease.groups:
                oldest = min(sample.oldest_version for sample in group.samples)
                status = "trained" if group.group_id in first else "reused"
                self._ended(group, status, "", lease.step + 1, lease.step - oldest)
            self._source.settle()
            self._let_go()
            self._changed()

    # -- policy versions ------------------------------------------------------------------------------------------------

    async def set_published(self, version: int) -> None:
        """Records that `version` is published; the engines take it later."""
        async with self._transaction():
            self.admission.set_published(version)
            self._changed()

    async def set_served(self, version: int) -> None:
        """Records that all engines serve `version`, or a newer one, from now on."""
        async with self._transaction():
            self.admission.set_served(self._served_by_all(version))
            self._changed()

    @property
    def wait_for_weights(self) -> bool:
        """True if no group may start, and one could if the engines served the newest version."""
        return self.admission.waits_for_weights(self.depth.depth)

    # -- the end --------------------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        return self.stop_asked or self.ended is not None

    def stop(self, hurried: bool = False) -> None:
        """Lets no further group or step begin; those under way are finished, unless somebody was `hurried`."""
        self.stop_asked, self.hurried = True, self.hurried or hurried
        self._changed()

    def go_synchronous(self) -> None:
        """Lets no group start before the engines serve the weights of the step before its own."""
        self.admission.go_synchronous()
        self._changed()

    async def drop_all(self, reason: str) -> None:
        """Drops the groups that are left when the run is over."""
        async with self._transaction():
            for group_id in list(self.admission.live):
                self._drop(group_id, reason)
            self._changed()

    # -- how ------------------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        """The other processes learn what has changed here."""
        async with self._transaction():
            self._changed()

    def _log(self, group: SampleGroup, status: str, reason: str, step: int, lag: int | None) -> None:
        row: JsonObject = {"prompt_uid": group.prompt.uid, "status": status, "reason": reason, "step": step}
        row |= {"start_version": group.start_version, "lag": lag}
        if status != "reused":
            self._source.ended(group)
        if self._journal is not None:
            rewards = [sample.reward for sample in group.samples if sample.begins_rollout]
            tokens = sum(len(sample.response_ids) for sample in group.samples)
            self._journal.write(group_id=group.group_id, **row, rewards=rewards, tokens=tokens)
        self._trace.end_group(group.group_id, {**row, "tokens_by_version": group.tokens_by_version})

    def _may_start(self) -> bool:
        admission = self.admission
        self.changes.waits[START] = f"{len(admission.live)} groups outstanding under version {admission.version}"
        return self._has_room()

    def _has_room(self) -> bool:
        """True if one more group may start here."""
        return self.admission.may_start(self.depth.depth)

    def _select(self, step: int, some: int | None) -> Selection:
        return self.admission.select(step, self._leased_ids, some)

    def _offers(self, step: int, some: int | None) -> Selection | None:
        """Returns the groups that the step may take, or has to drop."""
        selection = self._select(step, some)
        self.changes.waits[LEASE] = selection.waiting_for
        return selection if selection.take or selection.drop else None

    async def _take(self, step: int, some: int | None, asked: float) -> Lease | None:
        """Gives the step its groups, if they are there, and all of them can be read."""
        selection = self._select(step, some)
        for group_id, reason in selection.drop.items():
            self._drop(group_id, reason)
        groups = await self._contents(selection.take)
        lease = None
        if groups and len(groups) == len(selection.take):
            reuses = sum(not self.is_live(group_id) for group_id in selection.take)
            now, complete = self._clock(), self._complete_since
            self._leased[step] = (*self._leased.get(step, ()), *groups)
            self._leased_ids |= frozenset(selection.take)
            last = len(self._leased[step]) == self.admission.batch_groups
            lease = Lease(step, tuple(groups), asked, now if complete is None else complete, now, last, reuses)
            self._complete_since = None
            self.admission.reuse.lease(selection.take)
            for group in groups:
                self._trace.enter_phase(group.group_id, "training")
        self._changed()
        return lease

    def _drop(self, group_id: int, reason: str, detail: str = "") -> None:
        self.admission.drop(group_id, reason)
        self._ended(self._live.pop(group_id), "dropped", reason, self.admission.version + 1, None)
        self._forget(group_id, reason, detail)

    def _let_go(self) -> None:
        """Releases samples that are no longer needed."""
        trained = self.admission.reuse.groups
        self._live = {group_id: group for group_id, group in self._live.items() if self.is_live(group_id) or group_id in trained}

    def _forget(self, group_id: int, reason: str, detail: str = "") -> None:
        """Ends the work for a dropped group."""
        if group_id in self._work:
            self._work[group_id].cancel()
        if warning := self._progress.dropped(reason, detail):
            logger.warning(warning)

    def _changed(self) -> None:
        """Raises `AccountingError` at the first change after which the accounts do not balance."""
        self.admission.check()
        step, batch = self.admission.next_step, self.admission.batch_groups
        ready = self.admission.buffered - sum(map(len, self._leased.values())) + self.admission.reuse.under_way
        if ready < batch - len(self._leased.get(step, ())):
            self._complete_since = None
        elif self._complete_since is None:
            self._complete_since = self._clock()
        self.changes.notify()
