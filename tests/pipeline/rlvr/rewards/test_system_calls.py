"""The filter of system calls, run on plain values for each machine that it is written for, by the rules of the kernel's BPF."""

import re
from pathlib import Path

import pytest

from roll.pipeline.rlvr.rewards.sandbox.namespaces import _PIVOT_ROOT
from roll.pipeline.rlvr.rewards.sandbox.system_calls import FORBIDDEN, FORBIDDEN_EVERYWHERE, MACHINES, steps_for

KILL, ALLOW, EPERM, ENOSYS = 0x80000000, 0x7FFF0000, 0x00050001, 0x00050026
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
"""linux/audit.h: EM_... of the machine, with the bits for 64-bit (0x80000000) and little endian (0x40000000)."""
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "openat": (257, 56), "close": (3, 57), "mmap": (9, 222), "munmap": (11, 215),
    "brk": (12, 214), "exit_group": (231, 94), "futex": (202, 98), "execve": (59, 221), "wait4": (61, 260), "getpid": (39, 172),
    "pipe2": (293, 59), "kill": (62, 129), "rt_sigaction": (13, 134), "clock_gettime": (228, 113), "getrandom": (318, 278),
}  # fmt: skip
"""Without these no Python runs: numbers on x86_64 and aarch64."""


def verdict(machine: str, arch: int, number: int, first: int = 0) -> int:
    """What the filter says of one call."""
    data = {0: number, 4: arch, 16: first}
    steps, position, loaded = list(steps_for(machine)), 0, 0
    while True:
        operation, if_true, if_false, value = steps[position]
        position += 1
        if operation == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            loaded = data[value]
        elif operation == 0x06:  # BPF_RET
            return value
        else:  # BPF_JMP with BPF_JEQ, BPF_JGE, BPF_JSET
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[operation]
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_forbidden_fails_and_what_python_needs_passes(machine):
    arch = AUDIT_ARCH[machine]
    assert MACHINES[machine] == arch
    for name, numbers in FORBIDDEN.items():
        assert verdict(machine, arch, numbers[machine]) == EPERM, name
    for name, number in FORBIDDEN_EVERYWHERE.items():
        assert verdict(machine, arch, number) == EPERM, name
    for name, numbers in ALLOWED.items():
        assert verdict(machine, arch, numbers[list(MACHINES).index(machine)]) == ALLOW, name
    clone = {"x86_64": 56, "aarch64": 220}[machine]
    assert verdict(machine, arch, clone, 0x003D0F00) == ALLOW, "a thread"
    assert verdict(machine, arch, clone, 17) == ALLOW, "a process"
    for namespace in (0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x2000000):
        assert verdict(machine, arch, clone, 17 | namespace) == EPERM
    assert verdict(machine, arch, 435) == ENOSYS, "clone3: the C library then calls clone"


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_by_another_table_end_the_program(machine):
    for other in {*AUDIT_ARCH} - {machine}:
        assert verdict(machine, AUDIT_ARCH[other], 0) == KILL
    assert verdict(machine, AUDIT_ARCH[machine], 0x40000000 + 41) == EPERM, "x32 has the numbers of x86_64 behind a bit"


def test_the_numbers_are_those_of_the_systems_own_headers():
    """Where a compiler is installed, its headers have this machine's numbers, and those that are the same for new machines."""
    generic = Path("/usr/include/asm-generic/unistd.h")
    own = next(Path("/usr/include").glob("*/asm/unistd_64.h"), None)
    if not generic.exists() or own is None:
        pytest.skip("there are no headers of the kernel here")
    for path, machine in ((generic, "aarch64"), (own, "x86_64")):
        pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)"
        known = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
        wanted = {name: numbers[machine] for name, numbers in FORBIDDEN.items()}
        wanted |= {**FORBIDDEN_EVERYWHERE, "pivot_root": _PIVOT_ROOT[machine], "clone3": 435, "mount_setattr": 442}
        wanted |= {"landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446}
        assert {name: known[name] for name in wanted if name in known} == {
            name: number for name, number in wanted.items() if name in known
        }
        assert len(known) > 250
