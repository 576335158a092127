"""The process that starts the commands of episodes, and what it becomes: one that keeps a command, and the command itself.

    coordinator ─ start ─▶ starter, which may have imported what programs import
                             └─ fork ─▶ keeper of one command, which ends with it all that it has started
                                          └─ fork ─▶ the command: another program, or a script in this interpreter

Keepers are the parents of all orphans below them, and hear when the coordinator has ended: whatever a command starts, and however
it hides, ends with the command and with the coordinator (on Linux). Other interpreters run this file, too: it needs the standard
library.

    asker → starter   a line to speak over, and a file for what the command prints, as descriptors
    asker → keeper    over it, {"words", "folder", "environment", "inside", "shut_in": null or {...}}; whose end is its, too
    keeper → asker    where the command is shut in and may ask: the socket on which it is heard; last {"code"} or {"failed"}
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import platform
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from roll.graders.sandbox import namespaces, system_calls, usage

READY = b"ready"
HEARD = b"heard"
FAILED = 1
MOST_DESCRIPTORS = 1 << 16
STRAYS_S = 4.0
"""Time for killed processes to end, before this process does."""
TMP_BYTES = 64 << 20
"""Size of the /tmp of a program that is shut in, besides TMPDIR."""


def main(descriptor: int, preload: Sequence[str]) -> None:
    """A starter's whole life. `preload`: modules that are imported once for all scripts."""
    asker = socket.socket(fileno=descriptor)
    asker.set_inheritable(False)
    gc.disable()
    for name in preload:
        importlib.import_module(name)
    if preload:
        _make_ready()
    gc.freeze()  # a collection in a fork would look at what was imported, and copy its pages
    gc.enable()
    woken = _woken_by_children()
    keepers: set[int] = set()
    asker.send(READY)
    while True:
        ready = _ready(asker, woken)
        if woken in ready:
            _reap(keepers, woken)
        if asker.fileno() in ready:
            line, descriptors, _, _ = socket.recv_fds(asker, len(READY), 2)
            if not line:
                _end_strays(keepers, woken)
                return
            if (keeper := os.fork()) == 0:
                asker.close()
                _keep(*descriptors)
            keepers.add(keeper)
            for each in descriptors:
                os.close(each)


def _make_ready() -> None:
    """Does once the common work of all scripts' forks. They may have another package of this project's name, or none."""
    importlib.import_module("pkgutil")  # at the start of a script
    importlib.import_module("encodings.idna")  # at its first connection
    platform.platform()  # clients tell it, and it starts a process
    for name in [name for name in sys.modules if name.partition(".")[0] == "roll"]:
        del sys.modules[name]
    sys.meta_path[:] = [each for each in sys.meta_path if not getattr(each, "__module__", "").startswith("roll.")]


def _ready(asker: socket.socket, woken: int) -> list[int]:
    return select.select([asker.fileno(), woken], [], [])[0]


def _woken_by_children() -> int:
    """A descriptor that can be read when a child has ended. Orphans below this process are its children from now on."""
    if sys.platform == "linux":
        namespaces.adopt_orphans()
    woken, wakes = os.pipe()
    for each in (woken, wakes):
        os.set_blocking(each, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    return woken


def _reap(keepers: set[int], woken: int) -> bool:
    """If a program has killed its keeper, it ends here: a child that is no keeper has lost its own. What it starts meanwhile is a
    child, too, when its parent has ended, of which this process hears. Returns whether there was one."""
    with contextlib.suppress(BlockingIOError):
        os.read(woken, 1 << 10)
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            keepers.discard(ended)
    strays = {*usage.children(os.getpid())} - keepers
    for stray in strays:
        for each in (stray, *usage.below(stray)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    return bool(strays)


def _end_strays(keepers: set[int], woken: int) -> None:
    """Returns when there is none left, or in a while: one may wait for a disk, and ends then."""
    deadline = time.monotonic() + STRAYS_S
    while _reap(keepers, woken) and (left := deadline - time.monotonic()) > 0:
        select.select([woken], [], [], left)


def _keep(line: int, log: int) -> NoReturn:
    """A keeper's whole life."""
    os.setsid()  # whatever ends the starter, this goes on until its own line ends
    with socket.socket(fileno=line) as asker:
        said: dict[str, object] = {}
        try:
            with asker.makefile("rb") as given:
                request = json.loads(given.readline())
            said = {"code": _kept(asker, log, request)}
        except (OSError, ValueError, KeyError) as error:
            said = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            with contextlib.suppress(OSError):
                asker.send(json.dumps(said).encode())
            os._exit(0)


def _kept(asker: socket.socket, log: int, request: dict[str, Any]) -> int:
    """The exit code, or minus the signal, when the command and all below it have ended."""
    woken, shut_in = _woken_by_children(), request["shut_in"]
    if shut_in is not None:
        _shut_in(asker, shut_in)
    if (command := os.fork()) == 0:
        asker.close()
        _become(log, request) if shut_in is None else _begin_alone(log, request)
    code = None
    while code is None and asker.fileno() not in _ready(asker, woken):
        with contextlib.suppress(BlockingIOError, ChildProcessError):
            os.read(woken, 1 << 10)
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                code = os.waitstatus_to_exitcode(ended[1]) if ended[0] == command else code
    _end_all(command)
    return -signal.SIGKILL if code is None else code


def _end_all(command: int) -> None:
    """Kills again and again: a killed process may have started another meanwhile."""
    for end in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(command, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            for each in usage.below(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0] != 0:  # a look at all of them for each of them would take hours
                pass


def _shut_in(asker: socket.socket, given: Mapping[str, Any]) -> None:
    readable, writable = ([Path(each) for each in given[name]] for name in ("readable", "writable"))
    namespaces.isolate(readable, writable, TMP_BYTES)
    if given["port"]:
        with namespaces.only_listener(given["port"]) as listener:
            socket.send_fds(asker, [HEARD], [listener.fileno()])


def _begin_alone(log: int, request: dict[str, Any]) -> NoReturn:
    """Becomes the first of a process namespace, which ends with it: it reaps the programs' leftovers."""
    namespaces.end_with_parent(signal.SIGKILL)
    if (command := os.fork()) == 0:
        _become(log, request)
    while True:
        ended, status = os.wait()
        if ended == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _become(log: int, request: dict[str, Any]) -> NoReturn:
    """The command, from its first moment to its end."""
    code = FAILED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for given, number in ((null, 0), (log, 1), (log, 2)):
            os.dup2(given, number)
        os.closerange(3, MOST_DESCRIPTORS)
        os.chdir(request["folder"])
        if sys.platform == "linux":
            namespaces.end_with_parent(signal.SIGKILL)
        if request["shut_in"] is not None:
            namespaces.become(namespaces.NOBODY)
            namespaces.give_up_rights()
            system_calls.forbid(agent=True)
        words, environment = request["words"], request["environment"]
        code = _run_script(words[1:], environment) if request["inside"] else _execute(words, environment)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # boundary: whatever a script ends with, it ends
        sys.excepthook(*sys.exc_info())
    finally:
        _end(code)


def _execute(words: list[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        sys.exit(f"{words[0]} cannot be started: {error.strerror}")


def _run_script(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a script as an interpreter of its own would, but for earlier imports."""
    os.environ.clear()
    os.environ.update(environment)
    if numpy := sys.modules.get("numpy"):  # as Python's own random numbers are, which differ in every fork
        numpy.random.seed()
    if words[0] == "-m":
        sys.argv, sys.path[:0] = list(words[1:]), [os.getcwd()]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = list(words), [os.path.dirname(os.path.abspath(words[0]))]
        runpy.run_path(words[0], run_name="__main__")
    return 0


def _end(code: int) -> NoReturn:
    """Ends as an interpreter does, but without freeing modules one by one, which would first copy their memory."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
