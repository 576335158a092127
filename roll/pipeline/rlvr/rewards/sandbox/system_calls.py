"""A filter of system calls: no sockets, no namespaces, no looking into other processes, no memory that limits do not count.

It needs no rights and holds for all that the process starts. The numbers are Linux's own, by machine.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_OTHER_ABI = 0x40000000
_NEW_NAMESPACES = 0x7E020000
_CLONE3 = 435
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_FORBIDDEN = {
    # socket, ptrace, process_vm_readv/writev, unshare, setns, shmget, msgget, semget, memfd_create, keyctl, bpf, perf_event_open,
    # userfaultfd
    "x86_64": (41, 101, 310, 311, 272, 308, 29, 68, 64, 319, 250, 321, 298, 323),
    "aarch64": (198, 117, 270, 271, 97, 268, 194, 186, 190, 279, 219, 280, 241, 282),
}
_FORBIDDEN_EVERYWHERE = (425, 426, 427, 438, 447)  # io_uring_*, pidfd_getfd, memfd_secret


class NoFilter(OSError):
    """There is none for this machine, or the system has none."""


def forbid() -> None:
    """From now on, for this process. It must have given up new rights before. Raises `NoFilter`."""
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise NoFilter(f"no filter of system calls for {machine}")
    code = b"".join(struct.pack("=HBBI", *step) for step in _program(machine))
    steps = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_SECCOMP, _MODE_FILTER, program, 0, 0) != 0:
        raise NoFilter(f"no filter of system calls: {os.strerror(ctypes.get_errno())}")


def _program(machine: str) -> Iterator[tuple[int, int, int, int]]:
    """Steps (operation, jump if true, jump if false, value)."""
    yield _LOAD, 0, 0, _MACHINE_AT
    yield _EQUAL, 1, 0, _MACHINES[machine]
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER_AT
    yield _AT_LEAST, 0, 1, _OTHER_ABI
    yield _RETURN, 0, 0, _ERRNO | _EPERM
    for number in (*_FORBIDDEN[machine], *_FORBIDDEN_EVERYWHERE):
        yield _EQUAL, 0, 1, number
        yield _RETURN, 0, 0, _ERRNO | _EPERM
    yield _EQUAL, 0, 1, _CLONE3  # its flags are out of reach; without it, the C library calls clone
    yield _RETURN, 0, 0, _ERRNO | _ENOSYS
    yield _EQUAL, 0, 3, _CLONE[machine]
    yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT
    yield _ANY_BIT, 0, 1, _NEW_NAMESPACES
    yield _RETURN, 0, 0, _ERRNO | _EPERM
    yield _RETURN, 0, 0, _ALLOW
