"""What the children of test_child.py do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any


class Obedient:
    def __init__(self, greeting: str = "") -> None:
        if greeting == "refuse":
            raise ValueError("no such greeting")
        self.greeting = greeting

    def greet(self, name: str) -> str:
        print("not among the answers")
        return f"{self.greeting} {name}"

    def pid(self) -> int:
        return os.getpid()

    def read_input(self) -> str:
        return sys.stdin.read()

    def long(self, count: int) -> str:
        return "x" * count

    def thing(self) -> object:
        return object()

    def hang(self) -> None:
        while True:
            pass

    def offspring(self, file: str) -> None:
        """Leaves a process behind and dies."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        with open(file, "w") as sink:
            sink.write(str(child.pid))
        os._exit(3)


class Busy:
    """Answers in any order."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.cancelled = 0

    async def wait(self, what: Any) -> Any:
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return what

    async def release(self) -> int:
        self.released.set()
        return self.cancelled

    async def fail(self) -> None:
        raise KeyError("lost")

    async def close(self) -> None:
        os._exit(7)  # says that it got here
