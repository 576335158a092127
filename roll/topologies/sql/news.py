"""Reads of a process from the database: everything when it begins, and later the changes since its last look.

`share`: limit of an explorer's groups in flight. All explorers would take whatever may start, and the first to look would
hold groups that wait in its queue while another has nothing to do. So the places for groups in flight are divided by devices. The
parts are rounded up: while a place is free, at least one explorer has fewer groups than its part, and parts get smaller as groups
are completed, so even one explorer completes a batch alone if another, not found dead yet, does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, literal, select

from roll.core.errors import Expelled, Missed, TakenBack
from roll.core.groups.admission import Admission
from roll.core.groups.reuse import Trained
from roll.core.groups.ticket import GroupState
from roll.topologies.sql.admittance import process_of
from roll.topologies.sql.joining import Member
from roll.topologies.sql.rows import REUSED
from roll.topologies.sql.tables import groups, members, reuses, runs, samples, tasks


@dataclass(frozen=True, slots=True)
class News:
    """Changes since a process looked last."""

    run: Row[Any]
    groups: Sequence[Row[Any]]
    members: Sequence[Row[object]]
    task: Row[Any] | None
    """The task set's row, if others changed it."""


@dataclass(frozen=True, slots=True)
class Book:
    """Everything that a process needs to know when it begins."""

    run: Row[Any]
    live: Sequence[Row[object]]
    dropped: Mapping[str, int]
    last_id: int
    task: Row[Any] | None
    ended: Sequence[Row[Any]]
    """The groups whose statuses the journal lacks."""
    reused: Sequence[Row[Any]]
    """The reuses that the journal lacks."""
    trained: Sequence[Row[Any]]
    """The trained groups that have samples, with their `uses`, where there is a journal: for the process that trains."""

    def restore(self, admission: Admission) -> None:
        run = self.run
        state = {"next_group_id": self.last_id + 1, "trained": run.trained, "reused": run.reused, "dropped": self.dropped}
        buffered = {row.id: row.start_version for row in self.live if row.state == GroupState.BUFFERED.value}
        in_flight = {row.id: row.start_version for row in self.live if row.id not in buffered}
        admission.restore(state, buffered, in_flight, [Trained(row.id, row.start_version, row.uses) for row in self.trained])


def read_news(connection: Connection, task_set: str, known: int) -> News:
    """`known`: the number of the last change that the process knows."""
    run = connection.execute(select(runs)).one()
    everyone = connection.execute(select(members)).all()
    if run.seq == known:
        return News(run, (), everyone, None)
    changed = connection.execute(select(groups).where(groups.c.seq > known).order_by(groups.c.id)).all()
    task = connection.execute(select(tasks).where(tasks.c.task_set == task_set, tasks.c.seq > known)).first()
    return News(run, changed, everyone, task)


def read_book(connection: Connection, task_set: str, after: int | None) -> Book:
    """`after`: the number of the last change whose statuses the journal has."""
    live = select(groups).where(groups.c.state.in_([state.value for state in GroupState])).order_by(groups.c.id)
    reasons = select(groups.c.reason, func.count()).where(groups.c.state == "dropped").group_by(groups.c.reason)
    ended = select(groups).where(groups.c.ended_at.is_not(None), groups.c.seq > (after or 0)).order_by(groups.c.seq, groups.c.id)
    first = select(groups.c.id, groups.c.prompt_uid, groups.c.domain, groups.c.start_version)
    again = first.add_columns(literal(REUSED).label("state"), literal("").label("reason"), reuses.c.step, reuses.c.lag)
    again = again.where(reuses.c.group_id == groups.c.id, reuses.c.seq > (after or 0)).order_by(reuses.c.seq, groups.c.id)
    further = select(func.count()).where(reuses.c.group_id == groups.c.id).scalar_subquery()
    trained = first.add_columns((1 + further).label("uses")).where(groups.c.state == "trained")
    trained = trained.where(groups.c.id.in_(select(samples.c.group_id)))
    return Book(
        run=connection.execute(select(runs)).one(),
        live=connection.execute(live).all(),
        dropped={reason: count for reason, count in connection.execute(reasons)},
        last_id=connection.execute(select(func.coalesce(func.max(groups.c.id), -1))).scalar_one(),
        task=connection.execute(select(tasks).where(tasks.c.task_set == task_set)).first(),
        ended=connection.execute(ended).all() if after is not None else (),
        reused=connection.execute(again).all() if after is not None else (),
        trained=connection.execute(trained).all() if after is not None else (),
    )


class Peers:
    """The living processes, as they were seen last."""

    def __init__(self, rows: Sequence[Row[object]] = ()) -> None:
        self._alive = [row for row in rows if row.state == "alive"]

    def beats(self) -> dict[str, tuple[int, int]]:
        """Returns the term and the beat of each."""
        return {row.name: (row.term, row.beat) for row in self._alive}

    def explorers_beside(self, me: Member) -> dict[str, int]:
        """Returns the other explorers, with the oldest version that each serves."""
        return {row.name: row.served for row in self._alive if row.served >= 0 and row.name != me.name}

    def replaceable(self) -> Collection[str]:
        """Returns the explorers, if each has another in its place."""
        names = [row.name for row in self._alive if row.role == "explorer"]
        return names if len(names) > 1 else ()

    def accompany(self, me: Member) -> bool:
        """Returns True if a process of the run's other half is alive."""
        return any(row.role != me.role for row in self._alive)

    def share(self, me: Member, places: int) -> int:
        """Returns an explorer's part of `places`: groups in flight, and those that may start."""
        return share(places, me.devices, [row.devices for row in self._alive if row.served >= 0])


def check_part(news: News, me: Member, branch: int) -> None:
    """Checks that this process still takes part. `branch`: the one that it has joined. Raises `TakenBack`, `Expelled`."""
    mine = next((row for row in news.members if row.name == me.name), None)
    if mine is not None and mine.term > me.term:  # a smaller one is of a database that was restored
        raise Expelled(f"{process_of(mine)} has taken the place of this one as {me.name} of the run")
    if news.run.branch != branch:
        raise TakenBack
    if mine is None or mine.state != "alive":
        told = f"{me.name} was taken for dead by the other processes of this run (member_timeout)"
        raise Expelled(f"{told}: start it again") if me.trains else Missed(f"{told}, which roll out its groups again")


def share(places: int, devices: int, explorers: Collection[int]) -> int:
    """Returns the part of an explorer. `explorers`: the devices of each, with `devices` itself."""
    return -(-places * devices // max(sum(explorers), devices))
