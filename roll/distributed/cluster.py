"""A role's workers, and how calls are dispatched to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from roll.distributed.backend import Backend, Ref, WorkerDied, WorkerHandle, WorkerSpec, WorkerStartError

T = TypeVar("T")


class Cluster:
    def __init__(
        self,
        role: str,
        workers: Sequence[WorkerHandle],
        deadline_s: float,
        shard_of: Sequence[int] | None = None,
        restart: Callable[[int], Coroutine[Any, Any, WorkerHandle]] | None = None,
    ) -> None:
        """`deadline_s`: the most that any one call may take (`rpc_timeout`). `shard_of`: the data-parallel rank of each worker;
        None means that each is one of its own. `restart`: starts the worker of a rank anew."""
        self.role = role
        self.workers = list(workers)
        self.shard_of = tuple(shard_of if shard_of is not None else range(len(self.workers)))
        self._deadline_s = deadline_s
        self._restart = restart

    @classmethod
    async def start(
        cls, role: str, backend: Backend, specs: Sequence[WorkerSpec], deadline_s: float, shard_of: Sequence[int] | None = None
    ) -> Cluster:
        """Starts all workers at the same time; fails with the first one that fails."""
        workers = await asyncio.gather(*(_start(backend, spec, deadline_s) for spec in specs))
        return cls(role, workers, deadline_s, shard_of, lambda rank: _start(backend, specs[rank], deadline_s))

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def num_shards(self) -> int:
        """Data-parallel size: the parts a batch is divided into."""
        return max(self.shard_of) + 1

    async def call(self, rank: int, method: str, *args: Any) -> Any:
        """The method on one worker."""
        return await self._in_time(rank, method, self.workers[rank].call(method, *args))

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        """The same call on every rank; results by rank."""
        return list(await asyncio.gather(*(self.call(rank, method, *args) for rank in range(len(self)))))

    async def scatter(self, method: str, shards: Sequence[Any], *args: Any) -> list[Any]:
        """`method(shard, *args)` on each worker, with the shard of its data-parallel rank; results by shard, each from the first
        of the workers that had it."""
        if len(shards) != self.num_shards:
            raise ValueError(f"{self.role} has {self.num_shards} data-parallel ranks, got {len(shards)} shards for {method}")
        calls = (self.call(rank, method, shards[shard], *args) for rank, shard in enumerate(self.shard_of))
        results = await asyncio.gather(*calls)
        return [results[self.shard_of.index(shard)] for shard in range(self.num_shards)]

    async def keep(self, rank: int, method: str, *args: Any) -> tuple[Ref, Any]:
        """For a method that returns (value, info): the value stays where it was made, (its reference, info) comes back."""
        return await self._in_time(rank, method, self.workers[rank].keep(method, *args))

    async def restart(self, rank: int) -> None:
        """A new worker in the place of one whose process is gone. Raises `WorkerStartError` if it does not come up."""
        assert self._restart is not None, "a cluster made of ready workers cannot start others"
        self.workers[rank] = await self._restart(rank)

    async def watch(self, on_death: Callable[[int], Awaitable[None]] | None = None) -> None:
        """Notices that a worker's process is gone, also when nobody is calling it: raises `WorkerDied`, or awaits
        `on_death(rank)`, which has to restart the worker, and watches on."""
        watching = [asyncio.ensure_future(self._watch(rank, on_death)) for rank in range(len(self))]
        try:
            await asyncio.gather(*watching)
        finally:
            for task in watching:
                task.cancel()

    async def _watch(self, rank: int, on_death: Callable[[int], Awaitable[None]] | None) -> None:
        while True:
            await self.workers[rank].died()
            if on_death is None:
                raise WorkerDied(f"worker {self.workers[rank].name} of role {self.role} died")
            await on_death(rank)

    async def _in_time(self, rank: int, method: str, answer: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.wait_for(answer, self._deadline_s)
        except TimeoutError as error:
            who = f"{self.role}[{rank}].{method}"
            raise TimeoutError(f"{who} gave no answer in {self._deadline_s:.0f} s (rpc_timeout)") from error


async def _start(backend: Backend, spec: WorkerSpec, deadline_s: float) -> WorkerHandle:
    try:
        return await asyncio.wait_for(backend.start(spec), deadline_s)
    except TimeoutError as error:
        raise WorkerStartError(f"worker {spec.name} is not ready after {deadline_s:.0f} s (rpc_timeout)") from error
    except Exception as error:
        raise WorkerStartError(f"worker {spec.name} cannot start: {type(error).__name__}: {error}") from error
