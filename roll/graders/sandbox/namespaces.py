"""Means of Linux to isolate a process: namespaces, a read-only root of its own, rights that are given up for good.

Every function changes the calling process. Nothing here needs to be root; where user namespaces are forbidden, `isolate` raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

NOBODY = 65534
"""The user that a process of root becomes: limits on processes do not hold for root."""
_USERS = range(65533, 64999, -1)
"""Numbers that distributions give to nobody; a container that maps users has them, too."""
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET, _NEWUTS = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x4000000
_NOSUID, _NODEV, _BIND, _MOVE, _REC, _PRIVATE, _DETACH = 2, 4, 4096, 8192, 16384, 1 << 18, 2
_SET_PDEATHSIG, _CAPBSET_DROP, _SET_NO_NEW_PRIVS, _SET_CHILD_SUBREAPER = 1, 24, 38, 36
_MOUNT_SETATTR, _RECURSIVE, _ATTR_RDONLY = 442, 0x8000, 1
_SET_FLAGS, _UP = 0x8914, 0x41
"""linux/sockios.h and linux/if.h: SIOCSIFFLAGS, IFF_UP and IFF_RUNNING."""
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITIES_V3 = 0x20080522
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_OWN_TMP = "/own_tmp"
"""The folder in which a program's /tmp is prepared."""
_MOUNT_POINT = "/sys"
"""The folder in which the new root is built: it exists everywhere, and nothing is taken from it."""

_libc = ctypes.CDLL(None, use_errno=True)


def become(user: int) -> None:
    """Changes the user, if this process is root."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def users_of_their_own(count: int) -> tuple[list[int], list[socket.socket]] | None:
    """Users that no other sandbox of this machine has as long as the sockets are open, and no process: what a killed forker has
    left is counted among a user's processes. None if this process has none."""
    if os.getuid() != 0:
        return None
    users, held = [], []
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for user in _USERS:
        if any(first <= user < first + length for first, _, length in mapped):
            held.append(socket.socket(socket.AF_UNIX))
            try:
                held[-1].bind(f"\0roll sandbox {user}")  # an abstract name, which the kernel frees when its holder ends
            except OSError:
                held.pop().close()
                continue
            if user in _users_of_processes():
                held.pop().close()
                continue
            users.append(user)
            if len(users) == count:
                return users, held
    return None


def _users_of_processes() -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended
            found |= {int(line.split()[1]) for line in process.read_text().splitlines() if line.startswith("Uid:")}
    return found


def threads_of(session: int) -> int:
    """Counts the session's running threads."""
    found = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found += len(os.listdir(f"/proc/{process}/task")) if os.getsid(int(process)) == session else 0
    return found


def closed_to_others(isolated: bool) -> str:
    """Returns why a user without rights cannot start Python; empty if one can. In an own root, the folders above it are new."""
    for path in visible():
        for folder in (path,) if isolated else (*reversed(path.parents), path):
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                own = f"they run as a user without rights, and only its owner may enter {folder}, below which Python needs {path}"
                return f"{own}: chmod o+x {folder}, or install Python elsewhere"
    return ""


def isolate(readable: Iterable[Path] = (), writable: Sequence[Path] = (), tmp_bytes: int = 0) -> None:
    """New user, network, mount, IPC and host name namespaces, and a read-only root. The children, not this process, are in a new
    process namespace. Raises `OSError` where the system does not allow it, then mostly with nothing changed. `readable`: what is
    seen besides `visible`. `writable`: folders; they lie in nothing but what is readable. `tmp_bytes`: of a /tmp for files; 0 for
    none."""
    _libc.syscall(_MOUNT_SETATTR, -1, b"", 0, None, 0)
    if ctypes.get_errno() == errno.ENOSYS:  # before anything is changed for it
        raise OSError("no mount_setattr, which is Linux 5.12's")
    uid, gid, pid = os.getuid(), os.getgid(), os.getpid()
    begins, begun = os.pipe()
    mapping = os.fork() if uid == 0 else None
    if mapping == 0:  # stays outside, where root may give the namespace a second user
        os.read(begins, 1)
        _map_users(pid, f"0 0 1\n{NOBODY} {NOBODY} 1", f"0 0 1\n{NOBODY} {NOBODY} 1")
    try:
        _done("unshare", _libc.unshare(_NEWUSER | _NEWNET | _NEWNS | _NEWIPC | _NEWUTS | _NEWPID))
    finally:
        os.write(begun, b".")
        if mapping is not None and os.waitpid(mapping, 0)[1]:
            mapping = None
    if mapping is None:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _new_root(_outermost([*visible(), *readable]), writable, tmp_bytes)


def only_listener(port: int) -> socket.socket:
    """Returns the only listener of this network namespace, which is new: all else is out of reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        fcntl.ioctl(any_, _SET_FLAGS, struct.pack("=16sH22x", b"lo", _UP))
    return socket.create_server(("127.0.0.1", port), backlog=128)


def _map_users(pid: int, users: str, groups: str) -> None:
    try:
        Path(f"/proc/{pid}/uid_map").write_text(users)
        Path(f"/proc/{pid}/gid_map").write_text(groups)
        os._exit(0)
    finally:
        os._exit(1)


def isolate_program(tmp_bytes: int) -> None:
    """A /tmp and IPC of its own for this process; its next child is the first of a new process namespace."""
    _done("unshare", _libc.unshare(_NEWNS | _NEWIPC | _NEWPID))
    options = f"size={tmp_bytes},nr_inodes=1024,mode=0777"
    _mount("tmpfs", _OWN_TMP, "tmpfs", _NOSUID | _NODEV, options)
    for path in _below_tmp():  # Python itself may lie there
        if not path.is_symlink():
            target = Path(_OWN_TMP) / path.relative_to("/tmp")
            target.mkdir(parents=True, exist_ok=True)
            _mount(str(path), str(target), None, _BIND | _REC, None)
    _mount(_OWN_TMP, "/tmp", None, _MOVE, None)


def end_with_parent(signal: int) -> None:
    _done("prctl", _libc.prctl(_SET_PDEATHSIG, signal, 0, 0, 0))


def adopt_orphans() -> None:
    """Processes that descend from this one and lose their parent become its children."""
    _done("prctl", _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def give_up_new_rights() -> None:
    _done("prctl", _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def give_up_rights() -> None:
    """No capability is left, and no program that is started gives one back."""
    give_up_new_rights()
    for capability in range(64):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails for those that this kernel does not know
    header, none = struct.pack("=Ii", _CAPABILITIES_V3, 0), struct.pack("=6I", *[0] * 6)
    _done("capset", _libc.capset(header, none))


def _new_root(shown: Sequence[Path], writable: Sequence[Path], tmp_bytes: int) -> None:
    _mount("none", "/", None, _REC | _PRIVATE, None)
    _mount("tmpfs", _MOUNT_POINT, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=0755")
    root = Path(_MOUNT_POINT)
    for name in ("/tmp", _OWN_TMP):
        (root / name[1:]).mkdir()
    if tmp_bytes:
        _mount("tmpfs", f"{_MOUNT_POINT}/tmp", "tmpfs", _NOSUID | _NODEV, f"size={tmp_bytes},mode=1777")
    for source in shown:
        target = root / source.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
            continue
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        _mount(str(source), str(target), None, _BIND | _REC, None)
    _read_only(_MOUNT_POINT, _RECURSIVE, _ATTR_RDONLY, 0)
    if tmp_bytes:
        _read_only(f"{_MOUNT_POINT}/tmp", 0, 0, _ATTR_RDONLY)
    for folder in writable:
        _mount(str(folder), f"{_MOUNT_POINT}{folder}", None, _BIND, None)
    os.chdir(_MOUNT_POINT)
    _done("pivot_root", _libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
    _done("umount2", _libc.umount2(b".", _DETACH))
    os.chdir("/")


def _read_only(path: str, flags: int, on: int, off: int) -> None:
    attributes = struct.pack("=4Q", on, off, 0, 0)
    _done("mount_setattr", _libc.syscall(_MOUNT_SETATTR, -100, path.encode(), flags, attributes, len(attributes)))


def visible() -> list[Path]:
    """Returns the paths of this machine that a program sees: Python and the libraries it is linked to, in order, each once."""
    prefixes = (sys.prefix, sys.base_prefix)  # a link, too, is seen together with what it leads to
    interpreter = (*prefixes, *map(os.path.realpath, prefixes), str(Path(sys.executable).resolve().parent.parent))
    return _outermost(map(Path, (*_SYSTEM, *interpreter, *_DEVICES)))


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Returns the paths that exist, and do not lie in one before."""
    seen: list[Path] = []
    for path in paths:
        if path.exists() and not any(path == other or other in path.parents for other in seen):
            seen.append(path)
    return seen


@cache
def _below_tmp() -> tuple[Path, ...]:
    return tuple(path for path in visible() if Path("/tmp") in path.parents)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    _done(f"mount {target}", _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _done(what: str, result: int) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
