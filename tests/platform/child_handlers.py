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


class Parent:
    """A worker: one child is started in its constructor, one on its event loop."""

    def __init__(self) -> None:
        from roll.platform.child import Child, same_imports

        self.children = [Child("child_handlers:Obedient", environment=os.environ | same_imports())]
        self.children[0].ready_blocking()

    async def ask(self) -> list[int]:
        """Their process numbers, told by themselves, and our own."""
        from roll.platform.child import Child, same_imports

        if len(self.children) == 1:
            self.children.append(Child("child_handlers:Obedient", environment=os.environ | same_imports()))
            await self.children[1].ready(30)
        return [*[await child.ask(30, "pid") for child in self.children], os.getpid()]

    def nothing(self) -> None: ...
