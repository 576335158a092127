"""The groups of a run in a database: several explorers and one trainer, each a process of its own, have the same `Admission`.

Every verb is a transaction. It first learns the others' changes, by the same verbs of the pure `Admission`, so its decisions hold
for all; then its own changes are written, or none of them. Between transactions a process relies on its last knowledge.

A process that dies leaves nothing behind that others wait for: its groups in flight are dropped (`explorer_lost`) and their tasks
served again; groups that were trained after the checkpoint from which a trainer goes on are delivered again, as long as the
policy versions that sampled them still exist, and reuses after it are taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from sqlalchemy import Connection, select, update

from roll.core.data.sample import SampleGroup
from roll.core.errors import Alone, ContractError, DatabaseAway, DatabaseFailed, PackingError
from roll.core.groups.groups import Groups
from roll.core.groups.lease import Lease
from roll.topologies.sql import joining, rows
from roll.topologies.sql.admittance import BEAT_S, check_one_machine
from roll.topologies.sql.following import FollowingGroups
from roll.topologies.sql.news import News
from roll.topologies.sql.outage import outlasting
from roll.topologies.sql.rows import EndedGroup
from roll.topologies.sql.tables import members, runs

logger = logging.getLogger(__name__)

DAMAGED = "damaged"
"""A group is dropped whose samples cannot be read; its task is served again."""


class SqlGroups(FollowingGroups):
    start = outlasting(Groups.start)
    drop = outlasting(Groups.drop)
    lease = outlasting(Groups.lease)
    set_published = outlasting(Groups.set_published)
    set_served = outlasting(Groups.set_served)
    _tell = outlasting(Groups._tell)
    drop_all = outlasting(Groups.drop_all)

    # -- joining and leaving --------------------------------------------------------------------------------------------

    async def join(self, contract: Mapping[str, Any], trainer_at: tuple[int, int] | None = None) -> None:
        """Raises `ContractError` if the database is another run's, or the run was begun with other values of `contract`."""
        async with self._lock:
            known, cursor = trainer_at[1] if trainer_at else None, self._source.cursor()
            ours = (self._member, contract, cursor, self.admission, self.depth.depth)
            work = joining.Join(*ours, trainer_at, self._identity)
            # One transaction: what is read is of one moment.
            both = partial(self._database.write, lambda connection: (work(connection), self._book(connection, known)))
            self._member, book = await self.outage.outlast(both)
            self._adopt(book)
            try:
                await self._database.outside(partial(check_one_machine, mine=self._member.process))
            except ContractError:
                await self._database.write(joining.Leave(self._member.name, "left"))
                raise
        self._changed()

    async def leave(self) -> None:
        """Leaves the run: its groups in flight are dropped, and their tasks served again."""
        try:
            if self._member.term:
                async with self._lock:
                    leaves = partial(self._database.write, joining.Leave(self._member.name, "left"))
                    await self.outage.outlast(leaves, self._database.limits.answer)
        except DatabaseFailed as error:
            logger.warning("%s; the others find out after member_timeout that this process has left", error)
        finally:
            await self._database.close()

    async def beside(self, work: Callable[[], None]) -> None:
        """Runs `work`, which reads the database by itself, perhaps twice."""
        await self.outage.outlast(lambda: self._database.beside(work))

    async def announce_end(self, status: str, reason: str = "") -> None:
        """Tells all processes that the run ends: explorers end, too."""

        async def announce() -> None:
            async with self._transaction():
                self._statements.append(update(runs).values(status=status, reason=reason))

        if self._member.term:
            await self.outage.outlast(announce, self._signs.deadline_s)

    async def keep_in_sync(self) -> None:
        """Runs as long as the run does: shows that this process lives, learns the others' changes, and notices dead processes."""
        beaten = -BEAT_S
        async for _ in self._database.notices():
            if self._clock() - beaten >= BEAT_S:
                beaten = self._clock()
                await self.outage.outlast(self._beat)
            else:
                await self.outage.outlast(self._look)
            self._changed()
            self._notice_peers()

    def _notice_peers(self) -> None:
        """Raises `Alone`."""
        if self.accompanied or self._member.role == "both" or self.ended is not None or self._signs.was_deaf:
            self._alone_since = self._clock()
        elif (silence := self._clock() - self._alone_since) > self._peer_timeout_s:
            missing = "explorer" if self._member.trains else "trainer"
            raise Alone(f"there was no {missing} for {silence:.0f} s (peer_timeout)")

    async def _look(self) -> None:
        async with self._lock:
            self._learn(await self._database.outside(self._news))

    async def _beat(self) -> None:
        async with self._lock:
            beat = update(members).where(members.c.name == self._member.name).values(beat=members.c.beat + 1)
            await self._database.write(lambda connection: connection.execute(beat))
            self._learn(await self._database.outside(self._news))
            for name in self._signs.look(alive := self._peers.beats(), self._clock(), self._peers.replaceable()):
                logger.warning("%s has given no sign of life: its groups are rolled out again", name)
                await self._database.write(joining.Leave(name, "lost", alive[name]))

    # -- what a transaction does ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """Yields an open transaction. Raises `DatabaseAway` if nothing of it was kept: the verb is begun again."""
        async with self._lock:
            leased = dict(self._leased), self._leased_ids
            try:
                news = await self._database.begin(self._begin)
                self._seq = news.run.seq
                before = self._seq - 1  # its number is not taken until it is committed
                self._check(news, before)
                if self._stale:
                    known = self.known if self._journal is not None else None
                    self._adopt(await self._database.execute(partial(self._book, journaled=known)), before)
                    self._stale, self._kept = False, None
                self._learn(news, known=before)
                self._kept = self.state()
                yield
                values = rows.of_run(self.admission, self.depth.depth)
                if self._statements or any(value != getattr(news.run, name) for name, value in values.items()):
                    await self._commit(values)
                    self.known = self._seq
                else:
                    await self._database.rollback()
                self._kept = None
            except BaseException:
                self._stale = True
                self._leased, self._leased_ids = leased
                self._ended_groups.clear()
                await self._database.rollback()
                raise
            finally:
                self._statements = []
                self.changes.notify()
        self._write_ended()

    def _begin(self, connection: Connection) -> News:
        """Begins a transaction by taking its number, which locks out all others."""
        connection.execute(update(runs).values(seq=runs.c.seq + 1))
        return self._news(connection)

    async def _commit(self, values: Mapping[str, object]) -> None:
        mine = members.c.name == self._member.name
        try:
            statements = [*self._statements, update(members).where(mine).values(seq=self._seq), update(runs).values(values)]
            await self._database.commit(statements)
        except DatabaseAway:
            if not await self.outage.outlast(self._was_committed):
                raise

    async def _was_committed(self) -> bool:
        """Returns True if the transaction was kept whose answer is lost: it is over when this one has its turn."""

        def last(connection: Connection) -> int | None:
            connection.execute(update(runs).values(seq=runs.c.seq + 1))
            return connection.execute(select(members.c.seq).where(members.c.name == self._member.name)).scalar()

        await self._database.rollback()
        try:
            return await self._database.begin(last) == self._seq
        finally:
            await self._database.rollback()

    def _has_room(self) -> bool:
        admission = self.admission
        self._own = {group_id for group_id in self._own if admission.in_flight(group_id)}
        places = admission.room(self.depth.depth) + len(admission.live) - admission.buffered
        return super()._has_room() and len(self._own) < self._peers.share(self._member, places)

    def _started(self, group: SampleGroup) -> None:
        me = self._member
        self._own.add(group.group_id)
        self._statements += rows.started(group, self._seq, me.name, me.task_set, self._source.cursor())

    @outlasting
    async def complete(self, group: SampleGroup) -> None:
        """Stores the samples, which may be many, before the transaction begins."""
        if self.is_live(group.group_id):
            work = await asyncio.to_thread(rows.PackedGroup, group, self._member.name)
            async with self._lock:  # SQLite writes one after the other
                await self._database.outside(work, much=True)
        await super().complete(group)

    def _completed(self, group: SampleGroup) -> None:
        self._statements.append(rows.completed(group, self._seq))

    @outlasting
    async def trained(self, lease: Lease) -> None:
        """Stores the teachers' answers for groups that may be trained again before the transaction begins."""
        for group in lease.groups if self.admission.reuse.max_reuse > 1 else ():
            if self.is_live(group.group_id) and any(sample.taught is not None for sample in group.samples):
                work = await asyncio.to_thread(rows.stored_anew, group)
                async with self._lock:
                    await self._database.outside(work, much=True)
        await super().trained(lease)

    def _ended(self, group: SampleGroup, status: str, reason: str, step: int, lag: int | None) -> None:
        ended = EndedGroup(group, status, reason, step, lag)
        self._statements.append(rows.ended(ended, self._seq))
        self._ended_groups.append(ended)

    def _served_by_all(self, version: int) -> int:
        self._statements.append(update(members).where(members.c.name == self._member.name).values(served=version))
        return max(self.admission.version, min([version, *self.explorers.values()]))

    async def _fetch(self, group_ids: Sequence[int]) -> None:
        """Fetches groups one after the other, and outside of the transaction: nobody waits for the link."""
        self._fetched = {group_id: group for group_id, group in self._fetched.items() if group_id in group_ids}
        for group_id in group_ids:
            if group_id not in self._fetched:
                self._fetched[group_id] = await self._database.outside(partial(rows.content, group_id=group_id), much=True)

    async def _take(self, step: int, some: int | None, asked: float) -> Lease | None:
        if not self._fetched.keys() >= set(self._select(step, some).take):
            return None  # it may take others than before
        return await super()._take(step, some, asked)

    async def _contents(self, group_ids: Sequence[int]) -> list[SampleGroup]:
        contents = []
        for group_id in group_ids:
            group = self._fetched.pop(group_id)
            if isinstance(group, PackingError) and not self.is_live(group_id):
                self.admission.reuse.retire(group_id)
                logger.warning("group %d is not trained again: %s", group_id, group)
            elif isinstance(group, PackingError):
                await self._database.execute(partial(joining.give_back, group_id=group_id, seq=self._seq))
                self._drop(group_id, DAMAGED, str(group))
                logger.warning("group %d is dropped: %s", group_id, group)
            else:
                self._live[group_id] = group
                contents.append(group)
        return contents

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint besides its copy of the database: that of the last moment at which journal and
        accounts agree."""
        now = {"admission": self.admission.state(), "cursor": self._source.cursor(), "database": {"seq": self.known}}
        return now if self._kept is None else self._kept

    def buffered(self) -> list[dict[str, Any]]:
        return []

    async def saved(self, step: int, before: int) -> None:
        try:
            await self._saved(step, before)
        except DatabaseFailed:
            if not self.outage.over:  # else the checkpoint is the last one, and complete
                raise

    @outlasting
    async def _saved(self, step: int, before: int) -> None:
        async with self._transaction():
            self._statements += rows.not_needed(before, self.admission.reuse.oldest_after(before))
            self._statements.append(update(runs).values(saved=step))

    def restore(self, state: Mapping[str, Any], buffered: Sequence[dict[str, Any]]) -> None:
        """The database has everything; `join` goes on from the checkpoint's step."""

    # -- validations ----------------------------------------------------------------------------------------------------

    @outlasting
    async def claims_validation(self, version: int) -> bool:
        """True if this process is to validate `version`."""
        async with self._transaction():
            claim = partial(rows.claim_validation, version=version, member=self._member.name, seq=self._seq)
            if (claimed := await self._database.execute(claim)) is not None:
                self._statements.append(claimed)
        return claimed is not None

    @outlasting
    async def report_validation(self, version: int, result: Mapping[str, object]) -> None:
        async with self._transaction():
            self._statements.append(rows.report_validation(version, result, self._seq))

    async def validation_results(self, after: int) -> tuple[int, list[dict[str, object]]]:
        """Returns the number of the last change that is known here, and the results that were reported after change `after`."""
        known = self.known
        reads = partial(self._database.outside, partial(rows.validation_results, after=after, until=known))
        return known, await self.outage.outlast(reads)

    # -- who else takes part --------------------------------------------------------------------------------------------

    @property
    def explorers(self) -> dict[str, int]:
        """Returns the other living explorers, with the oldest version that each serves."""
        return self._peers.explorers_beside(self._member)

    @property
    def accompanied(self) -> bool:
        """True if a process of the run's other half is alive."""
        return self._peers.accompany(self._member)

    async def was_taken_back(self) -> bool:
        """True if versions that this process served are gone, because the trainer went on from a checkpoint."""
        reads = partial(self._database.outside, lambda connection: connection.execute(select(runs.c.branch)).scalar_one())
        return bool(await self.outage.outlast(reads) != self.branch)
