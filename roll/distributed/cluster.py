"""A role's workers, one a data-parallel rank, and how calls are dispatched to them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from roll.distributed.backend import Backend, Ref, WorkerDied, WorkerHandle, WorkerSpec, WorkerStartError

T = TypeVar("T")


class Cluster:
    def __init__(self, role: str, workers: Sequence[WorkerHandle], deadline_s: float) -> None:
        """`deadline_s`: the most that any one call may take (`rpc_timeout`)."""
        self.role = role
        self.workers = list(workers)
        self._deadline_s = deadline_s

    @classmethod
    async def start(cls, role: str, backend: Backend, specs: Sequence[WorkerSpec], deadline_s: float) -> Cluster:
        """Starts all workers at the same time; fails with the first one that fails."""
        workers = await asyncio.gather(*(_start(backend, spec, deadline_s) for spec in specs))
        return cls(role, workers, deadline_s)

    def __len__(self) -> int:
        return len(self.workers)

    async def call(self, rank: int, method: str, *args: Any) -> Any:
        """The method on one worker."""
        return await self._in_time(rank, method, self.workers[rank].call(method, *args))

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        """The same call on every rank; results by rank."""
        return list(await asyncio.gather(*(self.call(rank, method, *args) for rank in range(len(self)))))

    async def scatter(self, method: str, shards: Sequence[Any], *args: Any) -> list[Any]:
        """`method(shards[rank], *args)` on each rank; results by rank."""
        if len(shards) != len(self):
            raise ValueError(f"{self.role} has {len(self)} ranks, got {len(shards)} shards for {method}")
        return list(await asyncio.gather(*(self.call(rank, method, shard, *args) for rank, shard in enumerate(shards))))

    async def keep(self, rank: int, method: str, *args: Any) -> tuple[Ref, Any]:
        """For a method that returns (value, info): the value stays where it was made, (its reference, info) comes back."""
        return await self._in_time(rank, method, self.workers[rank].keep(method, *args))

    async def watch(self) -> None:
        """Raises `WorkerDied` as soon as a worker's process is gone, also when nobody is calling it."""
        pending = {asyncio.ensure_future(worker.died()): worker for worker in self.workers}
        try:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            raise WorkerDied(f"worker {pending[done.pop()].name} of role {self.role} died")
        finally:
            for task in pending:
                task.cancel()

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
