"""Knowledge of a process about the groups in a database: it learns the others' changes, by the verbs of the pure `Admission`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from sqlalchemy import Connection, Executable, Row

from roll.core.configs.plain import JsonObject
from roll.core.data.sample import SampleGroup
from roll.core.errors import DatabaseFailed, PackingError
from roll.core.groups.groups import Groups
from roll.core.groups.parts import GroupParts
from roll.core.groups.ticket import GroupState
from roll.core.record.run_identity import RunIdentity
from roll.topologies.sql.admittance import LifeSigns
from roll.topologies.sql.database import Database
from roll.topologies.sql.joining import Member
from roll.topologies.sql.news import Book, News, Peers, check_part, read_book, read_news
from roll.topologies.sql.outage import Outage
from roll.topologies.sql.rows import EndedGroup, ended_group, outline


@dataclass(frozen=True, slots=True)
class Membership:
    """This process as a member of a run of several."""

    member: Member
    identity: RunIdentity
    member_timeout_s: float
    peer_timeout_s: float


class FollowingGroups(Groups):
    def __init__(self, parts: GroupParts, database: Database, membership: Membership) -> None:
        """The journal is None in a process that does not train: the trainer's has the groups of all. Call `join` first."""
        super().__init__(parts)
        self._database = database
        self._member, self._identity = membership.member, membership.identity
        self._signs = LifeSigns(membership.member_timeout_s)
        self._peer_timeout_s = membership.peer_timeout_s
        self.outage = Outage(self._peer_timeout_s)
        self._lock = asyncio.Lock()
        self.known = -1
        """The number of the last change that is known here."""
        self._stale = False
        """True if the knowledge here includes changes that were not kept."""
        self._kept: JsonObject | None = None
        """The state before the changes of a transaction that is not committed; its statuses are not in the journal."""
        self.branch = 0
        """Number of times that versions were taken back, as far as this process knows."""
        self._seq = 0
        """The number of the transaction that is open."""
        self._own: set[int] = set()
        """The groups that were started here and, when they were counted last, in flight."""
        self._fetched: dict[int, SampleGroup | PackingError] = {}
        """Contents of groups that a step may take."""
        self._statements: list[Executable] = []
        self._ended_groups: list[EndedGroup] = []
        """Rows for the journal, once they are committed."""
        self._ahead: set[int] = set()
        """Groups that have ended after the last change that is known here: a look is not of one moment."""
        self._peers = Peers()
        self._alone_since = self._clock()

    # -- what others changed --------------------------------------------------------------------------------------------

    def _news(self, connection: Connection) -> News:
        return read_news(connection, self._member.task_set, self.known)

    def _learn(self, news: News, known: int | None = None) -> None:
        """`known`: the number of the last change that is in the news; None: that of the run. Raises as `_check`."""
        self._check(news, news.run.seq if known is None else known)
        run, self._peers = news.run, Peers(news.members)
        for row in news.groups:
            self._learn_group(row)
        if news.task is not None:
            self._source.restore(json.loads(news.task.cursor))
        self._follow(run)
        if run.status != "running":
            self.ended = run.status, run.reason
        self.known = run.seq if known is None else known
        self._ahead = {row.id for row in news.groups if row.seq > self.known and not self.is_live(row.id)}
        self._write_ended()

    def _check(self, news: News, seq: int) -> None:
        """`seq`: the number of the last change that is in the news. Raises `TakenBack`, `Expelled`, `DatabaseFailed`."""
        check_part(news, self._member, self.branch)
        if seq < self.known:
            raise DatabaseFailed(
                f"the database has {seq} changes, and had {self.known}: a standby took over that had not received the last ones "
                "(synchronous_standby_names), or a backup was restored. Start the trainer again with resume_from_checkpoint: auto"
            )

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
            self._ended_groups.append(ended_group(row, self._live.pop(row.id)))

    def _write_ended(self) -> None:
        ended_groups, self._ended_groups = self._ended_groups, []
        for ended in ended_groups:
            self._log(*ended)

    def _book(self, connection: Connection, journaled: int | None) -> Book:
        """`journaled`: the number of the last change whose statuses the journal has; None: there is no journal."""
        return read_book(connection, self._member.task_set, journaled)

    def _adopt(self, book: Book, known: int | None = None) -> None:
        """Reads everything again. `known`: see `_learn`."""
        book.restore(self.admission)
        self.admission.reuse.lease(group.group_id for groups in self._leased.values() for group in groups)
        mine = {row.id for row in book.live if row.member == self._member.name and row.id in self._work}
        self._live = {row.id: self._live[row.id] if row.id in mine else outline(row) for row in [*book.live, *book.trained]}
        self._let_go()
        if book.task is not None:
            self._source.restore(json.loads(book.task.cursor))
        self.branch, self.known = book.run.branch, book.run.seq if known is None else known
        self._follow(book.run)
        ended = [row for row in book.ended if row.id not in self._ahead]
        self._ended_groups += [ended_group(row, outline(row)) for row in [*ended, *book.reused]]
        self._write_ended()

    def _follow(self, run: Row[object]) -> None:
        admission = self.admission
        admission.version, admission.newest, admission.next_step = run.version, run.newest, run.next_step
        if not self._member.trains:
            admission.max_steps = admission.max_steps if run.max_steps is None else run.max_steps
            self.depth.depth = run.depth
            admission.reuse.done, admission.reuse.under_way = run.reused, run.reusing
