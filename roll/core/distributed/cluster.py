"""A role's workers, and how calls are dispatched to them.

`silence`: a worker that runs answers a ping soon, however busy it is. One that does not is stopped, stuck, or blocks its event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from roll.core.distributed.backend import Backend, Ref, WorkerHandle, WorkerSpec
from roll.core.distributed.machine import ProcessMemory
from roll.core.errors import BackendLost, NodeLost, WorkerDied, WorkerStartError, boundary

PARTS = 10
"""A deadline is waited for in this number of parts: if the driver itself was asleep, at most one of them is counted."""
QUIET_S = 4.0
"""Seconds of silence after which a worker's requests are started on others, too."""
WARN_S = 10.0
"""Seconds of silence that are not logged."""


async def silence(worker: WorkerHandle, deadline_s: float, quiet: Callable[[bool], None] | None = None) -> str:
    """Returns when the worker has not answered for `deadline_s`, with these words; 0 waits for ever. Warns each time that a tenth
    of the deadline (10 s at least) has passed. `quiet` is called with True after `QUIET_S` without an answer, and with False at
    the next answer."""
    part, told = deadline_s / PARTS if quiet is None else min(deadline_s / PARTS, QUIET_S / 2), False
    while deadline_s:
        ping = asyncio.ensure_future(worker.ping())
        try:
            silent = 0.0
            warned = 0.0
            while not (await asyncio.wait({ping}, timeout=part))[0]:
                silent += part
                if quiet is not None and not told and silent >= QUIET_S:
                    told = True
                    quiet(True)
                if silent >= deadline_s - part / 2:
                    return f"has not answered for {deadline_s:g} s (heartbeat_timeout): it was killed"
                if silent - warned >= max(WARN_S, deadline_s / PARTS):
                    warned = silent
                    logger.warning("%s has not answered for %.0f s", worker.name, silent)
            if quiet is not None and told and ping.exception() is None:
                told = False
                quiet(False)
        finally:
            ping.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await ping  # the ping may have ended with the worker, which others notice
        await asyncio.sleep(min(WARN_S, part))
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


logger = logging.getLogger(__name__)

T = TypeVar("T")
DIED = "died"
END_S = 60.0
"""Seconds to wait for killed processes to be gone."""
PING_S = 10.0
"""Seconds to wait for a worker's answer to a ping."""
PROGRESS_S = 30.0
"""Time between two lines about workers that are not ready yet."""


@dataclass(eq=False, slots=True)
class OpenCall:
    worker: str
    method: str
    since: float
    """Seconds of the monotonic clock."""
    rank: int
    limit: asyncio.Timeout
    given_up: Exception | None = None


class Cluster:
    def __init__(
        self,
        role: str,
        workers: Sequence[WorkerHandle],
        deadline_s: float,
        shard_of: Sequence[int] | None = None,
        restart: Callable[[int], Coroutine[object, object, WorkerHandle]] | None = None,
        heartbeat_s: float = 0.0,
        backend: Backend | None = None,
    ) -> None:
        """`deadline_s`: the most that any one call may take (`rpc_timeout`); a worker that takes longer is killed, if it can be.
        `shard_of`: the data-parallel rank of each worker; None means that each is one of its own. `restart`: starts the worker of
        a rank again. `heartbeat_s`: how long a worker may be silent (`heartbeat_timeout`), 0 for ever. `backend`: makes a share
        that several ranks have ready once for all of them."""
        self.role = role
        self.workers = list(workers)
        self.shard_of = tuple(shard_of if shard_of is not None else range(len(self.workers)))
        self._deadline_s = deadline_s
        self._restart = restart
        self._heartbeat_s = heartbeat_s
        self._backend = backend
        self._open: dict[OpenCall, None] = {}
        self._replaced: dict[int, asyncio.Event] = {}
        """Rank -> event that is set when it gets another worker; only for ranks that somebody waits for."""
        self.unanswered: set[int] = set()
        """Ranks whose connection was lost during a call: whether it was done is not known, though the worker may live."""
        self.restarts = 0
        """Number of replaced workers."""

    @classmethod
    async def start(
        cls,
        role: str,
        backend: Backend,
        specs: Sequence[WorkerSpec],
        deadline_s: float,
        shard_of: Sequence[int] | None = None,
        *,
        start_s: float | None = None,
        heartbeat_s: float = 0.0,
    ) -> Cluster:
        """Starts all workers at the same time; fails with the first one that fails. `start_s`: the most that a start may take
        (`worker_start_timeout`), None for `deadline_s`."""
        limit = deadline_s if start_s is None else start_s
        starting = [asyncio.ensure_future(_start(backend, spec, limit)) for spec in specs]
        reporting = asyncio.ensure_future(_report_progress([spec.name for spec in specs], starting))
        try:
            workers = await asyncio.gather(*starting)
        finally:
            for task in (reporting, *starting):
                task.cancel()
        return cls(role, workers, deadline_s, shard_of, lambda rank: _start(backend, specs[rank], limit), heartbeat_s, backend)

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def num_shards(self) -> int:
        """Data-parallel size: the parts a batch is divided into."""
        return max(self.shard_of) + 1

    async def call(self, rank: int, method: str, *args: object) -> Any:
        """The method on one worker."""
        return await self._in_time(rank, method, self.workers[rank].call(method, *args))

    async def call_all(self, method: str, *args: object) -> list[Any]:
        """Makes the same call on every rank; results by rank."""
        return list(await asyncio.gather(*(self.call(rank, method, *args) for rank in range(len(self)))))

    async def scatter(self, method: str, shards: Sequence[object], *args: object) -> list[Any]:
        """Calls `method(shard, *args)` on each worker, with the shard of its data-parallel rank; results by shard, each from the
        first worker that had it."""
        if len(shards) != self.num_shards:
            raise ValueError(f"{self.role} has {self.num_shards} data-parallel ranks, got {len(shards)} shards for {method}")
        if self._backend is not None and len(self) > len(shards):  # tensor and pipeline ranks of a share have the same one
            shards = await asyncio.gather(*map(self._backend.put, shards))
        calls = (self.call(rank, method, shards[shard], *args) for rank, shard in enumerate(self.shard_of))
        results = await asyncio.gather(*calls)
        return [results[self.shard_of.index(shard)] for shard in range(self.num_shards)]

    async def call_for_reference(self, rank: int, method: str, *args: object) -> tuple[Ref, Any]:
        return await self._in_time(rank, method, self.workers[rank].call_for_reference(method, *args))

    def oldest_call(self) -> OpenCall | None:
        """Returns the call that waits longest for its answer. Any thread may ask."""
        return next(iter(list(self._open)), None)

    def give_up(self, rank: int, why: Exception, but: str) -> None:
        """Ends the calls to this worker, which raise `why`; those of the method `but` go on."""
        for call in list(self._open):
            if call.rank == rank and call.method != but:
                call.given_up = why
                call.limit.reschedule(asyncio.get_running_loop().time())

    async def memory(self, deadline_s: float) -> dict[str, ProcessMemory]:
        """Returns memory by worker; without workers that are gone, do not answer in time, or have no process of their own."""
        asked = {worker.name: asyncio.wait_for(worker.memory(), deadline_s) for worker in self.workers}
        answers = await asyncio.gather(*asked.values(), return_exceptions=True)
        return {name: answer for name, answer in zip(asked, answers, strict=True) if isinstance(answer, ProcessMemory)}

    async def restart(self, rank: int) -> None:
        """Starts a new worker for one whose process is gone. Raises `WorkerStartError` if it does not come up."""
        assert self._restart is not None, "a cluster made of ready workers cannot start others"
        self.put(rank, await self._restart(rank))
        self.restarts += 1

    def put(self, rank: int, worker: WorkerHandle) -> None:
        """Replaces the rank's worker by this one."""
        self.workers[rank] = worker
        self.unanswered.discard(rank)
        self._replaced.pop(rank, asyncio.Event()).set()

    async def silent(self, within_s: float = PING_S) -> dict[int, WorkerDied | TimeoutError]:
        """Returns the ranks that are dead (`WorkerDied`) or give no sign of life in time. Raises `BackendLost`."""
        asked = (asyncio.wait_for(worker.ping(), within_s) for worker in self.workers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if lost := next((answer for answer in answers if isinstance(answer, BackendLost)), None):
            raise lost
        return {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, WorkerDied | TimeoutError)}

    async def replace_silent(self) -> None:
        """Replaces workers that are dead or hang."""
        ranks = await self.silent(self._heartbeat_s or PING_S)
        for rank in ranks:
            self.workers[rank].kill()
        await asyncio.gather(*map(self.restart, ranks))

    async def end(self) -> None:
        """Kills all workers, busy or not; returns when their processes are gone. Raises `TimeoutError`."""
        for worker in self.workers:
            worker.kill()
        await asyncio.wait_for(asyncio.gather(*(worker.died() for worker in self.workers)), END_S)

    async def watch(
        self, on_death: Callable[[int], Awaitable[None]] | None = None, quiet: Callable[[int, bool], None] | None = None
    ) -> None:
        """Notices that a worker's process is gone or hangs, also when there is no call to it: raises `WorkerDied`, or awaits
        `on_death(rank)`, which has to restart the worker, and watches on. `quiet`: as of `silence`, with the rank. Raises
        `BackendLost`, too."""
        await self._for_all(lambda rank: self._watch(rank, on_death, None if quiet is None else partial(quiet, rank)))

    async def kill_silent(self) -> None:
        """Kills workers that hang, for callers that find dead workers by calling them. Never ends."""
        await self._for_all(self._kill_silent)

    async def _for_all(self, watcher: Callable[[int], Coroutine[object, object, None]]) -> None:
        watching = [asyncio.ensure_future(watcher(rank)) for rank in range(len(self))]
        try:
            await asyncio.gather(*watching)
        finally:
            for task in watching:
                task.cancel()

    async def _watch(
        self, rank: int, on_death: Callable[[int], Awaitable[None]] | None, quiet: Callable[[bool], None] | None
    ) -> None:
        while True:
            what = await self._end(self.workers[rank], quiet)
            if on_death is None:
                raise WorkerDied(f"worker {self.workers[rank].name} of role {self.role} {what}")
            if what != DIED:
                logger.warning("worker %s %s", self.workers[rank].name, what)
            await on_death(rank)

    async def _end(self, worker: WorkerHandle, quiet: Callable[[bool], None] | None) -> str:
        """Waits for the end of the worker, and returns its reason."""
        died = asyncio.ensure_future(worker.died())
        silent = asyncio.ensure_future(silence(worker, self._heartbeat_s, quiet))
        try:
            await asyncio.wait({died, silent}, return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                died.result()
                return DIED
            worker.kill()
            return silent.result()
        finally:
            died.cancel()
            silent.cancel()

    async def _kill_silent(self, rank: int) -> None:
        while True:
            worker = self.workers[rank]
            what = await silence(worker, self._heartbeat_s)
            if worker is self.workers[rank]:
                logger.warning("worker %s %s", worker.name, what)
                worker.kill()
                await self._replaced.setdefault(rank, asyncio.Event()).wait()

    async def _in_time(self, rank: int, method: str, answer: Coroutine[object, object, T]) -> T:
        worker, limit = self.workers[rank], asyncio.timeout(self._deadline_s)
        this = OpenCall(worker.name, method, time.monotonic(), rank, limit)
        self._open[this] = None
        try:
            async with limit:
                return await answer
        except WorkerDied:
            self.unanswered.add(rank)
            raise
        except TimeoutError as error:
            if not limit.expired():
                raise
            if this.given_up is not None:
                raise this.given_up from error
            message = f"{self.role}[{rank}].{method} gave no answer in {self._deadline_s:.0f} s (rpc_timeout)"
            if worker.killable:
                worker.kill()
                raise WorkerDied(f"{message}: worker {worker.name} was killed") from error
            raise TimeoutError(message) from error
        finally:
            del self._open[this]


async def _start(backend: Backend, spec: WorkerSpec, deadline_s: float) -> WorkerHandle:
    try:
        with boundary(WorkerStartError, f"worker {spec.name} cannot start", (BackendLost, NodeLost, TimeoutError)):
            return await asyncio.wait_for(backend.start(spec), deadline_s)
    except TimeoutError as error:
        raise WorkerStartError(f"worker {spec.name} is not ready after {deadline_s:.0f} s (worker_start_timeout)") from error
    except NodeLost as error:
        raise NodeLost(f"worker {spec.name} cannot start: {error}") from error


async def _report_progress(names: Sequence[str], starting: Sequence[asyncio.Future[WorkerHandle]]) -> None:
    waited = 0.0
    while True:
        await asyncio.sleep(PROGRESS_S)
        waited += PROGRESS_S
        if missing := [name for name, start in zip(names, starting, strict=True) if not start.done()]:
            logger.warning("not ready after %.0f s: %s", waited, ", ".join(missing))
