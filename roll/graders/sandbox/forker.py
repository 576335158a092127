"""The process that starts programs in the sandbox. It holds nothing that a program could use: no test, no secret.

    this process ─ unshare ─▶ forker, the first of its process namespace
                                └─ fork, unshare ─▶ a program, the first of its own: when it ends, all that it started ends

The asker of a program sends one message with the file descriptors that become its 0, 1, 3, 4, ...; it gets a message when the
program has ended. When the asker's side of the connection closes, everything ends.

    asker → forker   {"start": n, "role": "module:function", "limits": {...}} with descriptors, {"kill": n}
    forker → asker   {"in_force": [...], "missing": [...]} or {"failed": why}; then
                     {"ended": n, "code": of waitstatus_to_exitcode}, or with "failed" in its place
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.graders.sandbox import landlock, namespaces, solution, system_calls, usage
from roll.graders.sandbox.usage import Limits

LONGEST = 1 << 16
OTHERS = (2, 4)
"""Processes of a program's user besides those that it starts, as root: itself and a second program; else both forkers, too."""
NICE, MORE_OOM = 10, 900
"""Programs give way to the run, in processor time, and to their forker, too, when memory is short."""
PAGE_KB = os.sysconf("SC_PAGE_SIZE") >> 10
AT_ONCE = 2
"""Programs of one forker: a solution and its tests."""
ALWAYS = (
    "filter: the listed system calls alone (no sockets, no modes, owners or times of files, no priorities), limits on processor"
    " time, memory, processes, files and output, empty environment"
)
NAMESPACES = "namespaces: no other process in sight, read-only root, private /tmp, all ends with the first process"
LANDLOCK = "Landlock: no files but Python's and those of its own folder, no memory of other processes, no signals to them"
USERS = "users: one for each program"
WITHOUT = {
    NAMESPACES: "a program can tell which files exist, and its own are counted 20 times a second, not bounded",
    LANDLOCK: "a program reads what this user can, and writes where this user can",
}
"""Dangers that remain without a protection."""


def main(descriptor: int, place: str) -> None:
    """`place`: the folder for the folders of programs, where they have no /tmp of their own."""
    connection = socket.socket(fileno=descriptor)
    solution.load()
    gc.freeze()  # programs are forks: a collection in one would copy what it looks at
    os.environ.clear()
    os.nice(NICE)
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    in_force, missing = [NAMESPACES, ALWAYS], []
    users = [os.getuid() or namespaces.NOBODY] * AT_ONCE
    try:
        namespaces.isolate()
    except (OSError, KeyError) as error:
        users, held = namespaces.users_of_their_own(AT_ONCE) or (users, [])
        there = {LANDLOCK: landlock.version() > 0, USERS: bool(held)}
        in_force = [ALWAYS, *(layer for layer, found in there.items() if found)]
        missing = [f"{layer}; without: {said}" for layer, said in WITHOUT.items() if not there.get(layer)]
        missing[0] += f" ({error})"
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # when the judge has ended, so has the connection: there is some tidying up
    isolated = not missing
    if os.getuid() == 0 and (closed := namespaces.closed_to_others(isolated)):
        connection.send(json.dumps({"failed": closed}).encode())
        return
    if isolated and (child := os.fork()):
        connection.close()
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    namespaces.end_with_parent(signal.SIGKILL if isolated else signal.SIGTERM)
    connection.send(json.dumps({"in_force": in_force, "missing": missing}).encode())
    Forker(connection, isolated, users, place, processes).serve()
    if not isolated:
        usage.delete([place]).wait()


class Forker:
    def __init__(self, connection: socket.socket, isolated: bool, users: list[int], place: str, processes: int) -> None:
        """`users`: the users that programs become, one each. `processes`: a descriptor of /proc, which no program gets."""
        self._connection, self._isolated, self._free, self._place = connection, isolated, users, place
        self._processes = processes
        self._loaded_kb = [0, 0]
        """Address space and memory of libraries, for which programs do not pay."""
        self._numbers: dict[int, int] = {}
        """Process id -> number of the program."""
        self._users: dict[int, int] = {}
        """Process id -> its user."""
        self._asking: dict[int, tuple[int, int]] = {}
        """Descriptor on which a program's forks ask -> its process id, and the most processes and threads that it may have."""
        self._waiting = select.poll()
        self._counts = not isolated and len({*users}) < len(users)
        self._wake, wakes = os.pipe()
        os.set_blocking(wakes, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes)
        namespaces.adopt_orphans()

    def serve(self) -> None:
        for descriptor in (self._connection.fileno(), self._wake):
            self._waiting.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in self._waiting.poll()}
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, LONGEST)
            self._reap()
            for asked in ready & self._asking.keys():
                session, most = self._asking[asked]
                system_calls.answer_fork(asked, namespaces.threads_of(session) < most)
            if self._connection.fileno() not in ready:
                continue
            line, descriptors = b"", list[int]()
            with contextlib.suppress(ConnectionResetError):  # closed, with messages that nobody has read
                line, descriptors, _, _ = socket.recv_fds(self._connection, LONGEST, 8)
            if not line:
                for pid in self._numbers:
                    self._kill(pid)
                for pid in self._users:
                    self._reap_group(pid)
                return
            message = json.loads(line)
            if "load" in message:
                self._say(loaded_kb=self._load(message["load"]))
            elif "kill" in message:
                for pid in [pid for pid, number in self._numbers.items() if number == message["kill"]]:
                    self._kill(pid)
            else:
                self._start(message, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)

    def _load(self, names: list[str]) -> int:
        """KiB of memory that all loaded libraries have taken."""
        before = self._memory_kb()
        os.environ |= {"HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for name in names:
            known = {*sys.modules}
            try:
                importlib.import_module(name)
            except Exception:  # boundary: it is not installed, say, and who imports it will say so
                for begun in {*sys.modules} - known:
                    del sys.modules[begun]
        gc.freeze()
        os.environ.clear()
        after = self._memory_kb()
        self._loaded_kb = [then + now - first for then, now, first in zip(self._loaded_kb, after, before, strict=True)]
        return self._loaded_kb[1]

    def _memory_kb(self) -> list[int]:
        """Returns the sizes of address space and resident memory."""
        with open(os.open("self/statm", os.O_RDONLY, dir_fd=self._processes)) as file:
            return [int(pages) * PAGE_KB for pages in file.read().split()[:2]]

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> None:
        limits = Limits(**message["limits"])
        limits = replace(limits, memory_mb=limits.memory_mb + (self._loaded_kb[0] >> 10))
        if not self._isolated:
            user, folder = self._free.pop(), f"{self._place}/{message['start']}"
            os.mkdir(folder, 0o700)
            os.chown(folder, user, -1)
            pair = socket.socketpair() if self._counts else None
            others, asks = (None, pair[1]) if pair else (1, None)
            if (pid := os.fork()) == 0:
                self._end_first()
                _become(message["role"], limits, folder, descriptors, user, others, False, asks)
            self._numbers[pid], self._users[pid] = message["start"], user
            if pair is not None:
                self._listen(pid, *pair, limits.processes + 1)
            return
        reading, writing = os.pipe()
        starter = os.fork()
        if starter == 0:
            try:
                self._end_first()
                namespaces.isolate_program(limits.tmp_bytes)
                if (pid := os.fork()) == 0:
                    _become(message["role"], limits, "/tmp", descriptors, self._free[0], OTHERS[os.getuid() != 0], True)
                os.write(writing, str(pid).encode())
            except BaseException as error:  # boundary: this process is a copy, and must not go on as one
                os.write(writing, f"{error}".encode()[:1000])
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(starter, 0)
        answer = os.read(reading, 1000).decode()
        os.close(reading)
        if answer.isdigit():
            self._numbers[int(answer)] = message["start"]
        else:
            self._say(ended=message["start"], failed=answer)

    def _end_first(self) -> None:
        """Has this process, and those that it starts, killed first when memory is short."""
        with contextlib.suppress(OSError):
            os.write(os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=self._processes), str(MORE_OOM).encode())

    def _listen(self, pid: int, ours: socket.socket, theirs: socket.socket, most: int) -> None:
        theirs.close()
        with ours:
            failed, asking, _, _ = socket.recv_fds(ours, LONGEST, 1)
        if not asking:
            self._say(ended=self._numbers[pid], failed=failed.decode())
        for each in asking:
            self._asking[each] = pid, most
            self._waiting.register(each, select.POLLIN)

    def _kill(self, pid: int) -> None:
        """Kills its group too, which where it matters nothing can leave: together, so that nothing that forks outruns it."""
        for end in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                end(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if not self._isolated and ended.si_pid in self._numbers:
                self._kill(ended.si_pid)  # its group; as long as it is not reaped, the number is its own
            pid, status = os.waitpid(ended.si_pid, 0)
            if (number := self._numbers.pop(pid, None)) is None:
                continue
            if not self._isolated:
                self._reap_group(pid)
                self._free.append(self._users.pop(pid))
                for asked in [asked for asked, (session, _) in self._asking.items() if session == pid]:
                    del self._asking[asked]
                    self._waiting.unregister(asked)
                    os.close(asked)
            self._say(ended=number, code=os.waitstatus_to_exitcode(status))

    def _say(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # nobody hears it any more: `serve` is about to find out
            self._connection.send(json.dumps(message).encode())

    def _reap_group(self, pid: int) -> None:
        """Reaps a program's leftovers, which become children of this process where there is no process namespace."""
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-pid, 0)


def _keep_only(descriptors: list[int]) -> None:
    """Makes them the descriptors 0, 1, 3, 4, ...; 2 leads nowhere."""
    null = os.open("/dev/null", os.O_RDWR)
    kept = [os.dup2(each, 100 + i) for i, each in enumerate((*descriptors[:2], null, *descriptors[2:]))]
    for i, each in enumerate(kept):
        os.dup2(each, i)
    os.closerange(len(kept), 256)


def _ask_before_forks(asks: socket.socket) -> None:
    namespaces.give_up_new_rights()
    try:
        socket.send_fds(asks, [b"."], [system_calls.ask_before_forks()])
    except OSError as error:
        asks.send(f"its processes cannot be counted: {error}".encode())
        raise


def _become(
    role: str,
    limits: Limits,
    folder: str,
    descriptors: list[int],
    user: int,
    others: int | None,
    isolated: bool,
    asks: socket.socket | None = None,
) -> None:
    """Runs the program, from its first moment to its end. `asks`: gets its forks' descriptor, where they are counted so."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if asks is not None:
            _ask_before_forks(asks)
        _keep_only(descriptors)
        _shut_in(limits, folder, user, others, isolated)
        module, _, name = role.partition(":")
        getattr(importlib.import_module(module), name)()
        sys.stdout.flush()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else bool(error.code)
    except BaseException:  # boundary: whatever a program ends with, it ends
        pass
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _shut_in(limits: Limits, folder: str, user: int, others: int | None, isolated: bool) -> None:
    """This process, for good."""
    os.chdir(folder)
    os.environ |= {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    version = 0 if isolated else landlock.version()
    rules = landlock.rules_for(Path(folder), namespaces.visible()) if version else None  # as long as all can be opened
    namespaces.become(user)
    namespaces.give_up_rights()
    namespaces.end_with_parent(0 if isolated else signal.SIGKILL)  # a process namespace ends with its first
    if rules is not None:
        landlock.enclose(rules)
    limits.apply(others)
    signals_of = None if isolated or version >= landlock.SIGNALS_FROM else os.getpid()
    system_calls.forbid(signals_of, leaves_group=isolated)
