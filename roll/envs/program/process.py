"""A command of an episode: started without a shell and without this process's secrets, waited for within a limit, and ended with
everything that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.core.configs.program import ProgramConfig
from roll.core.errors import EpisodeFailed, StarterGone
from roll.envs.gateway.server import Gateway
from roll.envs.program.starter import HEARD, READY
from roll.graders.sandbox import usage
from roll.platform.child import end_process, start_process

PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "TZ")
"""Variables that programs need and that are no secrets."""
SHOWN = ("/etc/alternatives", "/etc/ssl/certs")
"""Paths that a program that is shut in can read besides Python and the system's programs."""
TOLD = 800
"""Characters of a program's output that an error repeats, from its end."""
START_S = 120.0
"""Time for a starter's imports; for a command to be shut in."""
PATIENCE_S, PASSES = 5.0, 6
"""Time for a command that is to end; number of attempts."""
_START = """import sys
from roll.envs.program.starter import main
sys.path.remove(sys.argv[2])
main(int(sys.argv[1]), sys.argv[3:])
"""


@dataclass(frozen=True, slots=True)
class Command:
    words: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    log: Path
    """File of its output."""
    is_agent: bool = False


@dataclass(frozen=True, slots=True)
class ProgramEnding:
    code: int | None
    """Exit code, or minus the signal; None if it was ended at its limit."""
    output: str
    """The end of its output."""

    @property
    def how(self) -> str:
        how = f"signal {-self.code}" if self.code is not None and self.code < 0 else f"exit code {self.code}"
        return f"{how}; its output ends with:\n{self.output}" if self.output else f"{how}, without a word"


def base_environment(home: Path) -> dict[str, str]:
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return passed | {"HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}


class Starter:
    """Starts the commands of a tag's episodes."""

    def __init__(self, program: ProgramConfig, place: Path) -> None:
        """`place`: a folder with this project's package, where another interpreter finds it."""
        self._program = program
        self._log = place / f"{secrets.token_hex(4)}.log"
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(START_S)
        given = program.environment if program.preload else {}
        imports = {"PYTHONPATH": os.pathsep.join([str(place), *filter(None, [given.get("PYTHONPATH")])])}
        with theirs, open(self._log, "wb") as output:
            arguments = [str(theirs.fileno()), str(place), *program.preload]
            environment = {**base_environment(place), **given, **imports}
            python = (program.python if program.preload else None) or sys.executable
            self._process = start_process(python, _START, arguments, environment, output=output, pass_fds=[theirs.fileno()])
        self._gone = False
        self._ready = asyncio.ensure_future(asyncio.to_thread(self._connection.recv, len(READY)))

    @property
    def lives(self) -> bool:
        return not self._gone and self._process.poll() is None

    async def close(self) -> None:
        """Lets running commands go on until nobody waits for them. A command that has lost its keeper ends first."""
        patience_s = PATIENCE_S if self._ready.done() else 0.0
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(end_process, self._process, patience_s)
        with contextlib.suppress(OSError):
            await self._ready
        self._connection.close()

    async def run(
        self, command: Command, limit_s: float, interrupted_by: asyncio.Future[None] | None = None, gateway: Gateway | None = None
    ) -> ProgramEnding:
        """`interrupted_by`: when it is done the command is ended, too; what it raises is raised here. `gateway`: what a command
        that is shut in may reach. Raises `EpisodeFailed` if it cannot be started, `StarterGone` if this starter starts nothing
        any more."""
        ours, server = await self._begun(command, gateway)
        reader, writer = await asyncio.open_connection(sock=ours)
        ending = asyncio.ensure_future(reader.read())
        try:
            waited: set[asyncio.Future[Any]] = {ending} if interrupted_by is None else {ending, interrupted_by}
            done, _ = await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if interrupted_by is not None and interrupted_by in done:
                interrupted_by.result()
        finally:
            writer.write_eof()
            told = await self._last_words(ending)
            writer.close()
            if server is not None:
                server.close()
        if told is None:
            raise self._no_more("killed")
        said = json.loads(told or b"{}")
        if "failed" in said:
            raise EpisodeFailed("setup", f"{command.words[0]} cannot be started: {said['failed']}")
        code = said.get("code", -signal.SIGKILL)  # a keeper that was killed says nothing
        return ProgramEnding(code if done else None, await asyncio.to_thread(tail, command.log))

    def _no_more(self, why: object) -> StarterGone:
        self._gone = True
        return StarterGone("setup", f"what starts programs has ended ({why}): {tail(self._log)}")

    async def _last_words(self, ending: asyncio.Future[bytes]) -> bytes | None:
        """Returns the last words of a keeper, which a program may have stopped; None if nobody has read the request."""
        for _ in range(PASSES):
            with contextlib.suppress(TimeoutError):
                try:
                    return await asyncio.wait_for(asyncio.shield(ending), PATIENCE_S)
                except ConnectionResetError:  # the other end was closed with the request in it
                    return None
            for each in usage.below(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGCONT)
        return b""

    async def _begun(self, command: Command, gateway: Gateway | None) -> tuple[socket.socket, asyncio.Server | None]:
        ours, theirs = socket.socketpair()
        ours.settimeout(START_S)
        try:
            with theirs, open(command.log, "wb") as output:
                if await asyncio.shield(self._ready) != READY:
                    raise EpisodeFailed("setup", f"what starts programs has ended: {tail(self._log)}")
                descriptors = [theirs.fileno(), output.fileno()]
                await asyncio.to_thread(socket.send_fds, self._connection, [READY], descriptors)
            await asyncio.to_thread(ours.sendall, json.dumps(self._request(command, gateway)).encode() + b"\n")
            return ours, None if gateway is None else await _serve(ours, gateway)
        except OSError as error:
            ours.close()
            raise self._no_more(error) from error
        except BaseException:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)  # a thread may still be reading
            ours.close()
            raise

    def _request(self, command: Command, gateway: Gateway | None) -> dict[str, object]:
        shut_in = None
        if self._program.isolated:
            python = Path(shutil.which(self._program.python or sys.executable) or sys.executable)
            pythons = [each.parents[1] for each in (python, python.resolve())]
            readable = [*pythons, *SHOWN, *self._program.readable, command.log.parent]
            writable = [command.folder, command.log.parent / "home"]
            port = 0 if gateway is None else gateway.port
            shut_in = {"readable": [*map(str, readable)], "writable": [*map(str, writable)], "port": port}
        inside = command.is_agent and bool(self._program.preload)
        words, environment = list(command.words), dict(command.environment)
        return {"words": words, "folder": str(command.folder), "environment": environment, "inside": inside, "shut_in": shut_in}


async def _serve(ours: socket.socket, gateway: Gateway) -> asyncio.Server:
    """Raises `EpisodeFailed` and `OSError`."""
    said, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 1 << 12, 1)
    if said != HEARD:
        why = json.loads(said or b"{}").get("failed", "what keeps it has ended")
        raise EpisodeFailed("setup", f"the agent cannot be shut in: {why}")
    return await gateway.serve(socket.socket(fileno=descriptors[0]))


def tail(log: Path) -> str:
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * TOLD))
        return file.read().decode(errors="replace")[-TOLD:].strip()
    return ""
