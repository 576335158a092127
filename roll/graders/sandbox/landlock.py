"""Landlock: a process gives up the files that it does not need, and other processes, for good. It needs no rights, and stands in
where namespaces are forbidden: a program then runs as this user, which may read and write the memory of the judge.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

SIGNALS_FROM = 6
"""The version that keeps signals in, too (Linux 6.12)."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH, _SIGNALS = 1, 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Version -> number of its rights over files."""
_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """0 if this system has no Landlock."""
    found: int = _libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return max(0, found)


def rules_for(own: Path, readable: Iterable[Path]) -> int:
    """The descriptor of rules that leave `readable` to be read (and written, where it is a device), and the folder `own` for
    anything; other processes are not to be traced nor, from `SIGNALS_FROM` on, sent a signal. Raises `OSError`."""
    known = version()
    all_rights = (1 << _RIGHTS.get(known, 16)) - 1
    attributes = struct.pack("=QQQ", all_rights, 0, _SIGNALS)[: 24 if known >= SIGNALS_FROM else 8]
    rules = _done(_libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0))
    _allow(rules, own, all_rights)
    for path in readable:
        if path.is_dir():
            _allow(rules, path, _EXECUTE | _READ_FILE | _READ_DIR)
        else:
            _allow(rules, path, _READ_FILE | (_WRITE_FILE if path.is_char_device() else _EXECUTE))
    return rules


def enclose(rules: int) -> None:
    """Makes the rules hold for this process and its children, which must have given up new rights. Raises `OSError`."""
    _done(_libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _allow(rules: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    _done(_libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0))
    os.close(descriptor)


def _done(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result
