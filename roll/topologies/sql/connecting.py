"""Connections to the database of groups, and how long they wait.

`sqlite:///file` serves processes of one machine, `postgresql+psycopg://...` those of many.

A host that loses its cable, its power or its turn must not keep others waiting: whatever stands still on a connection is given up
on both sides after the seconds of `Limits`, and what was under way is tried again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from roll.core.configs.redact import redact_text
from roll.core.errors import DatabaseAway, DatabaseDamaged, DatabaseError, DatabaseFailed

BUSY_S = 60.0
"""Time that a transaction of SQLite waits for those of others."""
LONGEST_HELD_S = 5.0
TRANSIENT = ("08", "40", "53", "57")
"""Classes of errors of a server that is away, full, or has ended the running statement."""
MOMENTARY = ("25006", "25P03", "55P03")
"""It became a standby; it ended a transaction that stood still; others held a lock."""
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, all below `member_timeout`: nobody is taken for dead because another one holds a lock or a connection."""

    held: float
    """A transaction whose process says nothing; an attempt to connect."""
    answer: float
    """A lock that others hold; bytes that the other side does not acknowledge."""
    statement: float

    @classmethod
    def below(cls, member_timeout: float) -> Limits:
        held = min(LONGEST_HELD_S, member_timeout / 8)
        return cls(held, 2 * held, member_timeout / 2)

    @property
    def patience(self) -> float:
        """Limit on this side, where the server's own limits should have applied."""
        return self.answer + self.held / 2

    def of_client(self) -> dict[str, int]:
        """Limits of libpq, which counts in whole seconds."""
        idle, between = max(1, round(self.held)), max(1, round(self.held / 4))
        keepalives = {"keepalives": 1, "keepalives_idle": idle, "keepalives_interval": between, "keepalives_count": 4}
        return {"connect_timeout": max(2, ceil(self.held)), "tcp_user_timeout": round(1000 * self.answer), **keepalives}

    def of_session(self) -> dict[str, str]:
        """Limits of the server, for one connection."""
        client = self.of_client()
        in_ms = {
            "idle_in_transaction_session_timeout": self.held,
            "lock_timeout": self.answer,
            "statement_timeout": self.statement,
            "tcp_user_timeout": self.answer,
        }
        found = {name: f"{max(1, round(1000 * seconds))}ms" for name, seconds in in_ms.items()}
        return found | {f"tcp_{name}": str(client[name]) for name in client if name.startswith("keepalives_")}


USUAL = Limits.below(60.0)


def url_of(address: str) -> URL:
    """Several servers may be named as libpq does it: `user@one:5432,two:5432/name`. Raises `ArgumentError`."""
    scheme, _, rest = address.partition("://")
    place, slash, path = rest.partition("/")
    user, at, servers = place.rpartition("@")
    if "," not in servers:
        return make_url(address)
    named = [make_url(f"{scheme}://{server}") for server in servers.split(",")]
    hosts, ports = ",".join(each.host or "" for each in named), ",".join(str(each.port or 5432) for each in named)
    return make_url(f"{scheme}://{user}{at}{slash}{path}").update_query_dict({"host": hosts, "port": ports})


def open_engine(address: str, limits: Limits = USUAL, short: bool = False) -> Engine:
    """`short`: for transactions that others wait for. Raises `DatabaseError`."""
    try:
        url = url_of(address)
        backend = url.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise DatabaseError(f"{backend} is not supported; sqlite:///path and postgresql+psycopg://user@host/name are")
        if backend == "postgresql":
            return _postgresql(url, limits, short)
        if url.database in (None, "", ":memory:"):
            raise DatabaseError("it names no file: write sqlite:///path/to/groups.db")
        # The driver shall begin no transaction by itself: `_begin` says how they begin.
        engine = create_engine(url, connect_args={"isolation_level": None, "timeout": BUSY_S, "check_same_thread": False})
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise DatabaseError(str(error)) from error

    @event.listens_for(engine, "connect")
    def _configure(connection: object, _record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        _write_ahead(cursor)
        # What is committed outlives every process; only a loss of power may cost what came after the last checkpoint.
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgresql(url: URL, limits: Limits, short: bool) -> Engine:
    """A limit that the address names wins."""
    chosen = {name: value for name, value in limits.of_client().items() if name not in url.query}
    engine = create_engine(url, connect_args=chosen, poolclass=NullPool, isolation_level="READ COMMITTED")
    session = {name: value for name, value in limits.of_session().items() if short or name.startswith("tcp_")}

    @event.listens_for(engine, "connect")
    def _limit(connection: Any, _record: object) -> None:
        values, transactions = ", ".join(["(%s, %s)"] * len(session)), connection.autocommit
        connection.autocommit = True
        # Older servers do not know all of them.
        connection.execute(
            f"SELECT set_config(s.name, v.value, false) FROM (VALUES {values}) v(name, value) JOIN pg_settings s USING (name)",
            [each for pair in session.items() for each in pair],
        )
        connection.autocommit = transactions

    return engine


def arguments_of(engine: Engine, limits: Limits) -> Mapping[str, Any]:
    """For a connection that is none of the engine's."""
    _, given = engine.dialect.create_connect_args(engine.url)
    return {**limits.of_client(), **given}


def servers_of(address: str) -> list[tuple[str, int]]:
    """Hosts and ports of the servers; none for SQLite, and for those that are reached by a socket file."""
    engine = open_engine(address)
    if engine.dialect.name == "sqlite":
        return []
    given = arguments_of(engine, USUAL)
    hosts, ports = str(given.get("host", "")).split(","), str(given.get("port", "5432")).split(",")
    return [(host, int(port)) for host, port in zip(hosts, ports, strict=False) if host and not host.startswith("/")]


def file_of(engine: Engine) -> Path | None:
    """SQLite's."""
    return Path(engine.url.database or "").resolve() if engine.dialect.name == "sqlite" else None


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """SQLite does not wait for others here, as it does everywhere else: they may be opening, or leaving, the same file."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def failed(place: object, error: DBAPIError) -> DatabaseFailed:
    """An error for people, without the statement and its values."""
    said, code = error.orig, getattr(error.orig, "sqlstate", None)
    if isinstance(said, sqlite3.Error):
        away = getattr(said, "sqlite_errorcode", 0) & 0xFF in BUSY
    else:  # without a code the connection is not there, or was not made
        away = error.connection_invalidated or code in MOMENTARY or (code is not None and code[:2] in TRANSIENT)
        away = away or (code is None and type(said).__name__ in ("OperationalError", "ConnectionTimeout"))
    return (DatabaseAway if away else DatabaseFailed)(f"{place}: {' '.join(str(said).split())}")


@contextmanager
def reading(address: str) -> Iterator[Connection]:
    """For a look from outside of the run: changes nothing, and creates no file. Raises `DatabaseError`."""
    engine = open_engine(address)
    try:
        if (file := file_of(engine)) is not None and not file.is_file():
            raise DatabaseError(f"there is no file {file}")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection
    except (SQLAlchemyError, sqlite3.DatabaseError) as error:
        said = getattr(error, "orig", None) or error
        code = getattr(said, "sqlite_errorcode", 0) & 0xFF  # the higher bits say more of the same
        kind = DatabaseDamaged if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else DatabaseError
        raise kind(redact_text(" ".join(str(said).split()))) from error
    finally:
        engine.dispose()
