"""The child side of `ProcessSeat`: `python -m roll.envs.env_process`.

Reads one JSON request a line from standard input, `{"method", "argument", "limit_s"}`, and writes one JSON answer a line,
`{"value": ...}` or `{"error": reason}`. Methods: `make` with `[env_type, env_config]`, then `reset`, `step` and `close`. Ends
when standard input does; should the parent die in the middle of a call, a kernel timer ends the process, wherever it is stuck.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
from typing import Any, BinaryIO

from roll.envs.registry import make_env


class EnvProcess:
    """One environment at a time, and an event loop for it if it needs one."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._env: Any = None

    def answer(self, method: str, argument: Any) -> Any:
        """Raises what the environment raises."""
        if method == "make":
            env_type, env_config = argument
            self._env = make_env(env_type, env_config)
            return None
        if method == "close":
            env, self._env = self._env, None
            with contextlib.suppress(Exception):  # boundary: its failure to close is nobody's
                env.close()
            return None
        value = getattr(self._env, method)(argument)
        return self._runner.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def as_json(value: Any) -> Any:
    """numpy's numbers are numbers; anything else that JSON does not know is an error that says so."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        return value.item()
    raise TypeError(f"only text, numbers, lists and dicts can leave an environment's process, not {type(value).__name__}")


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answers until the source ends. The parent kills at the limit; twice that long means that there is no parent any more."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with asyncio.Runner() as runner:
        process = EnvProcess(runner)
        for line in source:
            request = json.loads(line)
            if request["limit_s"] is not None:
                signal.setitimer(signal.ITIMER_REAL, 2 * request["limit_s"] + 1)
            try:
                answer = json.dumps({"value": process.answer(request["method"], request["argument"])}, default=as_json)
            except Exception as error:  # boundary: whatever an environment raises is its answer
                answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
            signal.setitimer(signal.ITIMER_REAL, 0)
            sink.write(answer.encode() + b"\n")
            sink.flush()


def main() -> None:
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever an environment prints goes to standard error, not among the answers
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # and it must not read the requests
    serve(source, sink)


if __name__ == "__main__":
    main()
