"""One process's way to the database: a thread of its own, on which all statements run, and news of others' changes."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, TypeVar

from sqlalchemy import Connection, Executable, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from watchfiles import awatch

from roll.core.configs.redact import redact_text
from roll.core.errors import DatabaseAway, DatabaseFailed
from roll.topologies.sql.connecting import Limits, arguments_of, failed, file_of, open_engine
from roll.topologies.sql.tables import runs

T = TypeVar("T")

LOOK_S = 1.0
"""A process looks for changes at least this often, for a file system may give no notice of them."""
CHANNEL = "roll_groups"


class Database:
    def __init__(self, address: str, member_timeout: float) -> None:
        """Raises `DatabaseError`."""
        self.limits = Limits.below(member_timeout)
        self._engine = open_engine(address, self.limits, short=True)
        self._file = file_of(self._engine)
        self._place = self._file or redact_text(str(self._engine.url))
        self._inode: int | None = None
        """The file's inode, once it exists."""
        self._thread = ThreadPoolExecutor(1, "groups")
        self._turn = asyncio.Lock()
        """Serves the thread's users one after the other."""
        self._open: Connection | None = None
        self._read: Connection | None = None
        self._sockets: list[int] = []
        """Sockets of the connections."""
        self._closing = threading.Lock()
        """Guards the sockets, whose numbers others may have afterwards."""

    async def begin(self, work: Callable[[Connection], T]) -> T:
        """Begins a transaction with `work`, whose result it returns."""
        return await self._call(self._begin, work)

    async def execute(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` within the open transaction."""
        return await self._call(lambda: work(self._transaction))

    async def commit(self, statements: Sequence[Executable]) -> None:
        await self._call(self._commit, statements)

    async def rollback(self) -> None:
        await self._call(self._rollback)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` as a transaction of its own."""
        try:
            result = await self.begin(work)
            await self.commit([])
            return result
        except BaseException:
            await self.rollback()
            raise

    async def outside(self, work: Callable[[Connection], T], much: bool = False) -> T:
        """Runs `work`, each statement by itself: it holds nothing that others wait for. `much`: many bytes, perhaps over a slow
        link."""
        return await self._call(self._outside, work, patience=self.limits.statement if much else None)

    async def beside(self, work: Callable[[], T]) -> T:
        """Runs `work`, which has connections of its own."""
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
        """Yields at each notice, and every `LOOK_S` seconds: without a connection for notices, changes are only learnt later."""
        import psycopg

        while True:
            with suppress(psycopg.Error, OSError, TimeoutError):
                async with asyncio.timeout(self.limits.patience):
                    connection = await psycopg.AsyncConnection.connect(**arguments_of(self._engine, self.limits), autocommit=True)
                    await connection.execute(f"LISTEN {CHANNEL}")
                async with connection:
                    while True:
                        async for _ in connection.notifies(timeout=LOOK_S, stop_after=1):
                            pass
                        yield
            yield
            await asyncio.sleep(LOOK_S)

    async def _call(self, work: Callable[..., T], *args: object, patience: float | None = None) -> T:
        """A caller that is cancelled waits until the statement is over: the next one finds the connection as it expects it.
        `patience`: seconds; None: the usual ones. Raises `DatabaseAway`, `DatabaseFailed`."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._thread, self._guarded, work, *args)
            watch = loop.call_later(patience or self.limits.patience, self._hang_up) if self._file is None else None
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                await asyncio.wait([future])
                raise
            finally:
                if watch is not None:
                    watch.cancel()

    def _hang_up(self) -> None:
        """Shuts the sockets down: the server is silent, and the thread's call shall fail now."""
        with self._closing:
            for descriptor in self._sockets:
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

    # On the thread.

    def _guarded(self, work: Callable[..., T], *args: object) -> T:
        try:
            return work(*args)
        except DBAPIError as error:
            found = failed(self._place, error)
            if isinstance(found, DatabaseAway) and self._file is None:
                self._let_go()
            raise found from error

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        if self._file is None:
            self._sockets.append(connection.connection.driver_connection.fileno())  # type: ignore[union-attr]
        return connection

    def _let_go(self) -> None:
        """Drops the connections after an error: the next call has new ones."""
        with self._closing:
            self._sockets.clear()
            for connection in filter(None, (self._open, self._read)):
                with suppress(SQLAlchemyError):
                    connection.invalidate()
                    connection.close()
        self._open = self._read = None

    @property
    def _transaction(self) -> Connection:
        assert self._open is not None, "no transaction is open"
        return self._open

    def _check_file(self) -> None:
        """Raises `DatabaseFailed` if the file is another one than before: rows written to a moved file are never read."""
        found = self._file.stat().st_ino if self._file is not None and self._file.exists() else None
        if self._inode not in (None, found):
            raise DatabaseFailed(f"{self._file} was moved, removed or restored while this process had it open: start it again")
        self._inode = found

    def _begin(self, work: Callable[[Connection], T]) -> T:
        if self._open is None:
            self._open = self._connect()
        self._check_file()
        return work(self._open)

    def _commit(self, statements: Sequence[Executable]) -> None:
        for statement in statements:
            self._transaction.execute(statement)
        if self._file is None:
            self._transaction.exec_driver_sql(f"NOTIFY {CHANNEL}")
        self._transaction.commit()

    def _rollback(self) -> None:
        """Rolls back, if the connection is there; of a lost one the server does it."""
        try:
            if self._open is not None:
                self._open.rollback()
        except DBAPIError:
            self._let_go()

    def _outside(self, work: Callable[[Connection], T]) -> T:
        if self._read is None:
            self._read = self._connect().execution_options(isolation_level="AUTOCOMMIT")
        self._check_file()
        return work(self._read)

    def _close(self) -> None:
        for connection in filter(None, (self._open, self._read)):
            connection.close()
        self._open = self._read = None
        self._engine.dispose()


OpenDatabase: TypeAlias = Callable[[str, float], Database]
"""By its address, and `member_timeout`."""

LAYOUT = 5
"""Number of the present set of tables. A database with others is refused by it."""


def check_layout(connection: Connection) -> None:
    """Checks the tables for a mere reader. Raises `ValueError` if they are not those that this version reads."""
    if (layout := connection.execute(select(runs.c.layout)).scalar_one()) != LAYOUT:
        raise ValueError(f"its tables have layout {layout}, this version has {LAYOUT}: use its version")
