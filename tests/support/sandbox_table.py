"""What hostile programs earn, reach and harm in one mode of the code sandbox: a program that prints one line of JSON.

    python sandbox_table.py FOLDER [--user N] [--no-namespaces] [--isolation NAME|COMMAND] [--group CONTROL_GROUP]

Beside each hostile program an honest one runs, in another sandbox of the same worker. Root can become each user. Namespaces are
forbidden as a machine does it, by the limit on them, in a user namespace of this process's own; where Python lies below a folder
that its owner alone may enter, that folder is shown without its lock, in a mount namespace of this process's own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from itertools import cycle, product
from pathlib import Path
from typing import Any

import hostile_programs as programs
from hostile_ambushes import reaching, speaking, staying, turning

from roll.core.data.sample import Prompt, Sample
from roll.graders.code_rule import CodeSandboxRewardWorker
from roll.graders.sandbox.namespaces import visible

NEW_USERS, NEW_MOUNTS = 0x10000000, 0x20000
ANSWER = 8731
PRINTED = [{"stdin": "8", "expected_stdout": f"right {ANSWER}"}]
FORMS: list[Any] = [PRINTED, {"fn_name": "f", "inputs": [[8]], "outputs": [ANSWER]}, [f"assert f(8) == {ANSWER}"]]
HONEST = f"""
import threading, time
for i in range(10):
    thread = threading.Thread(target=time.sleep, args=(0.005,)); thread.start(); thread.join()
print('right', {ANSWER})
"""
"""Needs a thread again and again, for as long as a neighbour may be at its worst."""
CONFIG: dict[str, Any] = {"timeout_s": 3.0, "max_concurrency": 2}
LIMITS = {"cpu_s": 1, "memory_mb": 512}


@dataclass
class Row:
    programs: int = 0
    earned: list[str] = field(default_factory=list)
    """Programs that got a reward other than 0."""
    unjudged: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    """Programs after which a file, a folder or a process of the judge's user was not as before, or somebody had called."""
    harmed: list[str] = field(default_factory=list)
    """Programs beside which an honest one did not earn its 1."""
    left: list[str] = field(default_factory=list)
    """What was in the folder for temporary files afterwards, and not before."""
    in_force: list[str] = field(default_factory=list)


def sample(source: str, tests: Any) -> Sample:
    prompt = Prompt("code/0/1", [1], "?", "code", "code", "", {"test_cases": tests})
    return Sample(prompt, 0, [2], [0.0], [], "stop", response_text=f"```python\n{source}\n```")


def state_of(secret: Path, bystander: int) -> list[Any]:
    seen = [
        (each.stat().st_mode, each.stat().st_mtime_ns, each.stat().st_uid, os.listxattr(each)) for each in (secret, secret.parent)
    ]
    limits = Path(f"/proc/{bystander}/limits").read_text()
    nice, affinity = os.getpriority(os.PRIO_PROCESS, bystander), os.sched_getaffinity(bystander)
    process = [limits, nice, affinity, os.sched_getscheduler(bystander), running(bystander)]
    return [seen, secret.read_text(), sorted(os.listdir(secret.parent)), process]


def running(process: int) -> str:
    """ "S" for one that sleeps, as the bystander does; "T" if it was stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


async def fill(row: Row, secret: Path, listener: socket.socket, bystander: int, arguments: dict[str, Any]) -> None:
    port = listener.getsockname()[1]
    one_by_one = (programs.forged, programs.leaving, programs.deceiving, programs.answering, programs.greedy, programs.endless)
    texts = [*programs.escaping(secret, port), *programs.touching(secret, bystander), *programs.harming()]
    texts = [*(text for each in one_by_one for text in each()), *texts]
    texts += [*reaching(secret), *staying()]
    given = [*zip(texts, cycle(FORMS), strict=False), *product([*turning(), *speaking()], FORMS)]
    worker = CodeSandboxRewardWorker({**CONFIG, "reward_args": arguments})
    await worker.start()
    try:
        row.in_force = (await worker._pool.run({"isolation": worker._isolation}))["in_force"]
        before = state_of(secret, bystander)
        for text, form in given:
            result, honest = await worker.compute_rewards([sample(text, form), sample(HONEST, PRINTED)])
            row.programs += 1
            if result.error is not None:
                row.unjudged.append(f"{result.error}: {text}")
            elif result.value != 0.0:
                row.earned.append(text)
            if honest.value != 1.0:
                row.harmed.append(f"{honest}: {text}")
            if (now := state_of(secret, bystander)) != before or called(listener):
                row.reached.append(text)
                before = now
    finally:
        await worker.close()


async def left(folder: Path, before: set[Path]) -> list[str]:
    """What is still there after a while: who deletes is not waited for."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while {*folder.iterdir()} - before:
                await asyncio.sleep(0.02)
    return [str(path) for path in {*folder.iterdir()} - before]


def called(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def enter(user: int, no_namespaces: bool, held: Path) -> None:
    """Makes of this process, which is root's, one of `user`, where namespaces may be forbidden; what it starts is so, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    reading, writing = os.pipe()
    if (mapping := os.fork()) == 0:
        os.read(reading, 1)
        if no_namespaces:
            for kind in ("uid", "gid"):
                Path(f"/proc/{os.getppid()}/{kind}_map").write_text("0 0 65536")
        os._exit(0)
    if libc.unshare(NEW_MOUNTS | (NEW_USERS if no_namespaces else 0)) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    os.write(writing, b".")
    if os.waitpid(mapping, 0)[1] != 0:
        raise OSError("users cannot be mapped")
    os.close(reading)
    os.close(writing)
    if no_namespaces:
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for path in {path.resolve() for path in visible()}:
        for folder in path.parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                _unlock(folder, path, held)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _unlock(folder: Path, path: Path, held: Path) -> None:
    """`folder` has `path` in it, and nothing else, and all may enter it."""
    subprocess.run(["mount", "--rbind", path, held], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder], check=True)
    path.mkdir(parents=True)
    subprocess.run(["mount", "--rbind", held, path], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--user", type=int)
    parser.add_argument("--no-namespaces", action="store_true")
    parser.add_argument("--isolation", default="built-in")
    parser.add_argument("--group", type=Path)
    options = parser.parse_args()
    isolation = options.isolation.split() if " " in options.isolation else options.isolation
    if options.user is not None:
        held = options.folder / "held"
        held.mkdir()
        for name in ("temporary", "own"):
            (options.folder / name).mkdir()
            os.chown(options.folder / name, options.user, options.user)
        if options.group is not None:
            (options.group / "cgroup.procs").write_text("0")
        enter(options.user, options.no_namespaces, held)
        again = [sys.executable, __file__, str(options.folder / "own"), "--isolation", options.isolation]
        os.execve(sys.executable, again, {**os.environ, "TMPDIR": str(options.folder / "temporary")})
    folder = options.folder / "private"
    folder.mkdir(mode=0o700)
    secret = folder / "secret"
    secret.write_text(str(ANSWER))
    secret.chmod(0o600)
    bystander = subprocess.Popen(["sleep", "9999"])
    row, temporary = Row(), Path(tempfile.gettempdir())
    there = {*temporary.iterdir()}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        try:
            asyncio.run(fill(row, secret, listener, bystander.pid, {**LIMITS, "isolation": isolation}))
        finally:
            bystander.send_signal(signal.SIGKILL)
            bystander.wait()
    row.left = asyncio.run(left(temporary, there))
    print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
