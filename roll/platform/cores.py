"""The cores of a machine follow the work: a worker that computes on CPUs uses the cores of waiting ones, too.

Each worker has a share of the cores, its threads. In a table that all processes of this user on this machine see, it says when it
computes. A computing worker has its own share, and an equal part of the cores beyond the shares of all computing ones. A place in
the table is locked as long as its worker lives, so one that is killed leaves no share behind.

Programs that are in no table may have the cores that seem to be left. Threads that wait for each other are slower then than one
alone (two on a machine with twice as many runnable threads as cores: a fifth of the speed), so a borrower measures how long its
threads wait for a core, and if that is long keeps to its share for a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from roll.core.distributed.clock import monotonic
from roll.core.distributed.machine import usable_cores

P = ParamSpec("P")
T = TypeVar("T")
PLACES = 256
WAITED = "/proc/{}/schedstat"
MOST_THREADS = 255
"""Threads of a share, at most, as it is a byte of the table: 0 while its worker waits."""


def threads_of(cores: int, own: int, others: Sequence[int]) -> int:
    """Returns the threads of a computing worker with the share `own`. `others`: the shares of the others that compute now."""
    left = cores - own - sum(others)
    return own + max(0, left) // (1 + len(others))


class Contention:
    """Test whether borrowed cores are really free. Pure: times are given, in seconds."""

    WINDOW_S = 0.2
    MOST_WAITING = 0.1
    """Share of a window for which threads may wait for a core, all of them added up."""
    FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 32.0

    def __init__(self) -> None:
        self._pause_s, self._until = self.FIRST_PAUSE_S, 0.0
        self._window: tuple[float, float] | None = None
        """Beginning of the window, and the threads' total wait by then."""

    def lets(self, now: float, waited: Callable[[], float]) -> bool:
        """True if it may borrow from now on. `waited`: returns the threads' total wait so far, in seconds."""
        if now < self._until:
            return False
        if self._window is None:
            self._window = now, waited()
            return True
        began, before = self._window
        if now - began < self.WINDOW_S:
            return True
        after = waited()
        if after - before <= self.MOST_WAITING * (now - began):
            self._window, self._pause_s = (now, after), self.FIRST_PAUSE_S
            return True
        self._window, self._until = None, now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self.LONGEST_PAUSE_S)
        return False

    def forget(self) -> None:
        """Discards this window, as another worker began in it."""
        self._window = None


class Cores:
    """One worker's place. It keeps to its own share where there is no table (it is another user's, or full), and where the system
    does not say how long threads wait."""

    def __init__(self, own: int, borrows: bool = True, table: Path | None = None, cores: int | None = None) -> None:
        """`own`: its share. `borrows`: it may have more threads than its share. `cores`: those of the machine that this process
        may use."""
        self._own, self._cores = own, cores or usable_cores()
        self._table: mmap.mmap | None = None
        self._place = -1
        self._contention = Contention()
        self.borrows = borrows and os.path.exists(WAITED.format("thread-self"))
        path = table or Path(tempfile.gettempdir()) / f"roll-cores-{os.getuid()}"
        if hasattr(fcntl, "F_OFD_SETLK"):  # Linux
            with contextlib.suppress(OSError):  # then it keeps to its own share
                self._join(path)
        torch.set_num_threads(own)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """May not be nested."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Marks it as computing, with as many threads as it should have."""
        if self._table is not None:
            self._table[self._place] = min(self._own, MOST_THREADS)
        self.follow()

    def end(self) -> None:
        """Marks it as waiting."""
        if self._table is not None:
            self._table[self._place] = 0

    def follow(self) -> None:
        """Sets the number of torch's threads for the calling thread's next computation."""
        threads = self.threads
        if threads <= self._own:
            self._contention.forget()
        elif not self._contention.lets(monotonic(), waited_s):
            threads = self._own
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    @property
    def threads(self) -> int:
        """Threads that it may use now, if it computes, by the table."""
        if self._table is None or not self.borrows:
            return self._own
        shares = self._table[:]
        others = [share for place, share in enumerate(shares) if share and place != self._place]
        return threads_of(self._cores, self._own, others)

    def _join(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        end = weakref.finalize(self, os.close, file)  # and with it goes the lock, as it does when the process ends
        if os.fstat(file).st_uid != os.getuid():
            return
        os.ftruncate(file, PLACES)
        table = mmap.mmap(file, PLACES)
        for place in range(PLACES):
            if not _lock(file, place):
                continue
            table[place] = 0  # whoever had it is gone
            if self._table is None:
                self._table, self._place = table, place
            else:
                _lock(file, place, fcntl.F_UNLCK)
        if self._table is None:
            end()


def one_thread(call: Callable[P, T]) -> Callable[P, T]:
    """Wraps `call` to use one of torch's threads, so that the calling thread begins no pool of them."""

    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return call(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return alone


def waited_s() -> float:
    """Returns how long the threads of this process have waited for a core while they could have run, all of them added up."""
    nanoseconds = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(WAITED.format(f"self/task/{thread}")) as file:  # it may have ended
            nanoseconds += int(file.read().split()[1])
    return nanoseconds / 1e9


def _lock(file: int, place: int, kind: int = fcntl.F_WRLCK) -> bool:
    """Locks a place for the open file, not for the process: workers of one process have places of their own. False if another has
    it."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, place, 1, 0))
    except BlockingIOError:
        return False
    return True
