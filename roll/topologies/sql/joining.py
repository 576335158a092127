"""Processes join a run in a database, leave it, or are found dead: each is one transaction.

Pure statements over a connection: the caller holds the lock of the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from roll.core.distributed.processes import Process
from roll.core.errors import ContractError
from roll.core.groups.admission import Admission
from roll.core.groups.progress import LOST, ROLLED_BACK
from roll.core.record.run_identity import RunIdentity
from roll.topologies.sql.admittance import about, check_contract, check_owner, columns_of, run_in
from roll.topologies.sql.database import LAYOUT
from roll.topologies.sql.tables import groups, members, metadata, reuses, runs, samples, tasks, validations

JOINING = 1
"""Number of the lock that keeps processes from making tables at the same time."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a run."""

    name: str
    explores: bool
    trains: bool
    process: Process
    task_set: str
    """Explorers with the same tasks have the same one."""
    devices: int = 1
    """Devices of its engines: `share`."""
    term: int = 0
    """Number of times that this name has joined."""

    @property
    def role(self) -> str:
        return "both" if self.explores and self.trains else "trainer" if self.trains else "explorer"


@dataclass(frozen=True, slots=True)
class Join:
    member: Member
    contract: Mapping[str, Any]
    cursor: Mapping[str, Any]
    """Cursor at which the member's task set begins, if nothing has been drawn from it yet."""
    admission: Admission
    depth: float
    trainer_at: tuple[int, int] | None
    """A trainer's step and the number of the last change that its journal knows."""
    identity: RunIdentity

    def __call__(self, connection: Connection) -> Member:
        """Returns the member with its term. Raises `ContractError`."""
        if connection.dialect.name == "postgresql":  # SQLite's transactions exclude each other from the start
            connection.execute(select(func.pg_advisory_xact_lock(JOINING)))
        run = run_in(connection)
        metadata.create_all(connection)
        if run is None:
            connection.execute(insert(runs).values(self._new_run()))
        else:
            check_owner(connection, run, self.identity)
            check_contract(run, self.contract)
            connection.execute(update(runs).values(seq=runs.c.seq + 1))
        leave(connection, self.member.name, "left")
        if self.trainer_at is not None:
            connection.execute(update(runs).values(about=about(self.identity), max_steps=self.admission.max_steps))
            step = self.trainer_at[0]
            _go_on_from(connection, step, self.admission.batch_groups)
            if self.member.explores:  # its engines begin with the checkpoint's version, published or not
                connection.execute(update(runs).where(runs.c.newest < step).values(newest=step))
        if self.trainer_at is not None or (run is not None and run.status in ("failed", "stopped")):
            # An explorer that comes after a trainer has failed, or an alarm has stopped it, waits for the next one.
            connection.execute(update(runs).values(status="running", reason=""))
        run = connection.execute(select(runs)).one()
        drawn = connection.execute(select(tasks).where(tasks.c.task_set == self.member.task_set)).first()
        if self.member.explores and drawn is None:
            row = {"task_set": self.member.task_set, "seq": run.seq, "cursor": json.dumps(self.cursor)}
            connection.execute(insert(tasks).values(row))
        member = self._written(connection, run.newest)
        _serve_oldest(connection)
        return member

    def _written(self, connection: Connection, newest: int) -> Member:
        """Returns the member with its term, as its row says now."""
        old = connection.execute(select(members).where(members.c.name == self.member.name)).first()
        member = replace(self.member, term=old.term + 1 if old is not None else 1)
        row = {
            "role": member.role,
            "term": member.term,
            "state": "alive",
            **columns_of(member.process),
            "seq": 0,
            "beat": 0,
            # An explorer loads the newest version before it rolls out its first group.
            "served": newest if member.explores else -1,
            "joined_at": time.time(),
            "devices": member.devices,
        }
        if old is None:
            connection.execute(insert(members).values(name=member.name, **row))
        else:
            connection.execute(update(members).where(members.c.name == member.name).values(row))
        return member

    def _new_run(self) -> dict[str, object]:
        return {
            "id": 1,
            "layout": LAYOUT,
            "run_id": self.identity.id,
            "about": about(self.identity),
            "contract": json.dumps(self.contract),
            "seq": 1,
            "branch": 0,
            "version": self.admission.version,
            "newest": self.admission.version,
            "next_step": self.admission.version,
            "trained": self.admission.trained,
            "reused": 0,
            "reusing": 0,
            "saved": 0,
            "depth": self.depth,
            "status": "running",
            "reason": "",
        }


@dataclass(frozen=True, slots=True)
class Leave:
    """A process ends, or was found dead."""

    name: str
    state: str
    seen: tuple[int, int] | None = None
    """Its term and its beat when it was found dead: a process that has shown signs of life since is not."""

    def __call__(self, connection: Connection) -> None:
        row = connection.execute(select(members).where(members.c.name == self.name)).first()
        if self.seen is not None and (row is None or (row.term, row.beat) != self.seen):
            return
        connection.execute(update(runs).values(seq=runs.c.seq + 1))
        leave(connection, self.name, self.state)
        _serve_oldest(connection)


def leave(connection: Connection, name: str, state: str) -> None:
    """Drops the groups that the process has in flight, and gives their tasks back."""
    seq = connection.execute(select(runs.c.seq)).scalar_one()
    connection.execute(update(members).where(members.c.name == name, members.c.state == "alive").values(state=state))
    in_flight = (groups.c.member == name) & (groups.c.state == "in_flight")
    _drop(connection, connection.execute(select(groups).where(in_flight).order_by(groups.c.id)).all(), LOST, seq)


def give_back(connection: Connection, group_id: int, seq: int) -> None:
    """Has the group's task served again."""
    group = connection.execute(select(groups).where(groups.c.id == group_id)).one()
    cursor = json.loads(connection.execute(select(tasks.c.cursor).where(tasks.c.task_set == group.task_set)).scalar_one())
    cursor["returned"].append(group.prompt_uid)
    connection.execute(update(tasks).where(tasks.c.task_set == group.task_set).values(seq=seq, cursor=json.dumps(cursor)))


def _drop(connection: Connection, rows: Sequence[Row[object]], reason: str, seq: int) -> None:
    version = connection.execute(select(runs.c.version)).scalar_one()
    for row in rows:
        status = {"seq": seq, "state": "dropped", "reason": reason, "step": version + 1, "lag": None, "ended_at": time.time()}
        connection.execute(update(groups).where(groups.c.id == row.id).values(status))
        give_back(connection, row.id, seq)


def _go_on_from(connection: Connection, step: int, batch_groups: int) -> None:
    """Takes the run back to a trainer's checkpoint of `step`: groups that were trained later are delivered again, if their
    samples still exist, later reuses are taken back, and groups sampled by deleted versions are dropped."""
    connection.execute(delete(reuses).where(reuses.c.step > step))
    run = connection.execute(select(runs)).one()
    later = (groups.c.state == "trained") & (groups.c.step > step)
    again = {"seq": run.seq, "state": "buffered", "step": None, "lag": None, "ended_at": None}
    connection.execute(update(groups).where(later).values(again))
    lacking = (groups.c.state == "buffered") & groups.c.id.not_in(select(samples.c.group_id))
    _drop(connection, connection.execute(select(groups).where(lacking).order_by(groups.c.id)).all(), ROLLED_BACK, run.seq)
    if run.newest > step:
        gone = (groups.c.state.in_(["in_flight", "buffered"])) & (
            (groups.c.start_version > step) | (func.coalesce(groups.c.newest_version, 0) > step)
        )
        _drop(connection, connection.execute(select(groups).where(gone).order_by(groups.c.id)).all(), ROLLED_BACK, run.seq)
        connection.execute(update(runs).values(branch=runs.c.branch + 1, newest=step, version=min(run.version, step)))
        connection.execute(update(members).where(members.c.role != "trainer", members.c.served > step).values(served=step))
        connection.execute(delete(validations).where(validations.c.version > step))
    trained = connection.execute(select(func.count()).where(groups.c.state == "trained")).scalar_one()
    reused = connection.execute(select(func.count()).select_from(reuses)).scalar_one()
    if trained + reused != step * batch_groups:
        found = f"{trained + reused} uses of groups"
        raise ContractError(f"it counts {found}, the checkpoint of step {step} has {step * batch_groups}")
    connection.execute(update(runs).values(trained=trained, reused=reused, reusing=0, next_step=step))


def _serve_oldest(connection: Connection) -> None:
    """Sets the run's version to the oldest that an explorer serves; while there is none, to the last such."""
    oldest = select(func.min(members.c.served)).where(members.c.state == "alive", members.c.role != "trainer")
    version = connection.execute(oldest).scalar()
    if version is not None:
        connection.execute(update(runs).where(runs.c.version < version).values(version=version))
