"""Roles on overlapping devices take turns. `LockTable` decides (pure), `DeviceLocks` waits.

A role holds all its devices together, and may hold them many times (its lanes work side by side). Requests are served first come,
first served: one that overlaps an earlier waiting request of another role waits behind it, so no request starves; but one without
which those who hold the devices cannot end joins them. Roles on disjoint devices never wait for each other. Locks are released
when the holder's block ends, by an exception too.

Runs of this user on one machine do not share accelerators unheard (`DeviceClaims`). Explorers and a trainer that share a machine
all count from 0: each takes some that no other holds, or hears whose they are, too.

A claim is a lock on a file, which the kernel gives up with the process. Runs that joined a cluster make none: Ray reserves their
devices, which may be anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from roll.core.distributed.clock import monotonic


@dataclass(eq=False, slots=True)
class Request:
    role: str
    joins: bool = False
    """True if it overtakes waiting requests, where its own role has the devices: that turn cannot end without it."""
    granted: bool = False


@dataclass(slots=True)
class LockTable:
    """The holders of devices and the waiting requests. `devices`: role -> the device indices it needs; `free`: the roles that
    work beside all others (`sharing: overlap`)."""

    devices: dict[str, frozenset[int]]
    free: frozenset[str] = frozenset()
    held: dict[str, int] = field(default_factory=dict)
    """Role -> number of times it holds its devices."""
    waiting: list[Request] = field(default_factory=list)

    def request(self, role: str, joins: bool = False) -> Request:
        request = Request(role, joins)
        self.waiting.append(request)
        self._grant()
        return request

    def release(self, request: Request) -> None:
        """Gives up a granted or a waiting request."""
        if request.granted:
            self.held[request.role] -= 1
            if self.held[request.role] == 0:
                del self.held[request.role]
            request.granted = False
        else:
            self.waiting.remove(request)
        self._grant()

    def blockers(self, role: str) -> list[str]:
        """The roles that hold devices `role` needs."""
        return [holder for holder in self.held if self.conflict(holder, role)]

    def conflict(self, one: str, other: str) -> bool:
        """True if these are two roles that use the same device in turns."""
        return one != other and self.free.isdisjoint((one, other)) and not self.devices[one].isdisjoint(self.devices[other])

    def _grant(self) -> None:
        still_waiting: list[Request] = []
        for request in self.waiting:
            free = not self.blockers(request.role)
            overtakes = any(self.conflict(earlier.role, request.role) for earlier in still_waiting)
            if free and (not overtakes or (request.joins and request.role in self.held)):
                request.granted = True
                self.held[request.role] = self.held.get(request.role, 0) + 1
            else:
                still_waiting.append(request)
        self.waiting = still_waiting


Turn = Callable[[], Awaitable[object]]


class DeviceLocks:
    """Async face of the table. When the devices change hands, the role that had them sleeps and the new one wakes."""

    def __init__(self, devices: dict[str, frozenset[int]], free: frozenset[str] = frozenset()) -> None:
        self.table = LockTable(devices, free)
        self._change = asyncio.Condition()
        self._sleepers: dict[str, tuple[Turn, Turn]] = {}
        self._asleep: set[str] = set()
        self._turning = asyncio.Lock()
        self.turns_s: list[float] = []
        """Seconds of each time that a role slept or woke."""

    def on_turn(self, role: str, sleep: Turn, wake: Turn) -> None:
        """Has `role` sleep (free memory) before another role uses its devices, and wake before it uses them again. A role that
        sleeps already goes on sleeping."""
        self._sleepers[role] = (sleep, wake)

    def shared(self, role: str) -> bool:
        """True if another role uses some of its devices, in turns with it."""
        return any(self.table.conflict(other, role) for other in self.table.devices)

    @asynccontextmanager
    async def hold(self, role: str, joins: bool = False) -> AsyncIterator[None]:
        """`joins`: see `Request`."""
        request = self.table.request(role, joins)
        try:
            if not request.granted:
                async with self._change:
                    await self._change.wait_for(lambda: request.granted)
            await self._turn_to(role)
            yield
        finally:
            self.table.release(request)
            async with self._change:
                self._change.notify_all()

    async def _turn_to(self, role: str) -> None:
        async with self._turning:
            for other in self._sleepers:
                if other not in self._asleep and other not in self.table.held and self.table.conflict(other, role):
                    await self._timed(self._sleepers[other][0])
                    self._asleep.add(other)
            if role in self._asleep:
                await self._timed(self._sleepers[role][1])
                self._asleep.discard(role)

    async def _timed(self, turn: Turn) -> None:
        began = monotonic()
        await turn()
        self.turns_s.append(monotonic() - began)


VISIBLE = "CUDA_VISIBLE_DEVICES"


class DeviceClaims:
    def __init__(self, who: str, folder: Path | None = None) -> None:
        """`who`: the name of this process in messages to others."""
        self._who = who
        self._folder = folder or Path(tempfile.gettempdir()) / f"roll-devices-{os.getuid()}"
        self._locks: dict[str, int] = {}
        self.held: dict[str, str] = {}
        """Devices held by others -> names of their holders."""

    def take(self, name: str) -> None:
        if name in self._locks:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._folder / name.replace("/", "_"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.held[name] = os.pread(descriptor, 1000, 0).decode(errors="replace") or "another run"
            os.close(descriptor)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._who.encode(), 0)
            self._locks[name] = descriptor

    def take_free(self, names: Sequence[str], count: int) -> list[str]:
        """The first `count` that are free; nothing is taken, and the first of all are given, if there are too few."""
        for name in names:
            if len(self._locks) < count:
                self.take(name)
        if len(self._locks) == count:
            return list(self._locks)
        self.give_back()
        return list(names[:count])

    def give_back(self) -> None:
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()


@contextlib.contextmanager
def claimed(who: str, there: int, used: Collection[int], enough: int | None, folder: Path | None = None) -> Iterator[list[str]]:
    """Claims the accelerators that a run uses of the `there` that are visible; `used`: their numbers. If `enough` devices suffice
    for the run, and the user has not chosen which, this process sees only that many from now on, free ones if possible. Yields
    the messages to report."""
    given, claims = os.environ.get(VISIBLE), DeviceClaims(who, folder)
    names = [name.strip() for name in given.split(",")][:there] if given else [str(index) for index in range(there)]
    moves = not given and enough is not None and enough < there
    try:
        with contextlib.suppress(OSError):  # no folder for locks: runs do not know of each other
            seen = claims.take_free(names, enough) if moves and enough is not None else names
            for index in sorted(used):
                claims.take(seen[index])
            if moves:
                os.environ[VISIBLE] = ",".join(seen)
            names = seen
        yield list(_said([names[index] for index in sorted(used)], claims.held))
    finally:
        claims.give_back()
        if moves:
            os.environ.pop(VISIBLE, None)
            os.environ |= {} if given is None else {VISIBLE: given}


def _said(used: Sequence[str], held: dict[str, str]) -> Iterator[str]:
    owners = "; ".join(dict.fromkeys(held.values()))
    if shared := [name for name in used if name in held]:
        fix = f"start each process with a {VISIBLE} of its own"
        yield f"! GPU {', '.join(shared)} of this machine: also used by {owners}; {fix}"
    elif held:
        yield f"on GPU {', '.join(used)} of this machine: {', '.join(held)} are used by {owners}"
