"""The two ends of a version's way, in the workers: a trainer's rank exports its share, an engine takes part in broadcasts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from roll.core.weights.bucket import Bucket, BucketFile, Put, Readable
from roll.core.weights.store import BroadcastMember, Link, Made
from roll.transports.broadcast import BroadcastGroups
from roll.transports.delta import LastShare
from roll.transports.lending import Borrower, Lender, LentBucket
from roll.transports.node_files import host, node_file, path_of
from roll.transports.shared_buffers import BUFFERS, SharedBuffer


class BroadcastSender:
    """A `store.SendingEnd`: a rank's share of each version."""

    def __init__(self, kinds: Mapping[str, type[SharedBuffer]] = BUFFERS) -> None:
        self._lender = Lender(kinds)
        self._share: Iterator[Bucket] | None = None
        self._last_share = LastShare()
        self._groups = BroadcastGroups()

    def lend(self, bucket_bytes: int) -> Put:
        return self._lender.begin(bucket_bytes)

    def begin(self, buckets: Iterator[Bucket], link: Link | None = None) -> None:
        self._share = buckets if link is None else self._last_share.linked(link, buckets)

    def next(self, path: str = "", slot: int | None = None) -> tuple[Bucket | None, Made | None]:
        assert self._share is not None, "next before begin"
        self._lender.use(slot)
        bucket = next(self._share, None)
        if bucket is None:
            self._share = None
            return None, None
        made = bucket.names, bucket.checksum, bucket.nbytes
        if path:
            BucketFile.write(bucket, Path(path))
        lent = self._lender.lent(bucket.names)
        return None if path else bucket, made if lent is None else (*made, lent)

    async def broadcast(self, member: BroadcastMember, *buckets: Bucket) -> None:
        """Sends the buckets in a thread of the event loop's pool."""
        await asyncio.to_thread(self._groups.send, member, buckets)


class BroadcastReceiver:
    """A `store.ReceivingEnd`: broadcasts to one engine, which can share what it receives with the engines of its host."""

    def __init__(self) -> None:
        self._groups = BroadcastGroups()
        self._receiving: int | None = None
        """The version whose broadcast has not been given up."""
        self._reads = ""
        """The reason why a lent bucket was last read from its file."""
        self._shared: list[int] = []
        """Descriptors of the buckets that other engines may read."""

    def host(self) -> str:
        return host()

    def give_up(self) -> None:
        self._receiving = None

    async def borrow(self, strategy: object, version: int, bucket: Readable) -> bool:
        if not isinstance(bucket, LentBucket) or not isinstance(strategy, Borrower):
            return False
        try:
            await strategy.receive_lent(version, bucket)
        except ValueError as error:
            if self._reads != str(error):
                logging.getLogger(__name__).warning("lent weights are read from their file: %s", error)
            self._reads = str(error)
            return False
        return True

    async def receive(
        self, into: Callable[[int, Bucket], Awaitable[None]], version: int, member: BroadcastMember, count: int, shares: bool
    ) -> list[BucketFile]:
        self._receiving, buckets = version, self._groups.receive(member, count)
        shared: list[BucketFile] = []
        while (bucket := await asyncio.to_thread(next, buckets, None)) is not None and self._receiving == version:
            if shares:
                self._shared.append(await asyncio.to_thread(node_file, bucket))
                shared.append(BucketFile(path_of(self._shared[-1]), bucket.names, bucket.checksum, bucket.nbytes))
                bucket = await asyncio.to_thread(shared[-1].read)
            await into(version, bucket)
        return shared

    def loaded(self) -> None:
        while self._shared:
            os.close(self._shared.pop())
