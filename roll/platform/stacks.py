"""Stacks of a process: those of its threads and of its asyncio tasks.

Another process is asked by a signal, whose handler (faulthandler's) needs neither the interpreter nor the event loop: a process
that is stuck in native code answers, too. It writes into a file that has a place in memory alone, which the asker opens through
/proc. So this takes Linux, and an asker of the same user on the same node.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

LIMIT_S = 5.0
"""Limit for an answer, which takes milliseconds unless the process is stopped."""
_NAME = "roll-stacks"


def listen() -> int | None:
    """Enables `of_process` for this process from here on. Returns the file descriptor of the answers; None where that is
    impossible."""
    if sys.platform != "linux":
        return None
    answers = os.memfd_create(_NAME)
    # A signal that no library uses. Without a handler it would end the process: `of_process` sends it to listeners alone.
    faulthandler.register(signal.SIGRTMIN, file=answers, all_threads=True)
    return answers


def of_process(pid: int, answers: int, limit_s: float = LIMIT_S) -> str:
    """Returns the stacks of all threads of a process, or the reason why there are none. `answers`: the result of `listen`
    there."""
    path = f"/proc/{pid}/fd/{answers}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return f"(process {pid} is another one now)"
        with open(path, errors="replace") as file:
            file.seek(0, os.SEEK_END)
            os.kill(pid, signal.SIGRTMIN)
            return _read(file, limit_s) or f"(process {pid} does not answer; its state: {psutil.Process(pid).status()})"
    except (OSError, psutil.NoSuchProcess) as error:
        return f"(process {pid} cannot be asked: {error})"


def write_own(file: IO[str], loop: asyncio.AbstractEventLoop) -> None:
    """Writes the threads and tasks of this process. May be called from any thread, also while the loop is blocked."""
    file.flush()
    faulthandler.dump_traceback(file, all_threads=True)
    file.write(f"\nasyncio tasks:\n{tasks(loop)}\n")


def tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Returns the place where each task waits, the innermost call last; those that wait at the same place are counted."""
    places = Counter(" > ".join(_chain(task.get_coro())) for task in asyncio.all_tasks(loop))
    return "\n".join(f"  {count} x {place}" for place, count in places.most_common())


def _chain(awaited: object) -> list[str]:
    frames: list[str] = []
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            frames.append(f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})")
        following = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        if following is None and frame is None:  # compiled code, as Ray's, hides what it awaits from all but the collector
            following = next((found for found in gc.get_referents(awaited) if hasattr(found, "cr_await")), None)
        awaited = following
    return frames


def _read(file: IO[str], limit_s: float) -> str:
    """Reads the file from now on, until nothing more comes."""
    text, end = "", time.monotonic() + limit_s
    while time.monotonic() < end:
        time.sleep(0.05)
        more = file.read()
        text += more
        if text and not more:
            break
    return text
