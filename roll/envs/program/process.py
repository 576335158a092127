"""A command of an episode: started without a shell and without this process's secrets, waited for within a limit, and ended with
everything that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.distributed.child import end_process, start_process
from roll.distributed.user_code import in_thread

EPISODE = "ROLL_EPISODE"
"""The variable by which processes of an episode are known, wherever they are in the tree of processes."""
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "TZ")
"""Variables that programs need and that are no secrets."""
TOLD = 800
"""Characters of a program's output that an error repeats, from its end."""
_BEGIN = """import os
os.chdir(sys.argv[1])
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error: sys.exit(f"{sys.argv[2]} cannot be started: {error.strerror}")
"""
PASSES = 5


@dataclass(frozen=True, slots=True)
class Ending:
    code: int | None
    """Exit code, or minus the signal; None if it was ended at its limit."""
    output: str
    """The end of what it has printed."""

    @property
    def how(self) -> str:
        how = f"signal {-self.code}" if self.code is not None and self.code < 0 else f"exit code {self.code}"
        return f"{how}; its output ends with:\n{self.output}" if self.output else f"{how}, without a word"


def base_environment(home: Path, episode: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return passed | {"HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8", EPISODE: episode}


async def run_command(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    limit_s: float,
    interrupted_by: asyncio.Future[None] | None = None,
) -> Ending:
    """`log`: file that takes what is printed. `interrupted_by`: what this raises ends the command, too, and is raised here."""
    with open(log, "wb") as output:
        process = start_process(sys.executable, _BEGIN, [str(folder), *words], environment, output=output)
    exited = asyncio.wrap_future(in_thread("program", process.wait).outcome)
    try:
        waited = {exited} if interrupted_by is None else {exited, interrupted_by}
        done, _ = await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if interrupted_by is not None and interrupted_by in done:
            interrupted_by.result()
    finally:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(end_all, process, environment[EPISODE])))
    return Ending(process.returncode if done else None, await asyncio.to_thread(tail, log))


def end_all(process: subprocess.Popen[bytes], episode: str) -> None:
    """Kills the process, its group, and what has left the group but not the episode."""
    end_process(process)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for _ in range(PASSES):  # what is killed may have started another meanwhile
        if not (left := processes_of(episode)):
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_of(episode: str) -> list[int]:
    """Ids of the living processes of an episode; on Linux. Its name is no other's, and is part of HOME, which is handed on by who
    starts a process with little else: clients of MCP servers do."""
    mark, found = episode.encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read():
                    found.append(int(name))
    return found


def tail(log: Path) -> str:
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * TOLD))
        return file.read().decode(errors="replace")[-TOLD:].strip()
    return ""
