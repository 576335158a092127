"""What a process reads from the database: everything when it begins, and what was changed since it looked last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select

from roll.rollout.admission import GroupState
from roll.rollout.sql.tables import groups, members, runs, tasks


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
