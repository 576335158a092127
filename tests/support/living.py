"""The processes that this one has started and that live.

Others' children end at any moment, and one that ended and was not asked about yet is still listed without a command line."""

from __future__ import annotations

import psutil


def command_lines(recursive: bool = True) -> dict[psutil.Process, list[str]]:
    """Of this process's children, and of theirs."""
    found = {}
    for process in psutil.Process().children(recursive):
        try:
            found[process] = process.cmdline()
        except psutil.Error:
            continue
    return found


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
