"""A worker for the tests of the back ends, imported by name in its process."""

import asyncio
import os
import sys
import threading
import time


class Counter:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.started_in = threading.get_ident()
        self._waiting = asyncio.Event()

    def add(self, number: int) -> int:
        assert threading.get_ident() == self.started_in, "ordinary methods run on the worker's own thread"
        return self.rank + number

    async def rendezvous(self, last: bool) -> str:
        """Returns for all callers when the last one has come: only possible if calls run side by side."""
        if last:
            self._waiting.set()
        await self._waiting.wait()
        return "together"

    def make(self, size: int) -> tuple[bytes, int]:
        return b"x" * size, size

    def length(self, value: bytes) -> int:
        return len(value)

    def fail(self) -> None:
        raise ValueError("no such thing")

    async def hang(self) -> None:
        await asyncio.Event().wait()

    def process(self) -> int:
        return os.getpid()

    def place(self) -> tuple[str | None, ...]:
        """The node, the GPUs that are visible here, and the threads that were told."""
        import ray

        names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
        return (ray.get_runtime_context().get_node_id(), *map(os.environ.get, names))

    def has_loaded(self, module: str) -> bool:
        return module in sys.modules

    async def echo(self, number: int) -> int:
        return number

    def compute(self, seconds: float) -> str:
        """Keeps the worker's thread busy."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return "done"

    async def block(self) -> None:
        """As a grader does that calls something slow in a coroutine."""
        time.sleep(1000)


class Broken:
    def __init__(self) -> None:
        raise FileNotFoundError("model folder is gone")


class Endless(Counter):
    released = threading.Event()

    def close(self) -> None:
        self.released.wait()
