"""Workers of this process that can die, like processes: what they were doing is lost, and nobody hears of them again."""

import asyncio
from collections import Counter

from roll.core.errors import WorkerDied
from roll.platform.local_backend import LocalBackend, LocalHandle, WorkerHost


class MortalHandle(LocalHandle):
    killable = True

    def __init__(self, host, name, backend):
        super().__init__(host, name)
        self._backend = backend
        self._dead = asyncio.Event()

    async def call(self, method, *args):
        self._backend.calls[self.name, method] += 1
        if self._backend.calls[self.name, method] in self._backend.deaths.get((self.name, method), ()):
            self.kill()
        if self._backend.calls[self.name, method] in self._backend.hangs.get((self.name, method), ()):
            await self._unless_dead(asyncio.Event().wait())
        return await self._unless_dead(super().call(method, *args))

    async def call_for_reference(self, method, *args):
        return await self._unless_dead(super().call_for_reference(method, *args))

    async def died(self):
        await self._dead.wait()

    async def ping(self):
        await self._unless_dead(asyncio.sleep(0))

    def kill(self):
        self._dead.set()

    async def _unless_dead(self, work):
        working, dead = asyncio.ensure_future(work), asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait({working, dead}, return_when=asyncio.FIRST_COMPLETED)
            if self._dead.is_set():
                raise WorkerDied(f"worker {self.name} died")
            return working.result()
        finally:
            working.cancel()
            dead.cancel()


class MortalBackend(LocalBackend):
    isolated = True

    def __init__(self, deaths, hangs=None):
        """`deaths`: (worker's name, method) -> which calls of it, counted over all workers of that name, kill the worker.
        `hangs`: likewise, which calls never end."""
        super().__init__()
        self.deaths, self.hangs = deaths, hangs or {}
        self.calls = Counter()

    async def start(self, spec):
        host = WorkerHost(spec)
        async with self._starting:
            await host.start()
        self._handles.append(MortalHandle(host, spec.name, self))
        return self._handles[-1]
