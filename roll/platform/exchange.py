"""Calls of one process to one worker travel together: those of one moment, and the answers that are ready at one moment.

    caller: call, call, call ──▶ Calls ── exchange([call, call, call]) ──▶ Answers: worker
                                   ◀──── [answer, answer] ───────────────

An exchange carries all calls made since the last one, and returns with the answers that are ready first, whichever calls they
belong to. So many calls cost one message, and no answer waits for another. A caller that gives up leaves the worker at work, as
with a message of its own: the work ends by another call, if it has to.
"""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from roll.core.errors import BackendLost, WorkerDied
from roll.platform.local_backend import WorkerHost

MOMENT_S = 0.001
"""Seconds that a call, or an answer, waits for others to travel with: calls that have one cause are made within less."""
MOST_WAITING = 4
"""Most exchanges of one caller that wait at a worker. One more sends the oldest back without answers."""


class Call(NamedTuple):
    number: int
    """Number of the call, counted by its caller."""
    method: str
    args: tuple[Any, ...]


class Answer(NamedTuple):
    number: int
    value: bytes
    """Pickled: a value that cannot travel is the failure of its own call alone."""
    failure: str = ""
    """The method's error as text, with its traceback; the value is then the error, or nothing if that cannot be pickled."""


class WorkerTraceback(Exception):
    """The traceback of an error in the worker."""


class Line(Protocol):
    async def exchange(self, message: bytes) -> bytes:
        """Raises `WorkerDied` or `BackendLost`; anything else if the message cannot be read, and then none of its calls has
        begun."""


class Calls:
    """The caller's side."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._name = uuid4().hex
        self._numbers = count()
        self._new: list[Call] = []
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._exchanges: set[asyncio.Task[None]] = set()
        self._under_way = 0
        """Exchanges under way. Tasks are no measure: two that end at one moment both see the other one."""

    async def call(self, method: str, *args: object) -> Any:
        """Returns the method's result. Raises the method's error, or an error of the line."""
        loop = asyncio.get_running_loop()
        if not self._new:
            loop.call_later(MOMENT_S, self.send)
        number = next(self._numbers)
        self._new.append(Call(number, method, args))
        self._open[number] = loop.create_future()
        try:
            return await self._open[number]
        finally:
            del self._open[number]

    def send(self) -> None:
        """Sends the calls made so far; they begin before any later request to the worker."""
        if self._new:
            calls, self._new = self._new, []
            self._begin(calls)

    @property
    def _waits(self) -> bool:
        return not all(future.done() for future in self._open.values())

    def _begin(self, calls: Sequence[Call]) -> None:
        self._under_way += 1
        exchange = asyncio.ensure_future(self._exchange(calls))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)

    async def _exchange(self, calls: Sequence[Call]) -> None:
        """While a call is open, an exchange is under way or a call is about to begin one."""
        try:
            answers: list[Answer] = pickle.loads(await self._carry(calls))
        except Exception as error:  # boundary: anything may be among the arguments
            if isinstance(error, WorkerDied | BackendLost) or not calls:
                self._fail(list(self._open), error)
            elif len(calls) == 1:
                self._fail([calls[0].number], error)
            else:
                for call in calls:  # to find the one that cannot travel
                    self._begin([call])
        else:
            for answer in answers:
                self._take(answer)
        if self._waits and not self._new and not self._under_way:
            self._begin([])

    async def _carry(self, calls: Sequence[Call]) -> bytes:
        try:
            return await self._line.exchange(pickle.dumps((self._name, calls)))
        finally:
            self._under_way -= 1

    def _take(self, answer: Answer) -> None:
        future = self._open.get(answer.number)
        if future is None or future.done():  # the caller gave up
            return
        try:
            value = pickle.loads(answer.value) if answer.value else None
        except Exception as error:  # boundary: classes of a user's may be missing here
            return future.set_exception(error)
        if not answer.failure:
            return future.set_result(value)
        raised = value if isinstance(value, Exception) else RuntimeError(answer.failure.splitlines()[-1])
        raised.__cause__ = WorkerTraceback(answer.failure)
        future.set_exception(raised)

    def _fail(self, numbers: Sequence[int], error: Exception) -> None:
        for number in numbers:
            if (future := self._open.get(number)) is not None and not future.done():
                future.set_exception(error)


class Callers:
    """The worker's side."""

    def __init__(self, host: WorkerHost) -> None:
        self._host = host
        self._answers: dict[str, Answers] = {}

    async def exchange(self, message: bytes) -> bytes:
        caller, calls = pickle.loads(message)
        answers = self._answers.setdefault(caller, Answers(self._host))
        ready = pickle.dumps(await answers.exchange(calls))
        if answers.idle:
            self._answers.pop(caller, None)
        return ready


class Answers:
    """The answers to one caller. Calls of a caller that dies are carried out, and their answers are never fetched."""

    def __init__(self, host: WorkerHost) -> None:
        self._host = host
        self._running: set[asyncio.Task[None]] = set()
        self._ready: list[Answer] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._handing_over = False

    @property
    def idle(self) -> bool:
        return not (self._running or self._ready or self._waiting)

    async def exchange(self, calls: Sequence[Call]) -> list[Answer]:
        for call in calls:
            running = asyncio.ensure_future(self._run(call))
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if len(self._waiting) > MOST_WAITING:
            self._release()
        self._hand_over()
        await turn
        self._handing_over = False
        answers, self._ready = self._ready, []
        return answers

    async def _run(self, call: Call) -> None:
        try:
            answer = Answer(call.number, pickle.dumps(await self._host.call(call.method, *call.args)))
        except BaseException as error:  # boundary: whatever a worker raises is its caller's
            answer = Answer(call.number, _pickled_error(error), "".join(traceback.format_exception(error)))
        self._ready.append(answer)
        if len(self._ready) == 1:
            asyncio.get_running_loop().call_later(MOMENT_S, self._hand_over)

    def _hand_over(self) -> None:
        """Gives all ready answers to the exchange that waits longest."""
        if self._ready and self._waiting and not self._handing_over:
            self._release()

    def _release(self) -> None:
        self._handing_over = True
        self._waiting.popleft().set_result(None)


def _pickled_error(error: BaseException) -> bytes:
    """Pickles the error; empty if that is impossible: many exceptions cannot be rebuilt from their arguments."""
    try:
        pickle.loads(pickled := pickle.dumps(error))
    except Exception:  # boundary: an exception of a user's
        return b""
    return pickled
