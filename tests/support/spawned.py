"""What multiprocessing starts in place of an interpreter: the process is a fork of the server that the environment names
(forked.py), and this one stays in its place. It imports the standard library alone, so as to start soon."""

from __future__ import annotations

import contextlib
import os
import sys

from forked import in_my_place


def inherited() -> list[int]:
    """Descriptors besides the standard ones."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the folder
            os.fstat(number)
            found.append(number)
    return [number for number in found if number > 2]


if __name__ == "__main__":
    passed = inherited()
    sys.exit(in_my_place(sys.argv[sys.argv.index("-c") :], os.environ, passed))
