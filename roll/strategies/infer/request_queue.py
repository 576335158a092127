"""The front of every engine: which requests can be run, which enters next, and how long the engine has been busy.

`hf_infer`, which admits between two token steps on a thread of its own, takes the parts; the engines that are other processes
have a `RequestQueue`. They never queue themselves, so a waiting request has no policy version yet, and validation overtakes
training.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

from roll.core.distributed.waiting_line import WaitingLine
from roll.core.errors import Aborted
from roll.core.workers.infer_interface import EngineStats, GenerateRequest
from roll.prompts.image_folder import is_image


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Limits of an engine's requests."""

    vocab_size: int
    max_length: int
    """Most tokens of prompt and response together."""
    has_tokenizer: bool = True
    sees: bool = False
    """Prompts may have numbers of images."""

    def tokens_left(self, request: GenerateRequest) -> int:
        """The most tokens that this call may sample; not positive if there is nothing left to do. `ValueError` if the request can
        never be run."""
        params, name = request.sampling, f"request {request.request_id!r}"
        room = self.max_length - len(request.prompt_ids)
        if not request.prompt_ids:
            raise ValueError(f"{name}: the prompt is empty")
        tokens = [token for token in request.prompt_ids if not is_image(token)] if self.sees else request.prompt_ids
        if min(*tokens, *request.partial_ids, 0) < 0 or max(*tokens, *request.partial_ids, 0) >= self.vocab_size:
            raise ValueError(f"{name}: token ids must lie in [0, {self.vocab_size})")
        if room < 1:
            raise ValueError(
                f"{name}: a prompt of {len(request.prompt_ids)} tokens leaves no room in max_length={self.max_length}"
            )
        if not (params.temperature >= 0 and 0 < params.top_p <= 1 and params.top_k >= 0 and params.max_new_tokens > 0):
            raise ValueError(f"{name}: sampling parameters out of range: {params}")
        if params.stop_strings and not (self.has_tokenizer and all(params.stop_strings)):
            raise ValueError(f"{name}: stop strings need a tokenizer and must not be empty")
        return min(params.max_new_tokens, room) - len(request.partial_ids)


class BusyTime:
    """Seconds with at least one request running."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    def count(self, busy: bool) -> None:
        """Takes the number of running requests. It is called at every change, and may be called more often."""
        now = time.perf_counter()
        if busy and self._since is None:
            self._since = now
        elif not busy and self._since is not None:
            self._before += now - self._since
            self._since = None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._since is None else time.perf_counter() - self._since)


class RequestQueue:
    """Lets requests into an engine: at most so many together, and none while it is held."""

    def __init__(self, bounds: RequestBounds, places: int) -> None:
        self.bounds = bounds
        self._places = places
        self._holds = 0
        self._line: WaitingLine[str, tuple[str, asyncio.Future[None]]] = WaitingLine()
        self._inside: dict[str, Literal["admitted", "begun", "aborted"]] = {}
        """An admitted request whose coroutine has not resumed yet may still be aborted."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._busy = BusyTime()
        self._ended: Exception | None = None

    @asynccontextmanager
    async def enter(self, request: GenerateRequest) -> AsyncIterator[None]:
        """Waits for the request's turn; the request is inside as long as the block runs. Raises `Aborted`, what `end` was given,
        and `ValueError` if the request's id is in use."""
        name = request.request_id
        if self._ended is not None:
            raise self._ended
        if name in self._inside or name in self._line:
            raise ValueError(f"request {name!r} is running or queued already")
        turn = asyncio.get_running_loop().create_future()
        self._line.add(name, request.priority, (name, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            self._line.remove(name)
            self._leave(name)
            raise
        try:
            if self._inside[name] == "aborted":
                raise Aborted(name)
            self._inside[name] = "begun"
            yield
        finally:
            self._leave(name)

    def abort(self, request_ids: Collection[str] | None) -> list[str]:
        """Gives up those of the named requests (all if None) that have not begun; returns those that have."""
        for name in [name for name in self._line.names if request_ids is None or name in request_ids]:
            self._give_up(name, Aborted(name))
        inside = [name for name in self._inside if request_ids is None or name in request_ids]
        self._inside |= {name: "aborted" for name in inside if self._inside[name] == "admitted"}
        return [name for name in inside if self._inside[name] == "begun"]

    def hold(self) -> None:
        """Lets nothing enter any more; requests inside go on. Every `hold` needs its `release`."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        self._admit()

    def end(self, why: Exception) -> None:
        """Ends the queue: every waiting and later request raises the reason."""
        self._ended = why
        for name in self._line.names:
            self._give_up(name, why)

    async def empty(self) -> None:
        """Returns when nothing is inside."""
        await self._empty.wait()

    def stats(self, counted: EngineStats) -> EngineStats:
        """The engine's figures `counted`, completed by the queue's own."""
        inside = len(self._inside)
        return replace(
            counted, running=inside, queued=len(self._line), free_slots=self._places - inside, busy_s=self._busy.seconds
        )

    def _give_up(self, name: str, why: Exception) -> None:
        if (waiting := self._line.remove(name)) is not None and not waiting[1].done():
            waiting[1].set_exception(why)

    def _leave(self, name: str) -> None:
        self._inside.pop(name, None)
        if not self._inside:
            self._empty.set()
        self._admit()

    def _admit(self) -> None:
        while not self._holds and len(self._inside) < self._places and (waiting := self._line.first()) is not None:
            name, turn = waiting
            self._line.remove(name)
            if not turn.done():  # otherwise the request was cancelled
                self._inside[name] = "admitted"
                self._empty.clear()
                turn.set_result(None)
        self._busy.count(bool(self._inside))
