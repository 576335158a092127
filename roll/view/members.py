"""Processes of a run whose groups lie in a database in its folder: the trainer and the explorers, and their work.

The file is opened for reading alone. A database elsewhere is not asked: a page over files makes no connections."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import NullPool, Row, Select, case, create_engine, func, select
from sqlalchemy.exc import DBAPIError

from roll.core.data.untrusted import open_inside
from roll.core.record.run_identity import DATABASE
from roll.topologies.sql.tables import groups, members, runs
from roll.view.journal import number, shown, whole

RECENT_S = 60.0
"""Rates are those of the last so many seconds."""
SILENT_S = 10.0
"""A living process that has given no sign of life for so long is said to be silent."""
WAIT_S = 2.0
"""Limit of the wait for a transaction of the run."""
STATES = ("in_flight", "buffered", "trained", "dropped")
"""States of groups."""
MEMBER = [members.c[name] for name in ("name", "role", "state", "host", "beat", "served", "devices")]


class Members:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owners: dict[int, str] = {}
        self._beats: dict[str, tuple[int, float]] = {}
        """The last sign of life of each process, and when it was seen first."""

    def rows(self) -> list[dict[str, object]]:
        """Returns the rows; none where there is no database. Raises `OSError` or `ValueError` if it cannot be read."""
        now = time.time()
        found = self._asked(select(runs.c.newest), select(*MEMBER).order_by(members.c.joined_at), work_since(now - RECENT_S))
        if found is None:
            return []
        versions, joined, work = found
        newest = whole(versions[0].newest) if versions else None
        done = {row.member: row for row in work}
        return [self._row(member, done.get(member.name), newest, now) for member in joined]

    def owners(self) -> dict[int, str]:
        """Returns the explorer of each group. Raises as `rows`."""
        last = max(self._owners, default=-1)
        found = self._asked(select(groups.c.id, groups.c.member).where(groups.c.id > last))
        if found is None:
            self._owners = {}
        else:
            self._owners |= {row.id: shown(row.member) for row in found[0]}
        return self._owners

    def _row(self, member: Row[Any], work: Row[Any] | None, newest: int | None, now: float) -> dict[str, object]:
        found: dict[str, object] = {
            "name": shown(member.name),
            "role": shown(member.role),
            "state": self._state(member.name, member.state, member.beat, now),
            "host": shown(member.host),
        }
        if member.role == "trainer":
            return found
        served = whole(member.served)
        found |= {"devices": whole(member.devices), "served": served}
        found["late"] = None if newest is None or served is None else newest - served
        found |= {"groups": work.done if work else 0, "lag": number(work.lag) if work else None}
        found |= {"groups_per_s": (work.recent if work else 0) / RECENT_S}
        found |= {"tokens_per_s": (work.tokens or 0 if work else 0) / RECENT_S}
        return found | {state: getattr(work, state) if work else 0 for state in STATES}

    def _state(self, name: str, state: str, beat: int, now: float) -> str:
        if name not in self._beats or self._beats[name][0] != beat:
            self._beats[name] = beat, now
        return "silent" if state == "alive" and now - self._beats[name][1] > SILENT_S else shown(state)

    def _asked(self, *statements: Select[Any]) -> list[Sequence[Row[Any]]] | None:
        try:
            open_inside(self._folder, DATABASE).close()
        except FileNotFoundError:
            return None
        address = f"file:{quote(str((self._folder / DATABASE).resolve()))}?mode=ro"
        engine = create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(address, uri=True, timeout=WAIT_S), poolclass=NullPool
        )
        try:
            with engine.connect() as connection:
                return [connection.execute(statement).all() for statement in statements]
        except DBAPIError as error:
            raise ValueError(f"{DATABASE}: {error.orig}") from None


def work_since(since: float) -> Select[Any]:
    """Selects the work of each explorer: `recent` and `tokens` since a time."""
    of, recent = groups.c, groups.c.completed_at > since
    return select(
        of.member,
        func.count(of.completed_at).label("done"),
        func.count(case((recent, 1))).label("recent"),
        func.sum(case((recent, of.tokens))).label("tokens"),
        func.avg(case((of.state == "trained", of.lag))).label("lag"),
        *(func.count(case((of.state == state, 1))).label(state) for state in STATES),
    ).group_by(of.member)
