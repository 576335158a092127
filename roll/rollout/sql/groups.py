"""The groups of a run in a database: several explorers and one trainer, each a process of its own, have the same `Admission`.

Every verb is a transaction. It first learns what others changed, by the same verbs of the pure `Admission`, so what it decides
holds for all; then its own changes are written, or none of them. Between transactions a process looks at what it knew last.

A process that dies leaves nothing behind that others wait for: its groups in flight are dropped (`explorer_lost`) and their tasks
served again; groups that were trained after the checkpoint from which a trainer goes on are delivered again, as long as the
policy versions that sampled them still exist.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, Row, delete, func, insert, select, update

from roll.data.sample import Prompt, SampleGroup
from roll.metrics.run_log import GroupLog
from roll.metrics.trace import Trace
from roll.rollout.admission import Admission, GroupState
from roll.rollout.groups import Groups, TaskSource
from roll.rollout.pipeline_depth import PipelineDepth
from roll.rollout.progress import Progress
from roll.rollout.sql import joining
from roll.rollout.sql.database import Database
from roll.rollout.sql.joining import Member
from roll.rollout.sql.life_signs import LifeSigns
from roll.rollout.sql.packing import PackingError, digest, pack, unpack
from roll.rollout.sql.tables import groups, members, runs, samples, tasks, validations

logger = logging.getLogger(__name__)

BEAT_S = 2.0
DAMAGED = "damaged"
"""A group is dropped whose samples cannot be read; its task is served again."""


class Expelled(RuntimeError):
    """The others took this process for dead."""


class Alone(RuntimeError):
    """The other half of the run does not come, or does not come back."""


class TakenBack(Exception):
    """The trainer went on from a checkpoint: versions that were published after it are gone, and what they sampled is dropped."""


class Fate(NamedTuple):
    group: SampleGroup
    fate: str
    reason: str
    step: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class News:
    """What was changed since a process looked last."""

    run: Row[Any]
    groups: Sequence[Row[Any]]
    members: Sequence[Row[Any]]
    task: Row[Any] | None
    """The task set's row, if others changed it."""


@dataclass(frozen=True, slots=True)
class Book:
    """Everything that a process needs to know when it begins."""

    run: Row[Any]
    live: Sequence[Row[Any]]
    dropped: Mapping[str, int]
    last_id: int
    task: Row[Any] | None
    ended: Sequence[Row[Any]]
    """The groups whose fates the journal lacks."""


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
    ) -> None:
        """`journal`: None in a process that does not train: the trainer's journal has the groups of all. Call `join` first."""
        super().__init__(admission, depth, source, journal, trace, progress, clock)
        self._database = database
        self._member = member
        self._signs = LifeSigns(member_timeout_s)
        self._peer_timeout_s = peer_timeout_s
        self._lock = asyncio.Lock()
        self._known = -1
        """The number of the last change that is known here."""
        self._stale = False
        """Whether what is known here includes changes that were not kept."""
        self._branch = 0
        self._seq = 0
        """The number of the transaction that is open."""
        self._statements: list[Executable] = []
        self._fates: list[Fate] = []
        """What the journal is told, once it is committed."""
        self._members: Sequence[Row[Any]] = ()
        self._ending: tuple[str, str] | None = None
        self._alone_since = clock()

    # -- joining and leaving --------------------------------------------------------------------------------------------

    async def join(self, contract: Mapping[str, Any], trainer_at: tuple[int, int] | None = None) -> None:
        """This process takes part from now on. `trainer_at`: the step that a trainer goes on from, and the number of the last
        change that its journal knows. Raises `ContractError` if the run was begun with other values of `contract`."""
        async with self._lock:
            known = trainer_at[1] if trainer_at is not None else None
            work = joining.Join(self._member, contract, self._source.cursor(), self.admission, self.depth.depth, trainer_at)
            self._member = await self._database.write(work)
            await self._load(known)
        self._changed()

    async def leave(self) -> None:
        """This process takes part no longer; its groups in flight are dropped, and their tasks served again."""
        async with self._lock:
            await self._database.write(joining.Leave(self._member.name, "left"))
        await self._database.close()

    async def conclude(self, status: str, reason: str = "") -> None:
        """The trainer says how the run has ended; explorers end then, too."""
        async with self._transaction():
            self._statements.append(update(runs).values(status=status, reason=reason))

    async def attend(self) -> None:
        """Runs as long as the run does: shows that this process lives, learns what others do, and notices who does not live."""
        beaten = -BEAT_S
        async for _ in self._database.notices():
            if self._clock() - beaten >= BEAT_S:
                beaten = self._clock()
                await self._beat()
            else:
                async with self._lock:
                    self._learn(await self._database.read(self._news))
            self._write_fates()
            self._changed()
            self._notice_peers()

    def _notice_peers(self) -> None:
        """Raises `Alone`."""
        peers = any(row.state == "alive" and row.role != self._member.role for row in self._members)
        if peers or self._member.role == "both" or self._ending is not None:
            self._alone_since = self._clock()
        elif (silence := self._clock() - self._alone_since) > self._peer_timeout_s:
            missing = "explorer" if self._member.trains else "trainer"
            raise Alone(f"there was no {missing} for {silence:.0f} s (peer_timeout)")

    async def _beat(self) -> None:
        async with self._lock:
            beat = update(members).where(members.c.name == self._member.name).values(beat=members.c.beat + 1)
            await self._database.write(lambda connection: connection.execute(beat))
            self._learn(await self._database.read(self._news))
            alive = {row.name: (row.term, row.beat) for row in self._members if row.state == "alive"}
            for name in self._signs.look(alive, self._clock()):
                logger.warning("%s has given no sign of life: its groups are rolled out anew", name)
                await self._database.write(joining.Leave(name, "lost"))

    # -- what a transaction does ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        async with self._lock:
            try:
                news = await self._database.begin(self._begin)
                if self._stale:
                    await self._load(self._known if self._journal is not None else None)
                    self._stale = False
                self._learn(news)
                before = self._run_values()
                yield
                values = self._run_values()
                if self._statements or values != before:
                    await self._database.commit([*self._statements, update(runs).values(values)])
                    self._known = self._seq
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

    def _run_values(self) -> dict[str, Any]:
        admission = self.admission
        return {
            "version": admission.version,
            "newest": admission.newest,
            "next_step": admission.next_step,
            "trained": admission.trained,
            "depth": self.depth.depth,
        }

    def _started(self, group: SampleGroup) -> None:
        prompt = group.prompt
        row = {
            "id": group.group_id,
            "seq": self._seq,
            "state": GroupState.IN_FLIGHT.value,
            "member": self._member.name,
            "task_set": self._task_set,
            "prompt_uid": prompt.uid,
            "domain": prompt.domain,
            "start_version": group.start_version,
            "reason": "",
            "started_at": time.time(),
        }
        cursor = json.dumps(self._source.cursor())
        served = update(tasks).where(tasks.c.task_set == self._task_set).values(seq=self._seq, cursor=cursor)
        self._statements += [insert(groups).values(row), served]

    def _completed(self, group: SampleGroup) -> None:
        versions = [span.version for sample in group.samples for span in sample.versions]
        row = {
            "seq": self._seq,
            "state": GroupState.BUFFERED.value,
            "oldest_version": min(versions, default=-1),
            "newest_version": max(versions, default=-1),
            "samples": len(group.samples),
            "tokens": sum(len(sample.response_ids) for sample in group.samples),
            "reward": fmean(group.outcomes) if group.samples else None,
            "completed_at": time.time(),
        }
        data = pack(group)
        self._statements += [
            update(groups).where(groups.c.id == group.group_id).values(row),
            insert(samples).values(group_id=group.group_id, digest=digest(data), data=data),
        ]

    def _ended(self, group: SampleGroup, fate: str, reason: str, step: int, lag: int | None) -> None:
        row = {"seq": self._seq, "state": fate, "reason": reason, "step": step, "lag": lag, "ended_at": time.time()}
        self._statements.append(update(groups).where(groups.c.id == group.group_id).values(row))
        self._fates.append(Fate(group, fate, reason, step, lag))

    async def set_served(self, version: int) -> None:
        """All engines of this process serve `version`, or a newer one, from now on."""
        async with self._transaction():
            self._statements.append(update(members).where(members.c.name == self._member.name).values(served=version))
            self.admission.set_served(max(self.admission.version, min([version, *self.explorers.values()])))
            self._changed()

    async def _contents(self, group_ids: Sequence[int]) -> list[SampleGroup]:
        rows = await self._database.execute(
            lambda connection: connection.execute(select(samples).where(samples.c.group_id.in_(group_ids))).all()
        )
        stored = {row.group_id: row for row in rows}
        contents = []
        for group_id in group_ids:
            try:
                if group_id not in stored:
                    raise PackingError("its samples are gone")
                group = unpack(stored[group_id].data, stored[group_id].digest)
                if group.group_id != group_id:
                    raise PackingError(f"its samples are those of group {group.group_id}")
            except PackingError as error:
                await self._database.execute(partial(joining.give_back, group_id=group_id, seq=self._seq))
                self._drop(group_id, DAMAGED, str(error))
                logger.warning("group %d is dropped: %s", group_id, error)
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
        run = connection.execute(select(runs)).one()
        if run.seq == self._known:
            return News(run, (), connection.execute(select(members)).all(), None)
        changed = connection.execute(select(groups).where(groups.c.seq > self._known).order_by(groups.c.id)).all()
        task = connection.execute(select(tasks).where(tasks.c.task_set == self._task_set, tasks.c.seq > self._known)).first()
        return News(run, changed, connection.execute(select(members)).all(), task)

    def _learn(self, news: News) -> None:
        """Raises `TakenBack`, `Expelled`."""
        run = news.run
        self._members = news.members
        if run.branch != self._branch:
            raise TakenBack
        mine = next((row for row in news.members if row.name == self._member.name), None)
        if mine is None or mine.term != self._member.term or mine.state != "alive":
            raise Expelled(
                f"{self._member.name} was taken for dead by the other processes of this run, which roll out its groups anew: "
                "start it again (member_timeout says after how many silent seconds)"
            )
        for row in news.groups:
            self._learn_group(row)
        if news.task is not None:
            self._source.restore(json.loads(news.task.cursor))
        self._follow(run)
        if run.status != "running":
            self._ending = run.status, run.reason
            self._stopped = True
        self._known = self._seq = run.seq

    def _learn_group(self, row: Row[Any]) -> None:
        """Brings one group to where its row is; it may have gone several steps since."""
        admission = self.admission
        if row.id >= admission.next_group_id:
            admission.start(row.start_version)
            self._live[row.id] = _outline(row)
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
            self._fates.append(_fate(row, self._live.pop(row.id)))

    def _write_fates(self) -> None:
        fates, self._fates = self._fates, []
        for fate in fates:
            super()._ended(*fate)

    async def _load(self, journaled: int | None) -> None:
        """Everything anew. `journaled`: the number of the last change whose fates the journal has; None: there is no journal."""
        book = await self._database.read(partial(_read_book, task_set=self._task_set, after=journaled))
        state = {"next_group_id": book.last_id + 1, "trained": book.run.trained, "dropped": book.dropped}
        buffered = {row.id: row.start_version for row in book.live if row.state == GroupState.BUFFERED.value}
        in_flight = {row.id: row.start_version for row in book.live if row.id not in buffered}
        self.admission.restore(state, buffered, in_flight)
        mine = {row.id for row in book.live if row.member == self._member.name and row.id in self._work}
        self._live = {row.id: self._live[row.id] if row.id in mine else _outline(row) for row in book.live}
        if book.task is not None:
            self._source.restore(json.loads(book.task.cursor))
        self._branch, self._known = book.run.branch, book.run.seq
        self._follow(book.run)
        self._fates += [_fate(row, _outline(row)) for row in book.ended]
        self._write_fates()

    def _follow(self, run: Row[Any]) -> None:
        admission = self.admission
        admission.version, admission.newest, admission.next_step = run.version, run.newest, run.next_step
        if not self._member.trains:
            self.depth.depth = run.depth

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the database has the rest."""
        return {"admission": self.admission.state(), "cursor": self._source.cursor(), "database": {"seq": self._known}}

    def buffered(self) -> list[dict[str, Any]]:
        return []

    async def saved(self, step: int) -> None:
        done = select(groups.c.id).where(groups.c.state == "trained", groups.c.step <= step)
        gone = select(groups.c.id).where(groups.c.state == "dropped")
        async with self._transaction():
            self._statements += [delete(samples).where(samples.c.group_id.in_(ids)) for ids in (done, gone)]

    def restore(self, state: Mapping[str, Any], buffered: Sequence[dict[str, Any]]) -> None:
        """The database has everything; `join` goes on from the checkpoint's step."""

    # -- validations ----------------------------------------------------------------------------------------------------

    async def claims_validation(self, version: int) -> bool:
        async with self._transaction():
            row = {"version": version, "seq": self._seq, "member": self._member.name}
            if await self._database.execute(partial(joining.is_validated, version=version)):
                return False
            self._statements.append(insert(validations).values(row))
        return True

    async def report_validation(self, version: int, result: Mapping[str, Any]) -> None:
        async with self._transaction():
            row = {"seq": self._seq, "result": json.dumps(result)}
            self._statements.append(update(validations).where(validations.c.version == version).values(row))

    async def validation_results(self, after: int) -> tuple[int, list[dict[str, Any]]]:
        """The number of the last change that is known here, and the results that were reported after change `after`."""
        known = self._known
        query = select(validations.c.result).where(validations.c.seq > after, validations.c.seq <= known)
        query = query.where(validations.c.result.is_not(None)).order_by(validations.c.version)
        rows = await self._database.read(lambda connection: connection.execute(query).scalars().all())
        return known, [json.loads(row) for row in rows]

    @property
    def known(self) -> int:
        """The number of the last change that is known here."""
        return self._known

    # -- who else takes part --------------------------------------------------------------------------------------------

    @property
    def explorers(self) -> dict[str, int]:
        """The other explorers that are alive, with the oldest version that each serves."""
        name = self._member.name
        return {row.name: row.served for row in self._members if row.state == "alive" and row.served >= 0 and row.name != name}

    @property
    def ended(self) -> tuple[str, str] | None:
        """How the run has ended, as its trainer says, and why; None while it runs."""
        return self._ending

    async def was_taken_back(self) -> bool:
        run = await self._database.read(lambda connection: connection.execute(select(runs)).one())
        return bool(run.branch != self._branch)

    @property
    def _task_set(self) -> str:
        return self._member.task_set


def _read_book(connection: Connection, task_set: str, after: int | None) -> Book:
    """`after`: the number of the last change whose fates the journal has."""
    live = select(groups).where(groups.c.state.in_([state.value for state in GroupState])).order_by(groups.c.id)
    reasons = select(groups.c.reason, func.count()).where(groups.c.state == "dropped").group_by(groups.c.reason)
    ended = select(groups).where(groups.c.ended_at.is_not(None), groups.c.seq > (after or 0)).order_by(groups.c.seq, groups.c.id)
    return Book(
        run=connection.execute(select(runs)).one(),
        live=connection.execute(live).all(),
        dropped={reason: count for reason, count in connection.execute(reasons)},
        last_id=connection.execute(select(func.coalesce(func.max(groups.c.id), -1))).scalar_one(),
        task=connection.execute(select(tasks).where(tasks.c.task_set == task_set)).first(),
        ended=connection.execute(ended).all() if after is not None else (),
    )


def _outline(row: Row[Any]) -> SampleGroup:
    """A group of another process, without its samples."""
    return SampleGroup(row.id, row.start_version, Prompt(row.prompt_uid, [], "", row.domain, row.domain, ""))


def _fate(row: Row[Any], group: SampleGroup) -> Fate:
    return Fate(group, row.state, row.reason, row.step, row.lag)
