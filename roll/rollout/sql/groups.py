"""The groups of a run in a database: several explorers and one trainer, each a process of its own, have the same `Admission`.

Every verb is a transaction. It first learns what others changed, by the same verbs of the pure `Admission`, so what it decides
holds for all; then its own changes are written, or none of them. Between transactions a process looks at what it knew last.

A process that dies leaves nothing behind that others wait for: its groups in flight are dropped (`explorer_lost`) and their tasks
served again; groups that were trained after the checkpoint from which a trainer goes on are delivered again, as long as the
policy versions that sampled them still exist, and replays after it are taken back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, select, update

from roll.data.sample import SampleGroup
from roll.errors import Alone, PackingError
from roll.record.group_log import GroupLog
from roll.record.run_identity import RunIdentity
from roll.record.trace import Trace
from roll.rollout.admission import Admission
from roll.rollout.groups import Groups
from roll.rollout.pipeline_depth import PipelineDepth
from roll.rollout.progress import Progress
from roll.rollout.sql import joining, rows
from roll.rollout.sql.admittance import BEAT_S, LifeSigns
from roll.rollout.sql.database import Database, Statement
from roll.rollout.sql.joining import Member
from roll.rollout.sql.news import Book, News, Peers, check_part, read_book, read_news
from roll.rollout.sql.rows import Fate, fate_of, outline
from roll.rollout.sql.tables import members, runs
from roll.rollout.tasks import TaskSource
from roll.rollout.ticket import GroupState

logger = logging.getLogger(__name__)

DAMAGED = "damaged"
"""A group is dropped whose samples cannot be read; its task is served again."""


class SqlGroups(Groups):
    def __init__(
        self,
        admission: Admission,
        depth: PipelineDepth,
        source: TaskSource,
        journal: GroupLog | None,
        trace: Trace,
        progress: Progress,
        clock: Callable[[], float],
        database: Database,
        member: Member,
        member_timeout_s: float,
        peer_timeout_s: float,
        identity: RunIdentity,
    ) -> None:
        """`journal`: None in a process that does not train: the trainer's journal has the groups of all. Call `join` first."""
        super().__init__(admission, depth, source, journal, trace, progress, clock)
        self._database = database
        self._member = member
        self._identity = identity
        self._signs = LifeSigns(member_timeout_s)
        self._peer_timeout_s = peer_timeout_s
        self._lock = asyncio.Lock()
        self.known = -1
        """The number of the last change that is known here."""
        self._stale = False
        """Whether what is known here includes changes that were not kept."""
        self.branch = 0
        self._seq = 0
        """The number of the transaction that is open."""
        self._own: set[int] = set()
        """The groups that were started here and, when they were counted last, in flight."""
        self._statements: list[Statement] = []
        self._fates: list[Fate] = []
        """What the journal is told, once it is committed."""
        self._peers = Peers()
        self._alone_since = clock()

    # -- joining and leaving --------------------------------------------------------------------------------------------

    async def join(self, contract: Mapping[str, Any], trainer_at: tuple[int, int] | None = None) -> None:
        """Raises `ContractError` if the database is another run's, or the run was begun with other values of `contract`."""
        async with self._lock:
            known, cursor = trainer_at[1] if trainer_at else None, self._source.cursor()
            ours = (self._member, contract, cursor, self.admission, self.depth.depth)
            work = joining.Join(*ours, trainer_at, self._identity)
            # One transaction: what is read is of one moment.
            self._member, book = await self._database.write(lambda connection: (work(connection), self._book(connection, known)))
            self._adopt(book)
        self._changed()

    async def leave(self) -> None:
        """Its groups in flight are dropped, and their tasks served again."""
        if self._member.term:
            async with self._lock:
                await self._database.write(joining.Leave(self._member.name, "left"))
        await self._database.close()

    async def beside(self, work: Callable[[], None]) -> None:
        """`work`, which reads the database by itself."""
        await self._database.beside(work)

    async def announce_end(self, status: str, reason: str = "") -> None:
        """Explorers end then, too."""
        if self._member.term:
            async with self._transaction():
                self._statements.append(update(runs).values(status=status, reason=reason))

    async def keep_in_sync(self) -> None:
        """Runs as long as the run does: shows that this process lives, learns what others do, and notices who does not live."""
        beaten = -BEAT_S
        async for _ in self._database.notices():
            if self._clock() - beaten >= BEAT_S:
                beaten = self._clock()
                await self._beat()
            else:
                async with self._lock:
                    self._learn(await self._database.read(self._news))
            self._changed()
            self._notice_peers()

    def _notice_peers(self) -> None:
        """Raises `Alone`."""
        if self.accompanied or self._member.role == "both" or self.ended is not None:
            self._alone_since = self._clock()
        elif (silence := self._clock() - self._alone_since) > self._peer_timeout_s:
            missing = "explorer" if self._member.trains else "trainer"
            raise Alone(f"there was no {missing} for {silence:.0f} s (peer_timeout)")

    async def _beat(self) -> None:
        async with self._lock:
            beat = update(members).where(members.c.name == self._member.name).values(beat=members.c.beat + 1)
            await self._database.write(lambda connection: connection.execute(beat))
            self._learn(await self._database.read(self._news))
            for name in self._signs.look(alive := self._peers.beats(), self._clock()):
                logger.warning("%s has given no sign of life: its groups are rolled out again", name)
                await self._database.write(joining.Leave(name, "lost", alive[name]))

    # -- what a transaction does ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        async with self._lock:
            try:
                news = await self._database.begin(self._begin)
                self._seq = news.run.seq
                check_part(news, self._member, self.branch)
                if self._stale:
                    known = self.known if self._journal is not None else None
                    self._adopt(await self._database.execute(partial(self._book, journaled=known)))
                    self._stale = False
                # The number of this transaction is not taken until it is committed.
                self._learn(news, known=self._seq - 1)
                before = rows.of_run(self.admission, self.depth.depth)
                yield
                values = rows.of_run(self.admission, self.depth.depth)
                if self._statements or values != before:
                    await self._database.commit([*self._statements, update(runs).values(values)])
                    self.known = self._seq
                else:
                    await self._database.rollback()
            except BaseException:
                self._stale = True
                self._fates.clear()
                await self._database.rollback()
                raise
            finally:
                self._statements = []
                self.changes.notify()
        self._write_fates()

    def _has_room(self) -> bool:
        admission = self.admission
        self._own = {group_id for group_id in self._own if admission.in_flight(group_id)}
        places = admission.room(self.depth.depth) + len(admission.live) - admission.buffered
        return super()._has_room() and len(self._own) < self._peers.share(self._member, places)

    def _started(self, group: SampleGroup) -> None:
        me = self._member
        self._own.add(group.group_id)
        self._statements += rows.started(group, self._seq, me.name, me.task_set, self._source.cursor())

    def _completed(self, group: SampleGroup) -> None:
        self._statements += rows.completed(group, self._seq)

    def _ended(self, group: SampleGroup, fate: str, reason: str, step: int, lag: int | None) -> None:
        ended = Fate(group, fate, reason, step, lag)
        self._statements.append(rows.ended(ended, self._seq))
        self._fates.append(ended)

    async def set_served(self, version: int) -> None:
        """All engines of this process serve `version`, or a newer one, from now on."""
        async with self._transaction():
            self._statements.append(update(members).where(members.c.name == self._member.name).values(served=version))
            self.admission.set_served(max(self.admission.version, min([version, *self.explorers.values()])))
            self._changed()

    async def _contents(self, group_ids: Sequence[int]) -> list[SampleGroup]:
        found = await self._database.execute(partial(rows.contents, group_ids=group_ids))
        contents = []
        for group_id, group in zip(group_ids, found, strict=True):
            if isinstance(group, PackingError) and not self.is_live(group_id):
                self.admission.replay.retire(group_id)
                logger.warning("group %d is not trained again: %s", group_id, group)
            elif isinstance(group, PackingError):
                await self._database.execute(partial(joining.give_back, group_id=group_id, seq=self._seq))
                self._drop(group_id, DAMAGED, str(group))
                logger.warning("group %d is dropped: %s", group_id, group)
            else:
                self._live[group_id] = group
                contents.append(group)
        return contents

    # -- what others changed --------------------------------------------------------------------------------------------

    def _begin(self, connection: Connection) -> News:
        """Every transaction begins by taking its number, which locks out all others."""
        connection.execute(update(runs).values(seq=runs.c.seq + 1))
        return self._news(connection)

    def _news(self, connection: Connection) -> News:
        return read_news(connection, self._member.task_set, self.known)

    def _learn(self, news: News, known: int | None = None) -> None:
        """`known`: the number of the last change that is in the news; None: that of the run. Raises `TakenBack`, `Expelled`."""
        check_part(news, self._member, self.branch)
        run, self._peers = news.run, Peers(news.members)
        for row in news.groups:
            self._learn_group(row)
        if news.task is not None:
            self._source.restore(json.loads(news.task.cursor))
        self._follow(run)
        if run.status != "running":
            self.ended = run.status, run.reason
        self.known = run.seq if known is None else known
        self._write_fates()

    def _learn_group(self, row: Row[object]) -> None:
        """Brings one group to where its row is; it may have gone several steps since."""
        admission = self.admission
        if row.id >= admission.next_group_id:
            admission.start(row.start_version)
            self._live[row.id] = outline(row)
        if row.id not in admission.live:
            return
        if row.state in ("buffered", "trained") and admission.live[row.id].state is GroupState.IN_FLIGHT:
            admission.complete(row.id)
        if row.state == "trained":
            admission.train((row.id,))
            self._progress.trained()
        elif row.state == "dropped":
            admission.drop(row.id, row.reason)
            self._forget(row.id, row.reason)
        if row.id not in admission.live:
            self._fates.append(fate_of(row, self._live.pop(row.id)))

    def _write_fates(self) -> None:
        fates, self._fates = self._fates, []
        for fate in fates:
            super()._ended(*fate)

    def _book(self, connection: Connection, journaled: int | None) -> Book:
        """`journaled`: the number of the last change whose fates the journal has; None: there is no journal."""
        return read_book(connection, self._member.task_set, journaled)

    def _adopt(self, book: Book) -> None:
        """Reads everything again."""
        book.restore(self.admission)
        self.admission.replay.lease(group.group_id for groups in self._leased.values() for group in groups)
        mine = {row.id for row in book.live if row.member == self._member.name and row.id in self._work}
        self._live = {row.id: self._live[row.id] if row.id in mine else outline(row) for row in [*book.live, *book.trained]}
        self._let_go()
        if book.task is not None:
            self._source.restore(json.loads(book.task.cursor))
        self.branch, self.known = book.run.branch, book.run.seq
        self._follow(book.run)
        self._fates += [fate_of(row, outline(row)) for row in [*book.ended, *book.replayed]]
        self._write_fates()

    def _follow(self, run: Row[object]) -> None:
        admission = self.admission
        admission.version, admission.newest, admission.next_step = run.version, run.newest, run.next_step
        if not self._member.trains:
            admission.max_steps = admission.max_steps if run.max_steps is None else run.max_steps
            self.depth.depth = run.depth
            admission.replay.done, admission.replay.under_way = run.replayed, run.replaying

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides its copy of the database."""
        return {"admission": self.admission.state(), "cursor": self._source.cursor(), "database": {"seq": self.known}}

    def buffered(self) -> list[dict[str, Any]]:
        return []

    async def saved(self, step: int, before: int) -> None:
        async with self._transaction():
            self._statements += rows.not_needed(before, self.admission.replay.oldest_after(before))
            self._statements.append(update(runs).values(saved=step))

    def restore(self, state: Mapping[str, Any], buffered: Sequence[dict[str, Any]]) -> None:
        """The database has everything; `join` goes on from the checkpoint's step."""

    # -- validations ----------------------------------------------------------------------------------------------------

    async def claims_validation(self, version: int) -> bool:
        async with self._transaction():
            claim = partial(rows.claim_validation, version=version, member=self._member.name, seq=self._seq)
            if (claimed := await self._database.execute(claim)) is not None:
                self._statements.append(claimed)
        return claimed is not None

    async def report_validation(self, version: int, result: Mapping[str, object]) -> None:
        async with self._transaction():
            self._statements.append(rows.report_validation(version, result, self._seq))

    async def validation_results(self, after: int) -> tuple[int, list[dict[str, object]]]:
        """The number of the last change that is known here, and the results that were reported after change `after`."""
        known = self.known
        return known, await self._database.read(partial(rows.validation_results, after=after, until=known))

    # -- who else takes part --------------------------------------------------------------------------------------------

    @property
    def explorers(self) -> dict[str, int]:
        """The other explorers that are alive, with the oldest version that each serves."""
        return self._peers.explorers_beside(self._member)

    @property
    def accompanied(self) -> bool:
        """Whether a process of the run's other half is alive."""
        return self._peers.accompany(self._member)

    async def was_taken_back(self) -> bool:
        run = await self._database.read(lambda connection: connection.execute(select(runs)).one())
        return bool(run.branch != self.branch)
