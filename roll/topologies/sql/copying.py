"""A checkpoint's copy of the database: an SQLite file, from which a trainer restores a database that is damaged, lost, or older
than the checkpoint.

The copy is of a moment after the checkpoint's own, as the database itself would be. It lacks the samples that no process resuming
from there needs.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import URL, Connection, Engine, Select, Table, create_engine, delete, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from roll.core.groups.ticket import GroupState
from roll.topologies.sql.admittance import check_contract, run_in
from roll.topologies.sql.connecting import failed, open_engine
from roll.topologies.sql.joining import leave
from roll.topologies.sql.rows import superfluous
from roll.topologies.sql.tables import groups, members, metadata, runs, samples

EMPTY = "it holds no run"
UNFINISHED = select(groups.c.id).where(groups.c.state == GroupState.IN_FLIGHT.value)
"""Groups whose samples may already be stored."""
ROWS = 200
"""Rows held in memory at a time."""


class JournalEnd(NamedTuple):
    """Journal status of a group that has ended."""

    state: str
    step: int

    @property
    def said(self) -> str:
        return f"is {self.state} (step {self.step})"


def write_copy(address: str, file: Path, step: int, oldest: int | None) -> None:
    """Copies the rows that resuming from the checkpoint of `step` needs; `oldest`: see `superfluous`. Everything that is
    committed is on the disk then. Blocks; other processes work on meanwhile. Raises `DatabaseAway`: it may be begun again."""
    file.unlink(missing_ok=True)
    engine = open_engine(address)
    sqlite = engine.dialect.name == "sqlite"
    level = "AUTOCOMMIT" if sqlite else "REPEATABLE READ"
    try:
        with engine.connect().execution_options(isolation_level=level) as source, _single_file(file).begin() as copied:
            if sqlite:
                source.exec_driver_sql("PRAGMA wal_checkpoint(FULL)")
                source.exec_driver_sql("BEGIN")  # all tables as they are at one moment
            metadata.create_all(copied)
            for table in metadata.sorted_tables:
                _transfer(table, source, copied, [*superfluous(step, oldest), UNFINISHED] if table is samples else ())
    except DBAPIError as error:
        raise failed(file, error) from error
    finally:
        engine.dispose()


def write_none(file: Path) -> None:
    """Writes an empty database in place of a copy, where the database is away for good: resuming from there needs the database
    itself."""
    file.unlink(missing_ok=True)
    with _single_file(file).begin() as copied:
        metadata.create_all(copied)


def restore_copy(connection: Connection, file: Path) -> None:
    """Replaces all rows by those of the copy, within the transaction. Running processes find that they are out of date; their
    groups in flight are dropped."""
    metadata.create_all(connection)
    for table in reversed(metadata.sorted_tables):
        connection.execute(delete(table))
    with _single_file(file).connect() as source:
        for table in metadata.sorted_tables:
            _transfer(table, source, connection)
    connection.execute(update(runs).values(seq=runs.c.seq + 1, branch=secrets.randbelow(1 << 30)))
    for name in connection.execute(select(members.c.name).where(members.c.state == "alive")).scalars().all():
        leave(connection, name, "lost")


def check_copy(file: Path, contract: Mapping[str, object]) -> None:
    """Raises `ContractError` if the process cannot take part in the run that the copy holds."""
    with _single_file(file).connect() as source:
        if (run := run_in(source)) is not None:
            check_contract(run, contract)


def differs(connection: Connection, seq: int, journal: Mapping[int, JournalEnd]) -> str:
    """Returns why the database does not belong to a checkpoint; empty if it does. `seq`: the number of the last change that
    the checkpoint knows; `journal`: the statuses that its journal has. Raises as a damaged database does."""
    if connection.dialect.name == "sqlite":
        problem = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
        if problem != "ok":
            return f"it is damaged: {' '.join(str(problem).split())}"
    run = connection.execute(select(runs)).first() if inspect(connection).has_table(runs.name) else None
    if run is None:
        return EMPTY
    if run.seq < seq:
        return f"it has {run.seq} changes, the checkpoint knows {seq}"
    stored = {
        row.id: JournalEnd(row.state, row.step) for row in connection.execute(select(groups.c.id, groups.c.state, groups.c.step))
    }
    for group_id, status in journal.items():
        if stored.get(group_id) != status:
            other = stored[group_id].said if group_id in stored else "is unknown"
            return f"group {group_id} {other} there, and {status.said} in groups.jsonl"
    return ""


def _single_file(file: Path) -> Engine:
    """Opens it without a write-ahead log: a checkpoint has the files that its manifest names, no more."""
    return create_engine(URL.create("sqlite", database=str(file)), poolclass=NullPool)


def _transfer(table: Table, source: Connection, target: Connection, without: Sequence[Select[tuple[int]]] = ()) -> None:
    """`without`: queries of the groups whose rows are not copied."""
    wanted = select(table)
    for ids in without:
        wanted = wanted.where(table.c.group_id.not_in(ids))
    for rows in source.execution_options(yield_per=ROWS).execute(wanted).mappings().partitions():
        target.execute(insert(table), [dict(row) for row in rows])
