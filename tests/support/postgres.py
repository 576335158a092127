"""A PostgreSQL server of the tests' own, where this machine has one to start."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

USER = "postgres"
"""The server refuses to run as root; Debian's packages make this user."""


def missing() -> str:
    """Why there is no server to start; empty if there is one."""
    if _program("initdb") is None:
        return "needs PostgreSQL's server programs (Debian: apt install postgresql)"
    if os.geteuid() == 0 and USER not in {user.pw_name for user in pwd.getpwall()}:
        return f"PostgreSQL does not run as root, and there is no user {USER}"
    return ""


class Server:
    """Its databases are gone when the folder is."""

    def __init__(self, folder: Path, address: str = "127.0.0.1", port: int = 0, **settings: object) -> None:
        """Port 0: one of this machine's, for this machine alone."""
        self.data, self.port, self.address = folder / "data", port or _free_port(), address
        self._settings = {"max_connections": 100, "fsync": "off", "listen_addresses": "*" if port else address, **settings}
        self._options: dict[str, object] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True, "cwd": "/"}
        if os.geteuid() == 0:
            self._options["user"] = USER

    @property
    def url(self) -> str:
        """Without the name of a database."""
        return f"postgresql+psycopg://roll@{self.address}:{self.port}"

    def make(self) -> None:
        self._make_folder()
        self._run([_program("initdb"), "-D", self.data, "-A", "trust", "-U", "roll", "--no-sync"], **self._options)
        with (self.own_folder / "pg_hba.conf").open("a") as file:
            file.write("host all all all trust\nhost replication all all trust\n")

    def copy(self, primary: Server) -> None:
        """It becomes a standby of `primary`, which runs."""
        self._make_folder()
        told = ["-h", primary.address, "-p", str(primary.port), "-U", "roll", "-D", self.data, "-R", "-X", "stream", "--no-sync"]
        self._run([_program("pg_basebackup"), *told, "-c", "fast"], **self._options)

    def start(self) -> None:
        settings = {"port": self.port, "unix_socket_directories": self.data, **self._settings}
        self._control("-o", " ".join(f"-c {name}={value}" for name, value in settings.items()), "start")

    def stop(self, mode: str = "fast") -> None:
        self._control("-m", mode, "stop")

    def promote(self) -> None:
        self._control("promote")

    @property
    def own_folder(self) -> Path:
        """`data`, as this process sees it."""
        return self.data

    def _make_folder(self) -> None:
        self.own_folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            self.own_folder.parent.chmod(0o755)
            shutil.chown(self.own_folder, USER)

    def _run(self, command: Sequence[object], **options: Any) -> None:
        subprocess.run([str(each) for each in command], **options)

    def _control(self, *what: str) -> None:
        self._run([_program("pg_ctl"), "-D", self.data, "-w", "-l", self.data / "log", *what], **self._options)


@contextlib.contextmanager
def running(**settings: object) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as name:
        made = Server(Path(name), **settings)
        made.make()
        made.start()
        try:
            yield made
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # the test may have stopped it
                made.stop("immediate")


@contextlib.contextmanager
def server(durable: bool = False) -> Iterator[str]:
    """The address of a server whose databases are gone afterwards, without the name of a database. `durable`: what is committed
    would outlive a loss of power."""
    with running(fsync="on" if durable else "off") as made:
        yield made.url


def make_database(url: str, name: str) -> str:
    """The address of a new database."""
    import psycopg

    with psycopg.connect(f"{url}/postgres".replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{url}/{name}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)
