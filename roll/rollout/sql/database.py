"""One process's way to the database: a thread of its own, on which all statements run, and news of what others changed.

`sqlite:///file` serves processes of one machine, `postgresql+psycopg://...` those of many.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, Executable, create_engine, event, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from watchfiles import awatch

from roll.configs.redact import redact_text
from roll.errors import DatabaseDamaged, DatabaseError, DatabaseFailed
from roll.rollout.sql.tables import runs

T = TypeVar("T")

Statement = Executable | Callable[[], Executable]
"""One that is not made yet is made on the thread."""

LOOK_S = 1.0
"""A process looks for changes at least this often, for a file system may give no notice of them."""
BUSY_S = 60.0
"""How long a transaction waits for those of others."""
CHANNEL = "roll_groups"


def open_engine(address: str) -> Engine:
    """Raises `DatabaseError`."""
    try:
        url = make_url(address)
        backend = url.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise DatabaseError(f"{backend} is not supported; sqlite:///path and postgresql+psycopg://user@host/name are")
        if backend == "postgresql":
            return create_engine(url, pool_size=2)
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


class Database:
    def __init__(self, address: str) -> None:
        """Raises `DatabaseError`."""
        self._engine = open_engine(address)
        self._file = file_of(self._engine)
        self._inode: int | None = None
        """Of the file, once it is there."""
        self._thread = ThreadPoolExecutor(1, "groups")
        self._open: Connection | None = None
        self._read: Connection | None = None

    async def begin(self, work: Callable[[Connection], T]) -> T:
        """Begins a transaction with `work`, whose result it returns."""
        return await self._call(self._begin, work)

    async def execute(self, work: Callable[[Connection], T]) -> T:
        """`work` within the transaction that is open."""
        return await self._call(lambda: work(self._transaction))

    async def commit(self, statements: Sequence[Statement]) -> None:
        await self._call(self._commit, statements)

    async def rollback(self) -> None:
        await self._call(self._rollback)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """`work` as a transaction of its own."""
        try:
            result = await self.begin(work)
            await self.commit([])
            return result
        except BaseException:
            await self.rollback()
            raise

    async def read(self, work: Callable[[Connection], T]) -> T:
        """`work`, which changes nothing, outside of any transaction."""
        return await self._call(self._reading, work)

    async def beside(self, work: Callable[[], T]) -> T:
        """`work`, which has connections of its own."""
        return await asyncio.to_thread(work)

    async def notices(self) -> AsyncIterator[None]:
        """Returns whenever something may have changed, and every `LOOK_S` seconds."""
        if self._file is None:
            async for _ in self._posted():
                yield
        else:
            names = (self._file.name, f"{self._file.name}-wal")
            async for _ in awatch(
                self._file.parent,
                watch_filter=lambda _, path: Path(path).name in names,
                debounce=20,
                step=5,
                rust_timeout=int(1000 * LOOK_S),
                yield_on_timeout=True,
                recursive=False,
            ):
                yield

    async def close(self) -> None:
        await self._call(self._close)
        self._thread.shutdown()

    async def _posted(self) -> AsyncIterator[None]:
        import psycopg

        url = self._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            while True:
                async for _ in connection.notifies(timeout=LOOK_S, stop_after=1):
                    pass
                yield

    async def _call(self, work: Callable[..., T], *args: object) -> T:
        """A caller that is cancelled waits until the statement is over: the next one finds the connection as it expects it."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        except DBAPIError as error:
            place = self._file or redact_text(str(self._engine.url))
            raise DatabaseFailed(f"{place}: {' '.join(str(error.orig).split())}") from error

    # On the thread.

    @property
    def _transaction(self) -> Connection:
        assert self._open is not None, "no transaction is open"
        return self._open

    def _check_file(self) -> None:
        """Raises `DatabaseFailed` if the file is another one than before: what is written to one that was moved is never read."""
        found = self._file.stat().st_ino if self._file is not None and self._file.exists() else None
        if self._inode not in (None, found):
            raise DatabaseFailed(f"{self._file} was moved, removed or restored while this process had it open: start it again")
        self._inode = found

    def _begin(self, work: Callable[[Connection], T]) -> T:
        if self._open is None:
            self._open = self._engine.connect()
        self._check_file()
        return work(self._open)

    def _commit(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            self._transaction.execute(statement if isinstance(statement, Executable) else statement())
        if self._file is None:
            self._transaction.exec_driver_sql(f"NOTIFY {CHANNEL}")
        self._transaction.commit()

    def _rollback(self) -> None:
        if self._open is not None:
            self._open.rollback()

    def _reading(self, work: Callable[[Connection], T]) -> T:
        if self._read is None:
            self._read = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._check_file()
        return work(self._read)

    def _close(self) -> None:
        for connection in (self._open, self._read):
            if connection is not None:
                connection.close()
        self._open = self._read = None
        self._engine.dispose()


OpenDatabase: TypeAlias = Callable[[str], Database]
"""By its address."""

LAYOUT = 4
"""Number of the present set of tables. A database with others is refused by it."""


def check_layout(connection: Connection) -> None:
    """For who only reads. Raises `ValueError` if the tables are not those that this version reads."""
    if (layout := connection.execute(select(runs.c.layout)).scalar_one()) != LAYOUT:
        raise ValueError(f"its tables have layout {layout}, this version has {LAYOUT}: use its version")
