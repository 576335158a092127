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
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What a machine calls itself -> AUDIT_ARCH_..., of linux/audit.h: a call of another architecture's table ends the program."""
_CLONE = {"x86_64": 56, "aarch64": 220}
FORBIDDEN = {
    # arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
    "socket": {"x86_64": 41, "aarch64": 198},
    "ptrace": {"x86_64": 101, "aarch64": 117},
    "process_vm_readv": {"x86_64": 310, "aarch64": 270},
    "process_vm_writev": {"x86_64": 311, "aarch64": 271},
    "unshare": {"x86_64": 272, "aarch64": 97},
    "setns": {"x86_64": 308, "aarch64": 268},
    "shmget": {"x86_64": 29, "aarch64": 194},
    "msgget": {"x86_64": 68, "aarch64": 186},
    "semget": {"x86_64": 64, "aarch64": 190},
    "memfd_create": {"x86_64": 319, "aarch64": 279},
    "keyctl": {"x86_64": 250, "aarch64": 219},
    "bpf": {"x86_64": 321, "aarch64": 280},
    "perf_event_open": {"x86_64": 298, "aarch64": 241},
    "userfaultfd": {"x86_64": 323, "aarch64": 282},
}
FORBIDDEN_EVERYWHERE = {
    # Calls from 424 on have one number on all machines.
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "pidfd_getfd": 438,
    "memfd_secret": 447,
}


class NoFilter(OSError):
    """There is none for this machine, or the system has none."""


def forbid() -> None:
    """From now on, for this process. It must have given up new rights before. Raises `NoFilter`."""
    machine = os.uname().machine
    if machine not in MACHINES:
        raise NoFilter(f"no filter of system calls for {machine}")
    code = b"".join(struct.pack("=HBBI", *step) for step in steps_for(machine))
    steps = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_SECCOMP, _MODE_FILTER, program, 0, 0) != 0:
        raise NoFilter(f"no filter of system calls: {os.strerror(ctypes.get_errno())}")


def steps_for(machine: str) -> Iterator[tuple[int, int, int, int]]:
    """The filter as a program of the kernel's BPF machine: (operation, jump if true, jump if false, value)."""
    yield _LOAD, 0, 0, _MACHINE_AT
    yield _EQUAL, 1, 0, MACHINES[machine]
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER_AT
    yield _AT_LEAST, 0, 1, _OTHER_ABI
    yield _RETURN, 0, 0, _ERRNO | _EPERM
    for number in (*(of[machine] for of in FORBIDDEN.values()), *FORBIDDEN_EVERYWHERE.values()):
        yield _EQUAL, 0, 1, number
        yield _RETURN, 0, 0, _ERRNO | _EPERM
    yield _EQUAL, 0, 1, _CLONE3  # its flags are out of reach; without it, the C library calls clone
    yield _RETURN, 0, 0, _ERRNO | _ENOSYS
    yield _EQUAL, 0, 3, _CLONE[machine]
    yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT
    yield _ANY_BIT, 0, 1, _NEW_NAMESPACES
    yield _RETURN, 0, 0, _ERRNO | _EPERM
    yield _RETURN, 0, 0, _ALLOW
