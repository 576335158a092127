"""The child side of `TimedPool`: `python -m roll.pipeline.rlvr.rewards.grader_process module:function timeout_s`.

Reads one JSON value a line from standard input, calls the function with it, and writes one JSON object a line: `{"value": ...}`
or `{"error": reason}`. The first line says whether the function could be loaded. Ends when standard input does; should the parent
die in the middle of a call, a kernel timer ends the process even if the interpreter is stuck inside one C call.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

MEMORY_LIMIT_BYTES = 4 << 30
"""Address space of a grader: an answer such as 9^(9^(9^9)) must not take the machine's memory before its time is up."""

Function = Callable[[Any], Any]


def load(target: str) -> Function:
    """The function that `module:function` names."""
    module, _, name = target.partition(":")
    function: Function = getattr(importlib.import_module(module), name)
    return function


def reply(function: Function, line: bytes) -> str:
    """Boundary: whatever the function raises is its answer, `sys.exit()` too."""
    try:
        return json.dumps({"value": function(json.loads(line))})
    except (Exception, SystemExit) as error:
        return failure(error)


def failure(error: BaseException) -> str:
    return json.dumps({"error": f"{type(error).__name__}: {error}"})


def send(sink: BinaryIO, line: str) -> None:
    sink.write(line.encode() + b"\n")
    sink.flush()


def serve(function: Function, timeout_s: float, source: BinaryIO, sink: BinaryIO) -> None:
    """Answers until the source ends. The parent kills at `timeout_s`; twice that long means that there is no parent any more."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in source:
        signal.setitimer(signal.ITIMER_REAL, 2 * timeout_s + 1)
        answer = reply(function, line)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(sink, answer)


def main(target: str, timeout_s: float) -> None:
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the function prints goes to standard error, not among the replies
    try:
        function = load(target)
    except (Exception, SystemExit) as error:  # boundary: the parent reports it
        send(sink, failure(error))
        return
    send(sink, json.dumps({"value": "loaded"}))
    serve(function, timeout_s, sys.stdin.buffer, sink)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
