"""Runs programs in the sandbox, from outside it; and tools that isolate the sandbox as a whole, where they are installed and
chosen: the built-in isolation works inside them. A tool has to start the command that it is given, pass on its open descriptors,
show it Python and `place`, and end it when it is ended itself."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roll.core.errors import SandboxFailed
from roll.graders.sandbox import control_groups, usage
from roll.graders.sandbox.namespaces import visible
from roll.graders.sandbox.system_calls import MACHINES
from roll.graders.sandbox.usage import Limits
from roll.platform.child import end_process, same_imports, start_process

BUILT_IN = "built-in"
Isolation = str | Sequence[str]
"""`BUILT_IN`, or words: a name of `TOOLS` and its program, or a command of the user's own, to which Python's words are added."""
LAUNCH = """
import os, sys
from roll.graders.sandbox import namespaces
namespaces.become(namespaces.NOBODY)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Becomes the tool. A tool that has to be root is no better than the built-in isolation."""


def _bubblewrap(program: str, place: str) -> list[str]:
    shown = [path for path in visible() if Path("/dev") not in path.parents]
    roots = {path.resolve() for path in shown}
    shown += [path for path in map(Path, sys.path) if path.exists() and not roots & {path.resolve(), *path.resolve().parents}]
    links = ((path, os.readlink(path) if path.is_symlink() else "") for path in shown)
    binds = [word for path, to in links for word in (("--symlink", to) if to else ("--ro-bind", str(path))) + (str(path),)]
    fresh = ["--proc", "/proc", "--dev", "/dev", "--dir", "/sys", "--dir", "/tmp"]
    return [program, "--unshare-all", "--die-with-parent", *fresh, *binds, "--bind", place, place, "--"]


TOOLS: dict[str, Callable[[str, str], list[str]]] = {"bubblewrap": _bubblewrap}
_PROGRAMS = {"bubblewrap": "bwrap"}


def checked(isolation: object) -> Isolation:
    """Raises `ValueError` for a value that is no isolation, or one that is not installed."""
    own = isinstance(isolation, list) and bool(isolation) and all(isinstance(word, str) for word in isolation)
    if not own and isolation not in (BUILT_IN, *TOOLS):
        known = ", ".join((BUILT_IN, *TOOLS))
        raise ValueError(f"reward_args.isolation is {isolation!r}; it must be {known}, or the words of a command, as a list")
    assert isinstance(isolation, str | list)
    if isolation == BUILT_IN:
        return BUILT_IN
    named, words = ([isolation], [_PROGRAMS[isolation]]) if isinstance(isolation, str) else ([], isolation)
    if (program := shutil.which(words[0])) is None:
        raise ValueError(f"reward_args.isolation is {isolation!r}, but {words[0]} is not installed here; built-in needs nothing")
    return [*named, program, *words[1:]]  # a grader's process has no PATH


def begin_of(isolation: Isolation, place: str) -> list[str]:
    """Returns the words before Python's; none if it is built in. `place`: the folder that may be written to."""
    if isolation == BUILT_IN:
        return []
    return TOOLS[isolation[0]](isolation[1], place) if isolation[0] in TOOLS else list(isolation)


_FORKER = "from roll.graders.sandbox.forker import main; main(int(sys.argv[1]), sys.argv[2])"
START_S, END_S = 60.0, 5.0
"""Times for the forker to start, and for a killed program to be gone."""
LOOK_S = 0.05
"""Time between two looks at the programs' common use."""


@dataclass(frozen=True, slots=True)
class Program:
    role: str
    """"module:function" that becomes the program."""
    descriptors: Sequence[int]
    """The program's descriptors 0, 1, 3, 4, ...; 2 leads nowhere. They are closed here."""


@dataclass(frozen=True, slots=True)
class Ending:
    output: bytes
    code: int
    """Exit code, or minus the signal."""
    exceeded: str
    """"time", "memory", "files" or "output", if it was ended for that."""


def _refuse_other_systems() -> None:
    if sys.platform != "linux":
        raise SandboxFailed("programs are shut in on Linux only; give reward_args.code_url, a SandboxFusion service")
    if (machine := os.uname().machine) not in MACHINES:
        known = " and ".join(MACHINES)
        raise SandboxFailed(f"system calls are filtered on {known}, not on {machine}; give reward_args.code_url")


class Sandbox:
    """One run at a time."""

    def __init__(self, isolation: Isolation = BUILT_IN) -> None:
        """Raises `SandboxFailed` if programs cannot be isolated at all."""
        _refuse_other_systems()
        self._number, self._loaded, self._loaded_kb = 0, set[str](), 0
        self.stuck = False
        """True if killed programs are still there: results so far hold, but the next run needs another sandbox."""
        self._place, self._lock = usage.new_place(as_nobody=isolation != BUILT_IN)
        self._group: control_groups.ControlGroup | None = None
        self._deleting: list[subprocess.Popen[bytes]] = []
        if left := usage.abandoned():
            self._deleting.append(usage.delete(left))
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            program, arguments = _FORKER, [str(fd), self._place]
            if isolation != BUILT_IN:
                command = [sys.executable, "-P", "-c", f"import sys\n{program}", *arguments]
                program, arguments = LAUNCH, [*begin_of(isolation, self._place), *command]
            self._process = start_process(
                sys.executable, program, arguments, same_imports(), ends_by=signal.SIGTERM, pass_fds=[fd]
            )
        self._connection.settimeout(START_S)
        try:
            state = self._message()
            if "failed" in state:
                raise SandboxFailed(f"programs cannot be started: {state['failed']}")
        except SandboxFailed:
            self.close()
            raise
        self.in_force: list[str] = state["in_force"]
        self.missing: list[str] = state["missing"]
        if isolation != BUILT_IN:
            self.in_force.insert(0, f"isolation: {' '.join(isolation)}")
        if not self.missing:  # programs have a /tmp
            os.rmdir(self._place)
        self._forkers = {*usage.below(self._process.pid)}
        if isolation == BUILT_IN or isolation[0] in TOOLS:  # where a command of the user's starts things is not known
            self._group = control_groups.new([self._process.pid, *self._forkers])
            self.in_force.append(control_groups.IN_FORCE if self._group else control_groups.WATCHED)

    def close(self) -> None:
        self._connection.close()
        end_process(self._process, END_S)
        if self._group is not None:
            self._group.remove()
        self._deleting.append(usage.delete([self._place]))
        for process in self._deleting:
            with contextlib.suppress(subprocess.TimeoutExpired):  # deletion continues, and the next start finishes it
                process.wait(END_S)
        os.close(self._lock)

    def run(self, programs: Sequence[Program], output: int, limits: Limits) -> Ending:
        """Runs the programs side by side until the last one has ended. `output`: the descriptor that they write to, at its other
        end; it is closed."""
        try:
            ending = self._run(programs, output, limits)
            return replace(ending, exceeded="memory") if self._met_bound() else ending
        except SandboxFailed:
            if not self._met_bound():
                raise
            self.stuck = True
            return Ending(b"", -signal.SIGKILL, "memory")
        finally:
            os.close(output)

    def load(self, libraries: Sequence[str]) -> None:
        """Imports modules ahead of the programs that use them, so that these take neither their time nor their memory for it."""
        if not (new := [name for name in libraries if name not in self._loaded]):
            return
        self._loaded |= {*new}
        self._connection.settimeout(START_S)
        self._send({"load": new})
        while "loaded_kb" not in (message := self._message()):
            continue  # an end that came late
        self._loaded_kb = int(message["loaded_kb"])

    def _met_bound(self) -> bool:
        return self._group is not None and self._group.met()

    def _run(self, programs: Sequence[Program], output: int, limits: Limits) -> Ending:
        deadline = time.monotonic() + limits.wall_s
        numbers = self._start_all(programs, limits)
        folders = [f"{self._place}/{number}" for number in numbers if self.missing]
        look = time.monotonic() + LOOK_S
        endings: dict[int, int] = {}
        collected, exceeded = bytearray(), ""
        waiting = select.poll()
        waiting.register(output, select.POLLIN)
        waiting.register(self._connection, select.POLLIN)
        open_ = True
        while not exceeded and (open_ or numbers[-1] not in endings):
            left_s = deadline - time.monotonic()
            ready = {each for each, _ in waiting.poll(max(0.0, min(left_s, LOOK_S)) * 1000)}
            if left_s <= 0:
                exceeded = "time"
            elif time.monotonic() >= look:
                together = usage.exceeded(self._process.pid, self._forkers, folders, limits)
                exceeded = "memory" if self._met_bound() else together
                look = time.monotonic() + LOOK_S
            if self._connection.fileno() in ready:
                self._note(endings)
            if output in ready:
                part = os.read(output, 1 << 16)
                collected += part
                if not part:
                    waiting.unregister(output)
                    open_ = False
                elif len(collected) > limits.output_kb << 10:
                    exceeded = "output"
        self._end([number for number in numbers if number not in endings], endings)
        if folders:
            self._deleting = [process for process in self._deleting if process.poll() is None] + [usage.delete(folders)]
        return Ending(bytes(collected), endings.get(numbers[-1], -signal.SIGKILL), exceeded)

    def _start_all(self, programs: Sequence[Program], limits: Limits) -> list[int]:
        try:
            if self._group is not None:
                self._group.bound(limits, self._loaded_kb << 10)
            return [self._start(program, limits) for program in programs]
        finally:
            for descriptor in {each for program in programs for each in program.descriptors}:
                os.close(descriptor)

    def _start(self, program: Program, limits: Limits) -> int:
        self._number += 1
        message = {"start": self._number, "role": program.role, "limits": asdict(limits)}
        self._send(message, program.descriptors)
        return self._number

    def _end(self, numbers: Sequence[int], endings: dict[int, int]) -> None:
        self._connection.settimeout(END_S)
        for number in numbers:
            self._send({"kill": number})
        deadline = time.monotonic() + END_S
        while any(number not in endings for number in numbers):
            if not select.select([self._connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self.stuck = True
                return
            self._note(endings)

    def _note(self, endings: dict[int, int]) -> None:
        message = self._message()
        if "failed" in message:
            raise SandboxFailed(f"a program could not be started: {message['failed']}")
        endings[message["ended"]] = message["code"]

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._connection, [json.dumps(message).encode()], list(descriptors))
        except OSError as error:
            raise SandboxFailed(f"its forker has ended: {error}") from None

    def _message(self) -> dict[str, Any]:
        try:
            line = self._connection.recv(1 << 16)
        except OSError as error:
            raise SandboxFailed(f"its forker does not answer: {error}") from None
        if not line:
            raise SandboxFailed(f"its forker has ended ({end_process(self._process)})")
        message: dict[str, Any] = json.loads(line)
        return message


def in_memory(content: bytes) -> int:
    """A descriptor of a file with this content, to be read from its start."""
    descriptor = os.memfd_create("given")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
