"""Ray's words for people: messages of its own processes on the driver's screen, their first lines, without C++ stacks and state
dumps; and why a worker has died."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ray._private import worker as ray_worker
from ray.exceptions import RayActorError

from roll.core.errors import WorkerDied

OWN = ("raylet", "gcs_server")
_STACK = re.compile(r"StackTrace Information|\(\w*\+0x[0-9a-f]+\) \[0x|\[state-dump\]|^\s*$")


def say_less() -> None:
    """For all messages of this process from now on."""
    if not isinstance(ray_worker.print_to_stdstream, _Shortened):
        ray_worker.print_to_stdstream = _Shortened(ray_worker.print_to_stdstream)  # type: ignore[assignment]


def shortened(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """`message`: as Ray hands it to its printer. None: nothing of it is for people."""
    if message.get("pid") not in OWN:
        return dict(message)
    first = (str(line).strip().split("\n")[0].strip() for line in message["lines"])
    lines = [line for line in first if not _STACK.search(line)]
    return {**message, "lines": lines} if lines else None


def death(worker: str, error: RayActorError) -> WorkerDied:
    lines = str(error).strip().splitlines()
    telling = [line.strip() for line in lines if "exit" in line.lower() or "kill" in line.lower()]
    if lines and "creation task" in lines[0]:  # a traceback follows, and its last line is what went wrong
        telling = [line.strip() for line in lines[:0:-1] if line.strip()]
    return WorkerDied(f"worker {worker} died: {next(iter([*telling, *lines]), '')}")


class _Shortened:
    def __init__(self, show: Callable[..., None]) -> None:
        self._show = show

    def __call__(self, message: Mapping[str, Any], *args: object, **keywords: object) -> None:
        if (left := shortened(message)) is not None:
            self._show(left, *args, **keywords)
