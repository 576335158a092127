"""The filter of system calls, run on plain values for each machine that it is written for, by the rules of the kernel's BPF."""

import re
from pathlib import Path

import pytest

from roll.graders.sandbox.namespaces import _PIVOT_ROOT
from roll.graders.sandbox.system_calls import _SECCOMP, CONDITIONS, MACHINES, numbers_of, steps_for

KILL, ALLOW, EPERM, ENOSYS = 0x80000000, 0x7FFF0000, 0x00050001, 0x00050026
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
"""linux/audit.h: EM_... of the machine, with the bits for 64-bit (0x80000000) and little endian (0x40000000)."""
REFUSED = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "sendmsg": (46, 211), "ptrace": (101, 117), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "unshare": (272, 97), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "memfd_create": (319, 279), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "memfd_secret": (447, 447), "fchmod": (91, 52),
    "mount": (165, 40), "fchmodat": (268, 53),
    "fchown": (93, 55), "fchownat": (260, 54), "utimensat": (280, 88), "setxattr": (188, 5),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "setpriority": (141, 140), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118), "ioprio_set": (251, 30),
    "add_key": (248, 217), "request_key": (249, 218), "sync": (162, 81), "syncfs": (306, 267), "mq_open": (240, 180),
    "kcmp": (312, 272), "fanotify_init": (300, 262), "name_to_handle_at": (303, 264), "inotify_init1": (294, 26),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "setuid": (105, 146), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "personality": (135, 92), "fallocate": (285, 47), "syslog": (103, 116), "quotactl": (179, 60),
    "vmsplice": (278, 75), "mlock": (149, 228), "process_madvise": (440, 440), "set_mempolicy": (238, 237),
}  # fmt: skip
"""Numbers on x86_64 and aarch64."""
NEEDED = {"read", "write", "openat", "close", "mmap", "brk", "exit_group", "futex", "execve", "wait4", "getpid", "pipe2", "kill"}
"""Without these no Python runs."""


def verdict(machine: str, arch: int, number: int, *arguments: int, signals_of: int | None = None) -> int:
    """What the filter says of one call."""
    words = [half for each in (*arguments, *[0] * 6)[:6] for half in (each & 0xFFFFFFFF, each >> 32)]
    data = {0: number, 4: arch, **{16 + 4 * i: word for i, word in enumerate(words)}}
    steps, position, loaded = list(steps_for(machine, signals_of)), 0, 0
    while True:
        operation, if_true, if_false, value = steps[position]
        position += 1
        if operation == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            loaded = data[value]
        elif operation == 0x06:  # BPF_RET
            return value
        else:  # BPF_JMP with BPF_JEQ, BPF_JGE, BPF_JSET
            holds = {0x15: loaded == value, 0x25: loaded > value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[operation]
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_forbidden_fails_and_what_python_needs_passes(machine):
    arch = AUDIT_ARCH[machine]
    assert MACHINES[machine] == arch
    allowed = numbers_of(machine)
    for name, numbers in REFUSED.items():
        assert verdict(machine, arch, numbers[list(MACHINES).index(machine)]) == EPERM, name
    assert allowed.keys() >= NEEDED
    assert len(set(allowed.values())) == len(allowed), "a number stands for one call"
    for name in allowed.keys() - CONDITIONS.keys():
        assert verdict(machine, arch, allowed[name], *[0xFFFFFFFF_FFFFFFFF] * 6) == ALLOW, name
    for number in set(range(463)) - set(allowed.values()) - {435}:
        assert verdict(machine, arch, number) == EPERM
    for number in (463, 470, 600, 0x3FFFFFFF):
        assert verdict(machine, arch, number) == ENOSYS, "what Linux adds"
    clone = {"x86_64": 56, "aarch64": 220}[machine]
    assert verdict(machine, arch, clone, 0x003D0F00) == ALLOW, "a thread"
    assert verdict(machine, arch, clone, 17) == ALLOW, "a process"
    assert verdict(machine, arch, clone, 17 | 0x8000) == EPERM, "a sibling"
    for namespace in (0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x2000000):
        assert verdict(machine, arch, clone, 17 | namespace) == EPERM
    assert verdict(machine, arch, 435) == ENOSYS, "clone3: the C library then calls clone"


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_reach_others_reach_only_the_program_itself(machine):
    def says(name: str, *arguments: int, signals_of: int | None = None) -> int:
        return verdict(machine, AUDIT_ARCH[machine], numbers_of(machine)[name], *arguments, signals_of=signals_of)

    for flags, allowed in ((0x22, ALLOW), (0x4022, ALLOW), (0x40022, EPERM), (0x2022, EPERM)):
        assert says("mmap", 0, 4096, 3, flags) == allowed, "private, without reserve; huge pages, locked ones"
    assert says("prlimit64", 0, 7, 1, 1) == ALLOW
    assert says("prlimit64", 4711, 7, 1, 1) == EPERM
    for command, allowed in ((3, ALLOW), (1030, ALLOW), (8, EPERM), (10, EPERM), (15, EPERM), (1024, EPERM), (1031, EPERM)):
        assert says("fcntl", 0, command) == allowed, "F_GETFL, F_DUPFD_CLOEXEC; owners of signals, leases, pipes"
    for command, allowed in ((0x5401, ALLOW), (0x541B, ALLOW), (0x8901, EPERM), (0x5412, EPERM)):
        assert says("ioctl", 0, command) == allowed, "TCGETS, FIONREAD; FIOSETOWN, TIOCSTI"
    assert says("socketpair", 1, 1) == ALLOW
    assert says("socketpair", 30, 1) == EPERM, "AF_TIPC would load a module"
    assert says("sendto", 3, 0x7F00_0000_0000, 5) == ALLOW
    for address in (1, 1 << 32, 0x7F00_0000_0000):
        assert says("sendto", 3, 0x7F00_0000_0000, 5, 0, address, 16) == EPERM
    for option, allowed in ((15, ALLOW), (1, EPERM), (36, EPERM), (0x59616D61, EPERM)):
        assert says("prctl", option) == allowed, "a name; death signal, subreaper, tracer"
    steps = list(steps_for(machine, leaves_group=False))
    assert not {numbers_of(machine)[name] for name in ("setsid", "setpgid")} & {
        value for code, _, _, value in steps if code == 0x15
    }
    for name in ("kill", "tgkill", "tkill"):
        assert says(name, 4711) == ALLOW, "the process namespace or Landlock keeps it in"
        assert says(name, 4711, signals_of=4711) == says(name, 0, signals_of=4711) == ALLOW
        assert says(name, 4712, signals_of=4711) == says(name, 0xFFFFFFFF, signals_of=4711) == EPERM


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
        known["newfstatat"] = known.get("fstatat", known.get("newfstatat", -1))
        wanted = numbers_of(machine) | {name: numbers[list(MACHINES).index(machine)] for name, numbers in REFUSED.items()}
        wanted |= {"pivot_root": _PIVOT_ROOT[machine], "seccomp": _SECCOMP[machine], "clone3": 435, "mount_setattr": 442}
        wanted |= {"landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446}
        assert {name: known[name] for name in wanted if name in known} == {
            name: number for name, number in wanted.items() if name in known
        }
        assert len(known) > 250
