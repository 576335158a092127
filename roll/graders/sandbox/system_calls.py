"""A filter of system calls: what Python, NumPy and a compiler's output need is allowed, all else is refused, whatever Linux adds.

It needs no rights and holds for all that the process starts. `ALLOWED` says who needs each call; the numbers are Linux's own, by
machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator, Mapping

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Name of a machine -> AUDIT_ARCH_..., of linux/audit.h: a call of another architecture's table ends the program."""
Numbers = tuple[int, int | None]
ALLOWED: dict[str, dict[str, Numbers]] = {
    # Who needs a call -> its numbers on x86_64 and aarch64, of arch/x86/entry/syscalls/syscall_64.tbl and
    # include/uapi/asm-generic/unistd.h.
    "every program: memory": {
        "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
        "madvise": (28, 233),
    },
    "every program: its start, threads and end": {
        "execve": (59, 221), "exit": (60, 93), "exit_group": (231, 94), "arch_prctl": (158, None), "prctl": (157, 167),
        "set_tid_address": (218, 96), "set_robust_list": (273, 99), "rseq": (334, 293), "futex": (202, 98),
        "restart_syscall": (219, 128), "sched_yield": (24, 124), "getcpu": (309, 168),
    },
    "every program: what it reads and writes": {
        "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
        "preadv": (295, 69), "pwritev": (296, 70), "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436),
        "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "fcntl": (72, 25), "ioctl": (16, 29), "pipe": (22, None),
        "pipe2": (293, 59), "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    },
    "Python's open, os.stat, imports": {
        "open": (2, None), "openat": (257, 56), "creat": (85, None), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
        "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
        "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49),
        "fchdir": (81, 50), "statfs": (137, 43), "fstatfs": (138, 44), "umask": (95, 166), "fadvise64": (221, 223),
    },
    "files of its own folder: tempfile, shutil.rmtree, sqlite3": {
        "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35),
        "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "symlink": (88, None), "symlinkat": (266, 36),
        "link": (86, None), "linkat": (265, 37), "truncate": (76, 45), "ftruncate": (77, 46), "fsync": (74, 82),
        "fdatasync": (75, 83), "sendfile": (40, 71), "copy_file_range": (326, 285), "msync": (26, 227),
    },
    "os.fork, subprocess, multiprocessing, threading": {
        "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "wait4": (61, 260), "waitid": (247, 95),
        "setsid": (112, 157), "setpgid": (109, 154),
    },
    "os: who and where it is": {
        "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getpgrp": (111, None), "getpgid": (121, 155),
        "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
        "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158), "uname": (63, 160), "sysinfo": (99, 179),
        "times": (100, 153), "getrusage": (98, 165), "getrlimit": (97, 163), "prlimit64": (302, 261), "getpriority": (140, 141),
        "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    },
    "signal, abort, faulthandler": {
        "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
        "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "kill": (62, 129),
        "tkill": (200, 130), "tgkill": (234, 131), "pause": (34, None), "alarm": (37, None), "getitimer": (36, 102),
        "setitimer": (38, 103),
    },
    "time, random, uuid": {
        "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
        "gettimeofday": (96, 169), "time": (201, None), "getrandom": (318, 278),
    },
    "asyncio, selectors, and the channel between a solution and its tests": {
        "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
        "epoll_pwait": (281, 22), "eventfd2": (290, 19), "socketpair": (53, 199), "sendto": (44, 206), "recvfrom": (45, 207),
        "shutdown": (48, 210), "getsockopt": (55, 209), "getsockname": (51, 204),
    },
    "NumPy's OpenBLAS": {
        "get_mempolicy": (239, 236),
    },
}  # fmt: skip
ALLOWED_AGENTS: dict[str, dict[str, Numbers]] = {
    # What programs that are agents may call besides, which have a network, users and processes to themselves.
    "agents: clients and servers, where there is nobody but the gateway": {
        "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200),
        "listen": (50, 201), "getpeername": (52, 205), "setsockopt": (54, 208), "sendmsg": (46, 211), "recvmsg": (47, 212),
        "sendmmsg": (307, 269), "recvmmsg": (299, 243),
    },
    "agents: git, tar and shells, with files of their own": {
        "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "utime": (132, None),
        "utimes": (235, None), "utimensat": (280, 88), "flock": (73, 32), "fallocate": (285, 47), "mknod": (133, None),
        "mknodat": (259, 33), "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "listxattr": (194, 11),
        "llistxattr": (195, 12), "flistxattr": (196, 13),
    },
    "agents: what Node and Go run on": {
        "eventfd": (284, None), "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "signalfd4": (289, 74),
        "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "inotify_rm_watch": (255, 28), "memfd_create": (319, 279),
        "membarrier": (324, 283), "mincore": (27, 232), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
        "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "timer_create": (222, 107),
        "timer_settime": (223, 110), "timer_delete": (226, 111),
    },
}  # fmt: skip
LEAVES_GROUP = ("setsid", "setpgid")
"""Refused where there is no process namespace."""
NO_BIT_OF = "no bit of"
ONE_OF = "one of"
CONDITIONS: dict[str, list[tuple[int, str, tuple[int, ...]]]] = {
    # A call -> what must be so: (which half of which argument, counted from 0; "one of" or "no bit of"; values).
    "mmap": [(6, NO_BIT_OF, (0x42000,))],  # huge and locked pages, which belong to all of the machine
    "clone": [(0, NO_BIT_OF, (0x7E02A000,))],  # new namespaces, CLONE_PARENT, CLONE_PTRACE
    "prlimit64": [(0, ONE_OF, (0,))],  # its own limits
    "prctl": [(0, ONE_OF, (15, 16))],  # the thread's name
    "fcntl": [(2, ONE_OF, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032))],  # no owner for signals, no leases, no larger pipes
    "ioctl": [(2, ONE_OF, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451))],  # isatty, window, bytes to read, blocking, on exec
    "socketpair": [(0, ONE_OF, (1,))],  # AF_UNIX
    "sendto": [(8, ONE_OF, (0,)), (9, ONE_OF, (0,))],  # to the other end of a pair, no address
    "socket": [(0, ONE_OF, (1, 2, 10))],  # AF_UNIX and AF_INET, which are the program's own; AF_VSOCK is the machine's
}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _SEND, _QUESTION_BYTES = 0xC0502100, 0xC0182101, 80
"""linux/seccomp.h: SECCOMP_IOCTL_NOTIF_RECV and _SEND, and bytes that the first fills, which begin with a number of 8 bytes."""
_LOAD, _EQUAL, _ABOVE, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_KILL, _ALLOW, _ERRNO, _ASK = 0x80000000, 0x7FFF0000, 0x00050000, 0x7FC00000
_EPERM, _ENOSYS = 1, 38
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_OTHER_ABI = 0x40000000
_CLONE3, _NEWEST = 435, 462
"""Calls above the newest that was looked at do not exist here: a library then does without them."""


def forbid(signals_of: int | None = None, *, leaves_group: bool = True, agent: bool = False) -> None:
    """Installs the filter in this process, which must have given up new rights before. `signals_of`: the only process that may be
    sent signals, where nothing else keeps them in. `leaves_group`: false where its process group has to end them all.
    `agent`: `ALLOWED_AGENTS` is allowed, too. Raises `OSError`."""
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"no filter of system calls for {machine}")
    _install(steps_for(machine, signals_of, leaves_group=leaves_group, agent=agent), 0)


def ask_before_forks() -> int:
    """Makes each new process or thread wait, from now on, for an answer by the owner of the returned descriptor. This process
    must have given up new rights before. Raises `OSError`."""
    numbers = [number for name, number in numbers_of(os.uname().machine).items() if name in ("fork", "vfork", "clone")]
    equal = [(_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    return _install([(_LOAD, 0, 0, _NUMBER_AT), *equal, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)], _NEW_LISTENER)


def answer_fork(asked: int, may: bool) -> None:
    """Answers a fork. `asked`: the descriptor of `ask_before_forks`, ready to be read. The process may have ended meanwhile."""
    question = bytearray(_QUESTION_BYTES)
    with contextlib.suppress(OSError):
        fcntl.ioctl(asked, _RECEIVE, question)
        code, go_on = (0, 1) if may else (-errno.EAGAIN, 0)
        fcntl.ioctl(asked, _SEND, struct.pack("=8sqiI", question[:8], 0, code, go_on))


def _install(steps: Iterable[tuple[int, int, int, int]], flags: int) -> int:
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
    done: int = ctypes.CDLL(None, use_errno=True).syscall(_SECCOMP[os.uname().machine], _SET_FILTER, flags, program)
    if done < 0:
        raise OSError(f"no filter of system calls: {os.strerror(ctypes.get_errno())}")
    return done


def numbers_of(machine: str, agent: bool = False) -> dict[str, int]:
    """The allowed calls that this machine has."""
    column, tables = list(MACHINES).index(machine), (ALLOWED | ALLOWED_AGENTS if agent else ALLOWED).values()
    found = ((name, numbers[column]) for calls in tables for name, numbers in calls.items())
    return {name: number for name, number in found if number is not None}


def steps_for(
    machine: str, signals_of: int | None = None, *, leaves_group: bool = True, agent: bool = False
) -> Iterator[tuple[int, int, int, int]]:
    """The filter as a program of the kernel's BPF machine: (operation, jump if true, jump if false, value)."""
    conditions: Mapping[str, list[tuple[int, str, tuple[int, ...]]]] = CONDITIONS
    if signals_of is not None:
        conditions = {**CONDITIONS, **{name: [(0, ONE_OF, (0, signals_of))] for name in ("kill", "tkill", "tgkill")}}
    yield _LOAD, 0, 0, _MACHINE_AT
    yield _EQUAL, 1, 0, MACHINES[machine]
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER_AT
    yield _AT_LEAST, 0, 1, _OTHER_ABI
    yield _RETURN, 0, 0, _ERRNO | _EPERM
    for name, number in numbers_of(machine, agent).items():
        if name in LEAVES_GROUP and not leaves_group:
            continue
        checks = [step for check in conditions.get(name, []) for step in _check(*check)]
        yield _EQUAL, 0, len(checks) + 1, number
        yield from checks
        yield _RETURN, 0, 0, _ALLOW
    yield _EQUAL, 1, 0, _CLONE3  # its flags are out of reach; without it, the C library calls clone
    yield _ABOVE, 0, 1, _NEWEST
    yield _RETURN, 0, 0, _ERRNO | _ENOSYS
    yield _RETURN, 0, 0, _ERRNO | _EPERM


def _check(half: int, kind: str, values: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """Refuses the call, or continues behind these steps."""
    yield _LOAD, 0, 0, _ARGUMENTS_AT + 4 * half
    if kind == NO_BIT_OF:
        yield _ANY_BIT, 0, 1, values[0]
    else:
        for i, value in enumerate(values):
            yield _EQUAL, len(values) - i, 0, value
    yield _RETURN, 0, 0, _ERRNO | _EPERM
