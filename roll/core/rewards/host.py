"""Carries a reward worker on a thread with an event loop of its own, so that a `grade` that blocks it costs one sample.

A blocked loop counts no time limit; the caller does. When the loop has not turned for `timeout_s`, its thread is left behind, the
sample that it is stuck in has an error, and a new thread, with a new worker, judges the others. While `MOST_STUCK` threads hang,
every sample has an error. (A thread that is stuck in native code which holds the interpreter blocks everything here; the driver's
heartbeat ends that.)"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from roll.core.configs.plain import JsonMapping
from roll.core.configs.worker import ShapingConfig
from roll.core.data.sample import JUDGED, Sample
from roll.core.distributed.user_code import UserThreads
from roll.core.errors import TooManyStuck, contained, escapes
from roll.core.rewards.worker import RewardResult, RewardWorker, worker_class


def shaped(result: RewardResult, sample: Sample, shaping: ShapingConfig, longest: int) -> RewardResult:
    """Returns the result with its terms among the parts. `longest`: tokens of the longest response."""
    if result.value is None:
        return result
    terms: dict[str, float] = {}
    if shaping.overlong_buffer:
        terms["overlong"] = -shaping.overlong_penalty * overlong(len(sample.response_ids), longest, shaping.overlong_buffer)
    if shaping.repetition_penalty:
        terms["repetition"] = -shaping.repetition_penalty * repetition(sample.response_text, shaping.repetition_ngram)
    if shaping.format_order:
        terms["format"] = -shaping.format_penalty * (not has_in_order(sample.response_text, shaping.format_order))
    value = shaping.weight * result.value + sum(terms.values())
    return replace(result, value=value, parts={**result.parts, **terms, JUDGED: result.value})


def overlong(length: int, longest: int, buffer: int) -> float:
    """DAPO (arXiv:2503.14476, eq. 13): 0 up to `longest - buffer` tokens, then linear, 1 from `longest` on."""
    return min(max((length - (longest - buffer)) / buffer, 0.0), 1.0)


def repetition(text: str, size: int) -> float:
    """Share of the n-grams of words that have occurred before; 0 for a text without any."""
    words = text.lower().split()
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def has_in_order(text: str, parts: list[str]) -> bool:
    """Each part once, in the order given."""
    return all(text.count(part) == 1 for part in parts) and all(text.index(a) < text.index(b) for a, b in pairwise(parts))


T = TypeVar("T")
PARTS = 10
"""Parts in which a limit is waited for: if the whole process was asleep, one of them at most is counted."""
LEAST_S = 1.0
"""A busy machine may keep a thread waiting for less: then nothing is stuck."""

_ticket: ContextVar[object] = ContextVar("ticket", default=None)
"""Ticket of the sample that a task judges: tasks inherit it."""


class RewardHost:
    def __init__(self, config: Mapping[str, object], shaping: ShapingConfig | None = None, longest_response: int = 0) -> None:
        """`config`: that of the domain; `worker_cls` is the worker to carry. `longest_response`: in tokens, for the shaping."""
        self._config = config
        self._shaping = shaping
        self._longest = longest_response
        self._threads = UserThreads(str(config["worker_cls"]))
        self._grading = GradingThread(config, self._threads)
        self._replacing = asyncio.Lock()

    async def start(self) -> None:
        await self._grading.start()

    async def close(self) -> None:
        await self._grading.close()

    async def compute_rewards(self, samples: Sequence[Sample], as_judged: bool = True) -> list[RewardResult]:
        """Returns one result per sample, in order; with the terms of `shaping` unless `as_judged`."""
        results = list(await asyncio.gather(*(self._result(sample) for sample in samples)))
        shaping = self._shaping
        if as_judged or shaping is None or shaping == ShapingConfig():
            return results
        return [shaped(result, sample, shaping, self._longest) for result, sample in zip(results, samples, strict=True)]

    async def _result(self, sample: Sample) -> RewardResult:
        while True:
            try:
                result = await (await self._turning()).result(sample)
            except TooManyStuck as error:
                return RewardResult(error=str(error))
            if result is not None:
                return result

    async def _turning(self) -> GradingThread:
        """Returns the thread whose loop turns: a new one, if the last is stuck. Raises `TooManyStuck`."""
        async with self._replacing:
            if self._grading.stuck_in is not None:
                following = GradingThread(self._config, self._threads)
                await following.start()
                self._grading = following
            return self._grading


class GradingThread:
    """A thread that grades. Its methods are called on the host's loop."""

    def __init__(self, config: JsonMapping, threads: UserThreads) -> None:
        self._config = config
        self._threads = threads
        self._limit_s = max(float(config["timeout_s"]), LEAST_S)
        self._made: Future[RewardWorker] = Future()
        self._judging: set[object] = set()
        """The tickets of the samples that are being judged."""
        self._tickets: WeakKeyDictionary[asyncio.Task[object], object] = WeakKeyDictionary()
        """Task -> the ticket of the sample that it, or the task that made it, judges."""
        self._culprit: object = None
        """The ticket of the sample in which the loop is stuck; None if that is not known."""
        self._stuck = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.stuck_in: str | None = None
        """Place where the thread is stuck, once it is."""

    async def start(self) -> None:
        """Starts the worker. Raises any error of the worker's class or its `start`, and `TooManyStuck`."""
        self._thread = self._threads.start(self._run, name=f"grading {self._config['worker_cls']}")
        await asyncio.wrap_future(self._made)
        await self._call(self._start())

    async def close(self) -> None:
        """Closes the worker, if its loop turns; one that was stuck closes it when it turns again."""
        if self.stuck_in is None and self._made.done() and self._made.exception() is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._call(self._end()), self._limit_s)

    async def result(self, sample: Sample) -> RewardResult | None:
        """None if another sample has blocked the loop for good."""
        ticket = object()
        self._judging.add(ticket)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        judging, stuck = self._call(self._judge(ticket, sample)), asyncio.ensure_future(self._stuck.wait())
        try:
            events: set[asyncio.Future[Any]] = {judging, stuck}
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if judging.done():
                return judging.result()
            if self._culprit in (ticket, None):
                return RewardResult(error=f"timeout: it blocks its event loop, in {self.stuck_in}")
            return None
        finally:
            stuck.cancel()
            judging.cancel()
            self._judging.discard(ticket)

    async def _watch(self) -> None:
        """Notices, as long as samples are being judged, that the loop does not turn."""
        while self._judging:
            turn = self._call(asyncio.sleep(0))
            for _ in range(PARTS):
                if (await asyncio.wait({turn}, timeout=self._limit_s / PARTS))[0]:
                    break
            else:
                task = asyncio.current_task(self._loop)
                self._culprit, self.stuck_in = self._tickets.get(task) if task else None, self._thread.place
                self._threads.leave(self._thread)
                self._call(self._end())  # should the loop turn again one day
                self._stuck.set()
                return
            await asyncio.sleep(self._limit_s / PARTS)

    def _call(self, coroutine: Coroutine[object, object, T]) -> asyncio.Future[T]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    # -- on the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.set_task_factory(self._task)
        try:
            cls = worker_class(self._config["worker_cls"])
            self._worker: RewardWorker = contained(cls, self._config)
        except Exception as error:  # boundary: a user's class; `start` raises it
            self._made.set_exception(error)
            return
        self._made.set_result(self._worker)
        self._loop.run_forever()
        self._loop.close()

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._tickets[task] = _ticket.get()
        return task

    async def _start(self) -> None:
        with escapes():  # SystemExit would end the loop unheard
            await self._worker.start()

    async def _judge(self, ticket: object, sample: Sample) -> RewardResult:
        _ticket.set(ticket)
        if (task := asyncio.current_task()) is not None:
            self._tickets[task] = ticket
        return await self._worker.result(sample)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        try:
            await self._worker.close()
        finally:
            self._loop.call_soon(self._loop.stop)
