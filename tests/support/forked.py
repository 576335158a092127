"""Python scripts as forks of one interpreter that has imported, once, what they import: each begins in a moment, where an
interpreter of its own spends seconds on torch and transformers.

    test → server   where the script is, its arguments and environment; a file for its output, a socket for its end
    server → keeper → script    forks; the keeper waits for the script, tells the test its process id and its exit code, and kills
                                it when the test has gone

A driver that starts Ray gets its workers in the same way (ray_worker.py), and vLLM its processes (spawned.py).
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

WARMED = ("transformers.conversion_mapping", "get_checkpoint_conversion_mapping", "qwen2")
"""A function that compiles hundreds of patterns when it is first called, and what it is called with."""
LONGEST = 1 << 17
"""Bytes of a request."""
RAY_WORKER = str(Path(__file__).with_name("ray_worker.py"))
"""Ray joins the name of what begins its workers to its own folder's, and so finds this file."""
SPAWNED = str(Path(__file__).with_name("spawned.py"))
MOST_PASSED = 16
"""Descriptors of a request."""
FORKS = "TESTS_FORK_SERVER"
"""The variable with the address of the server that a process was forked from."""
WHOLE_WORKERS = "TESTS_WHOLE_WORKERS"
"""Set where Ray is to start its workers as it does."""
MADE = b"imports made"
"""What a server tells the process that started it."""
STANDS_FOR = "for "
"""A process of this name, and a process id behind it, is the place of another."""


class Forked:
    """What tests use of `subprocess.Popen`."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.pid = int(end.recv(16))
        self.returncode: int | None = None

    @classmethod
    def asked_of(cls, address: str, request: Mapping[str, object], output: IO[Any], passed: Sequence[int] = ()) -> Forked:
        """`address`: the server's. `passed`: descriptors that the script has, too, under their numbers."""
        end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.connect(address)
            message = json.dumps({"passed": [*passed], **request}).encode()
            socket.send_fds(server, [message], [output.fileno(), theirs.fileno(), *passed])
        return cls(end)

    def poll(self) -> int | None:
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._code(timeout)) is None:
            raise subprocess.TimeoutExpired("forked", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _code(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._end.settimeout(timeout)
            try:
                self.returncode = int(self._end.recv(16))
            except (BlockingIOError, TimeoutError):
                return None
            self._end.close()
        return self.returncode


class Forks:
    """A server, of which any process asks its forks."""

    def __init__(self, address: str) -> None:
        self.address = address

    @property
    def spawning(self) -> str:
        """What multiprocessing is to start in place of an interpreter."""
        return _spawning(self.address)

    def start(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], output: IO[bytes]) -> Forked:
        """Starts `command` as `subprocess.Popen` does: a script, or -m and a module, and its arguments."""
        given = {**environment, FORKS: self.address}
        return Forked.asked_of(self.address, {"command": command, "folder": str(folder), "environment": given}, output)

    def run(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, timeout_s: float = 280.0
    ) -> str:
        """What it printed, which `log` has, too; it has to end well."""
        with log.open("wb") as output:
            process = self.start(command, folder, environment, output)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            error.output = log.read_text(errors="replace")  # which conftest.py shows
            raise
        finally:
            process.kill()
        told = log.read_text()
        assert code == 0, told
        return told


class ForkServer(Forks):
    """The server of the process that starts it, and ends with it."""

    def __init__(self, environment: Mapping[str, str], imports: Sequence[str]) -> None:
        """`imports`: the modules that the scripts find imported."""
        self._folder = tempfile.TemporaryDirectory(prefix="forks-")
        super().__init__(os.path.join(self._folder.name, "server"))
        self._lifeline, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spawning = Path(self.spawning)
        spawning.write_text(f'#!/bin/sh\nexec {sys.executable} -S {SPAWNED} "$@"\n')
        spawning.chmod(0o700)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
            requests.bind(self.address)
            passed = [theirs.fileno(), requests.fileno()]
            command = [sys.executable, __file__, *map(str, passed), *imports]
            self._process = subprocess.Popen(command, env={**environment, FORKS: self.address}, pass_fds=passed)

    def wait_for_imports(self) -> None:
        """Returns when they are made. Requests need not wait for that."""
        if not self._lifeline.recv(len(MADE)):
            raise RuntimeError(f"the fork server ended with exit code {self._process.wait()}")

    def close(self) -> None:
        self._lifeline.close()
        self._process.wait()
        self._folder.cleanup()


def serve(lifeline: socket.socket, requests: socket.socket) -> dict[str, Any]:
    """Returns in the processes of the scripts, with their requests."""
    lifeline.send(MADE)
    while True:
        if lifeline in select.select([lifeline, requests], [], [])[0]:
            sys.exit()
        message, fds, *_ = socket.recv_fds(requests, LONGEST, MOST_PASSED)
        if os.fork() == 0:
            lifeline.close()
            requests.close()
            keep(socket.socket(fileno=fds[1]))
            os.dup2(fds[0], 1)
            os.dup2(fds[0], 2)
            os.close(fds[0])
            request = dict(json.loads(message))
            numbers = request.pop("passed")
            away = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for fd in fds[2:]]
            for fd in fds[2:]:
                os.close(fd)
            for fd, number in zip(away, numbers, strict=True):
                os.dup2(fd, number)
                os.close(fd)
            return request
        for fd in fds:
            os.close(fd)
        while True:  # keepers that have ended
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


def _spawning(address: str) -> str:
    return os.path.join(os.path.dirname(address), "python")


def stands_for(pid: int) -> int | None:
    """The worker whose place the process is."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return None
    return int(name.removeprefix(STANDS_FOR)) if name.startswith(STANDS_FOR) else None


def in_my_place(command: Sequence[str], environment: Mapping[str, str], passed: Sequence[int] = ()) -> int:
    """What another program has started this process for, as a fork of the server that the environment names, to its exit code. It
    is ended when that program has ended."""
    parent = os.getppid()
    request = {"command": [*command], "folder": os.getcwd(), "environment": {**environment}}
    other = Forked.asked_of(environment[FORKS], request, sys.stdout, passed)
    Path("/proc/self/comm").write_text(f"{STANDS_FOR}{other.pid}")  # for who looks for a family
    while os.getppid() == parent:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = other.wait(1.0)
            return code if code >= 0 else 128 - code
    return 1


def keep(end: socket.socket) -> None:
    """Returns in a new process. This one tells of it, and ends after it."""
    with end:
        if (script := os.fork()) == 0:
            return
        end.send(str(script).encode())
        select.select([end, os.pidfd_open(script)], [], [])
        os.kill(script, signal.SIGKILL)  # it is a zombie, or nobody waits for it
        code = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
        with contextlib.suppress(OSError):
            end.send(str(code).encode())
    os._exit(0)


def become(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    """Runs a script as `python script.py` does, or a module as `python -m module` does, or what follows -c; and ends."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if "ray" in sys.modules:
        _with_ray()
    named = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in named if path and path not in sys.path]
    try:
        _run(command, folder, environment)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        _end(1 if isinstance(end.code, str) else end.code or 0)
    _end(0)


def _run(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    if command[0] == "-m":
        sys.argv = list(command[1:])
        sys.path[0] = folder
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        multiprocessing.set_executable(_spawning(environment[FORKS]))
        sys.argv = ["-c", *command[2:]]
        exec(command[1], vars(sys.modules["__main__"]))
    else:
        sys.argv = list(command)
        sys.path[0] = os.path.dirname(command[0])
        runpy.run_path(command[0], run_name="__main__")


def _end(code: int) -> None:
    """As an interpreter ends, but that the objects of two thousand modules are not freed one by one, which would first copy their
    memory: 0.8 s of processor time."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _with_ray() -> None:
    """Ray has read its variables when it was imported, and reads them again."""
    importlib.import_module("ray._raylet").Config.initialize("")
    if WHOLE_WORKERS not in os.environ:
        importlib.import_module("ray._private.ray_constants").__dict__["SETUP_WORKER_FILENAME"] = RAY_WORKER


def _as_a_worker_of_ray() -> None:
    """What Ray reads in a worker when it is loaded, and not again: the driver's job (the first one of every Ray), and the process
    with whose end the worker ends."""
    os.environ |= {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}


if __name__ == "__main__":
    gc.disable()
    _as_a_worker_of_ray()
    for name in sys.argv[3:]:
        importlib.import_module(name)
    module, function, argument = WARMED
    getattr(importlib.import_module(module), function)(argument)
    gc.freeze()  # what was imported stays: no collection in a fork looks at it, and copies its pages
    gc.enable()
    become(**serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3])))
