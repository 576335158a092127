"""The driver's part of lending: which buffer of a rank the next bucket goes into, and which engines read it.

A buffer is written again only when no call that has its handle is open; from then on who asks for its former bucket gets the
file. A call ends with its answer, or with its worker: an engine that dies gives the buffer back, and one that hangs keeps what it
reads until it is killed; it is waited for once, for a second, and then buckets are in their files alone. A handle of a rank that
died leads nowhere, and what it leads to is compared with the seals of its tensors in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from roll.core.weights.bucket import BucketFile, Readable
from roll.transports.handles import HandleStore
from roll.transports.lending import COUNT, Lent, LentBucket

PATIENCE_S = 1.0


@dataclass(slots=True, eq=False)
class _Buffer:
    readers: int = 0
    """Calls that are open."""
    late: bool = False
    """Some of them were waited for in vain."""
    loan: Loan | None = None
    """The bucket that is in it."""


class LendingHandleStore(HandleStore):
    """A `LendingStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[int, list[_Buffer]] = {}
        """By rank; the one that was written last is the last."""
        self._numbers: dict[_Buffer, int] = {}
        self._released = asyncio.Event()
        self.taken = 0
        """Bytes that engines have copied from buffers."""

    async def slot(self, rank: int) -> int | None:
        """Returns the number of a buffer that nobody reads, whose bucket is lent no more; None: there is none. It is the one
        written before the last, so that engines have the time of a bucket to ask for the last."""
        if rank not in self._buffers:
            self._buffers[rank] = [_Buffer() for _ in range(COUNT)]
            self._numbers |= {buffer: number for number, buffer in enumerate(self._buffers[rank])}
        buffers = self._buffers[rank]
        if not buffers[0].late:
            await self._wait_for(buffers[0])
        free = next((buffer for buffer in buffers if not buffer.readers), None)
        if free is None:
            return None
        buffers.remove(free)
        buffers.append(free)
        free.loan = None
        return self._numbers[free]

    async def _wait_for(self, buffer: _Buffer) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while buffer.readers:
                    self._released.clear()
                    await self._released.wait()
        except TimeoutError:
            buffer.late = True

    def release(self, buffer: _Buffer) -> None:
        buffer.readers -= 1
        buffer.late = buffer.late and buffer.readers > 0
        self._released.set()

    def lend(self, rank: int, file: BucketFile, lent: object) -> Loan:
        """Lends the bucket that is in the buffer which `slot` returned last."""
        assert isinstance(lent, Lent)
        buffer = self._buffers[rank][-1]
        buffer.loan = Loan(file, lent, buffer, self)
        return buffer.loan


@dataclass(slots=True, eq=False)
class Loan:
    """A `BucketRef`. Its file is its argument."""

    argument: BucketFile
    _lent: Lent
    _buffer: _Buffer
    _store: LendingHandleStore
    path: str = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.argument.path

    @property
    def names(self) -> tuple[str, ...]:
        return self.argument.names

    @property
    def checksum(self) -> int:
        return self.argument.checksum

    @property
    def nbytes(self) -> int:
        return self.argument.nbytes

    async def hand_to(self, deliver: Callable[[Readable], Awaitable[object]]) -> None:
        """Calls a receiver, whose answer is true if it has copied what is lent."""
        file, buffer = self.argument, self._buffer
        if buffer.loan is not self:
            await deliver(file)
            return
        buffer.readers += 1
        try:
            if await deliver(LentBucket(file.path, file.names, file.checksum, file.nbytes, self._lent)):
                self._store.taken += self.nbytes
        finally:
            self._store.release(buffer)
