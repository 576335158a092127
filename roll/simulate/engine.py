"""An inference engine that takes its time from a table and computes nothing: the number of tokens is drawn, and they are all
alike in a response, other than in the others (samples that begin alike are trained together).

All running requests advance at one rate, which depends on how many they are. So one number, the tokens that a request would have
had that ran from the beginning, says how far each is, and an event costs as much as a heap's.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from roll.core.data.sample import LOGPROBS, TOKENS, VersionSpan
from roll.core.distributed.waiting_line import WaitingLine
from roll.core.weights.bucket import Bucket, WeightManifest
from roll.core.weights.received import ReceivedBuckets
from roll.core.workers.infer_interface import EngineStats, GenerateRequest, GenerateResult, WeightUpdateMode
from roll.simulate.costs import Costs
from roll.simulate.shared_devices import Part

VOCABULARY = 1 << 31
"""Ids are below this."""


@dataclass(slots=True, eq=False)
class _Served:
    """A request, counted in grains."""

    request: GenerateRequest
    result: asyncio.Future[GenerateResult]
    length: int
    """Still to be sampled."""
    limited: bool
    """It ends at the length limit."""
    began: float = math.inf
    """The common count when the engine took the request; infinite before."""
    spans: list[VersionSpan] = field(default_factory=list)

    def tokens(self, count: float) -> int:
        return min(self.length, max(0, int(count - self.began + 1e-6)))


class ScriptedEngine:
    """An `InferStrategy`. A token of its results stands for `grain` tokens."""

    def __init__(self, costs: Costs, slots: int, grain: int, version: int, part: Part) -> None:
        self._costs = costs
        self._slots = slots
        self._grain = grain
        self.version = version
        self._received: ReceivedBuckets[None] = ReceivedBuckets()
        self._link = asyncio.Lock()
        self._arriving: dict[str, _Served] = {}
        self._queue: WaitingLine[str, _Served] = WaitingLine()
        self._running: dict[str, _Served] = {}
        self._heap: list[tuple[float, int, _Served]] = []
        self._ties = itertools.count()
        self._count = 0.0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._part = part
        self._speed = part.speed
        part.told[self] = self._at_other_speed
        self._held = 0
        """Number of reasons against sampling: it sleeps, drains or flips."""
        self._still = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.generated = 0
        self.busy_s = 0.0

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return await self.begin(request)

    def begin(self, request: GenerateRequest) -> asyncio.Future[GenerateResult]:
        loop, sampling = asyncio.get_running_loop(), request.sampling
        drawn = self._costs.response_tokens.draw(sampling.seed or 0)
        whole = max(1, round(min(drawn, sampling.max_new_tokens) / self._grain))
        left = max(1, whole - len(request.partial_ids))
        served = _Served(request, loop.create_future(), left, drawn >= sampling.max_new_tokens)
        if self._costs.request_s:
            self._arriving[request.request_id] = served
            loop.call_later(self._costs.request_s, self._take, served)
        else:
            self._take(served)
        return served.result

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        self._advance()
        everything = [*self._running, *self._queue.names, *self._arriving]
        for name in everything if request_ids is None else request_ids:
            if served := self._running.pop(name, None) or self._queue.remove(name) or self._arriving.pop(name, None):
                self._end(served, "abort")
        self._fill()

    async def receive_bucket(self, version: int, bucket: Bucket) -> None:
        bucket.verify()
        async with self._link:  # which carries one after the other
            await asyncio.sleep(self._costs.pull_s)
        self._received.make_room(version, bucket)
        self._received.keep(bucket, None)

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        self._received.check(manifest)
        if mode == "drain":
            await self._drain()
        began = asyncio.get_running_loop().time()
        self._stand(+1)
        await asyncio.sleep(self._costs.flip_s)
        for served in self._running.values():
            self._cut(served)
        self.version = manifest.version
        self._stand(-1)
        if mode == "drain":
            self._resume()
        return asyncio.get_running_loop().time() - began

    async def sleep(self) -> None:
        await self._drain()
        await asyncio.sleep(self._costs.turn_s)

    async def wake(self) -> None:
        await asyncio.sleep(self._costs.turn_s)
        self._resume()

    async def stats(self) -> EngineStats:
        running = len(self._running)
        tokens = self.generated * self._grain
        return EngineStats(self.version, running, len(self._queue), self._slots - running, tokens, 0, self.busy_s)

    async def close(self) -> None: ...

    # -- how ----------------------------------------------------------------------------------------------------------------

    def _take(self, served: _Served) -> None:
        self._arriving.pop(served.request.request_id, None)
        if not served.result.done():
            self._queue.add(served.request.request_id, served.request.priority, served)
            self._fill()

    async def _drain(self) -> None:
        """Waits until running requests have ended; nothing begins until `_resume`."""
        self._held += 1
        await self._empty.wait()

    def _resume(self) -> None:
        self._held -= 1
        self._fill()

    def _stand(self, by: int) -> None:
        self._advance()
        self._still += by
        self._plan()

    def _advance(self) -> None:
        """Brings the common count up to now."""
        now = asyncio.get_running_loop().time()
        if self._running:
            if not self._still:
                self._count += (now - self._since) * self._rate()
            self.busy_s += now - self._since
        self._since = now

    def _rate(self) -> float:
        return self._speed * self._costs.decode_rate(len(self._running)) / self._grain

    def _at_other_speed(self) -> None:
        self._advance()
        self._speed = self._part.speed
        self._plan()

    def _fill(self) -> None:
        self._advance()
        while not self._held and len(self._running) < self._slots and (served := self._queue.first()) is not None:
            self._queue.remove(served.request.request_id)
            served.began = self._count
            self._running[served.request.request_id] = served
            heapq.heappush(self._heap, (self._count + served.length, next(self._ties), served))
        self._plan()

    def _plan(self) -> None:
        """Sets the timer for the next end of a request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._heap and self._heap[0][2].result.done():
            heapq.heappop(self._heap)
        (self._empty.clear if self._running else self._empty.set)()
        self._part.computes(self, bool(self._running) and not self._still)
        if self._heap and not self._still:
            seconds = max(0.0, self._heap[0][0] - self._count) / self._rate()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        while self._heap and self._heap[0][0] <= self._count + 1e-6:
            served = heapq.heappop(self._heap)[2]
            if self._running.pop(served.request.request_id, None):
                self._end(served, "length" if served.limited else "stop")
        self._fill()

    def _cut(self, served: _Served) -> None:
        """Ends a span: the tokens since the last one are of the present version."""
        start, stop = served.spans[-1].stop if served.spans else 0, served.tokens(self._count)
        if stop > start:
            served.spans.append(VersionSpan(start, stop, self.version))

    def _end(self, served: _Served, reason: str) -> None:
        if served.result.done():
            return
        self._cut(served)
        made = served.spans[-1].stop if served.spans else 0
        self.generated += made
        request_id, token = served.request.request_id, (served.request.sampling.seed or 0) % VOCABULARY
        ids, logprobs = array(TOKENS, [token]) * made, array(LOGPROBS, [-1.0]) * made
        served.result.set_result(GenerateResult(request_id, ids, logprobs, served.spans, reason, str(token)))  # type: ignore[arg-type]
