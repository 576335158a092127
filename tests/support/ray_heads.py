"""A Ray cluster that others have started, on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from roll.platform.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


@contextlib.contextmanager
def a_head(*code: Path, cpus: int = 2) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """The process of a head that asks for a token, and the environment of those who join it. `code`: folders of their modules."""
    folder, port = tempfile.mkdtemp(prefix="head"), free_port()
    (Path(folder) / ".ray").mkdir()
    (Path(folder) / ".ray/auth_token").write_text(secrets.token_hex(32))
    unset = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    own = {name: value for name, value in os.environ.items() if name not in unset} | {"HOME": folder}
    options = f"--head --block --port={port} --temp-dir={folder}/t --num-cpus={cpus}".split()
    options += ["--include-dashboard=false", "--disable-usage-stats"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
    process = subprocess.Popen(command, env=own, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    paths = os.pathsep.join(map(str, (*code, ROOT)))
    try:
        yield process, own | {"RAY_ADDRESS": f"127.0.0.1:{port}", "PYTHONPATH": paths}
    finally:
        for pid in family(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
