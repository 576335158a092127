"""A worker that can be stuck, imported by name in its process."""

import asyncio
import time
from pathlib import Path


class Stuck:
    async def answer(self, released: str) -> str:
        return "soon"

    async def block_the_event_loop(self, released: str) -> str:
        """As somebody does who calls something slow in a coroutine."""
        while not Path(released).exists():
            time.sleep(0.02)
        return "late"

    def block_the_thread(self, released: str) -> str:
        while not Path(released).exists():
            time.sleep(0.02)
        return "late"

    async def wait_for_nobody(self, released: str) -> str:
        """Blocks nothing; only the task shows where it waits."""
        while not Path(released).exists():
            await asyncio.sleep(0.02)
        return "late"
