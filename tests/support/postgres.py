"""A PostgreSQL server of the tests' own, where this machine has one to start."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

USER = "postgres"
"""The server refuses to run as root; Debian's packages make this user."""


def missing() -> str:
    """Why there is no server to start; empty if there is one."""
    if _program("initdb") is None:
        return "needs PostgreSQL's server programs (Debian: apt install postgresql)"
    if os.geteuid() == 0 and USER not in {user.pw_name for user in pwd.getpwall()}:
        return f"PostgreSQL does not run as root, and there is no user {USER}"
    return ""


@contextlib.contextmanager
def server(durable: bool = False) -> Iterator[str]:
    """The address of a server whose databases are gone afterwards, without the name of a database. `durable`: what is committed
    would outlive a loss of power."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        data = Path(name) / "data"
        data.mkdir()
        options: dict[str, object] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True, "cwd": "/"}
        if os.geteuid() == 0:
            Path(name).chmod(0o755)
            shutil.chown(data, USER)
            options["user"] = USER
        subprocess.run([_program("initdb"), "-D", data, "-A", "trust", "-U", "roll", "--no-sync"], **options)
        settings = (
            f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c fsync={'on' if durable else 'off'}"
        )
        control = [_program("pg_ctl"), "-D", data, "-w", "-l", data / "log"]
        subprocess.run([*control, "-o", settings, "start"], **options)
        try:
            yield f"postgresql+psycopg://roll@127.0.0.1:{port}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **options)


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)
