"""One rollout: a prompt's requests go to the engines, and its samples come back, whatever happens on the way.

A request that an engine ends early (`abort`) is sent again with the tokens it has, to the same or another engine, until it is
complete; its samples carry the policy version of every token. An engine that dies is like an abort whose tokens are lost: the
request goes elsewhere with those of earlier calls. Whoever cancels a call has its requests aborted on their engines.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from roll.core.data.episode import PolicyAnswer
from roll.core.data.extras import NOTHING, Extras
from roll.core.data.sample import LOGPROBS, TOKENS, Prompt, Sample, VersionSpan, begun_answer
from roll.core.data.seeding import derive_seed
from roll.core.distributed.backend import WorkerHandle
from roll.core.distributed.cluster import Cluster
from roll.core.engines.router import Route, Router
from roll.core.errors import LOST, EngineClosed
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams
from roll.core.workers.response_text import cut_at_stop, without_end


class EngineKeeper(Protocol):
    """Replaces engines that die."""

    def report(self, engine: int, error: Exception) -> None:
        """The engine died under a request. Raises the error if it cannot be replaced; else no request may go to it."""


@dataclass(slots=True)
class Completion:
    """One response, in the making or complete."""

    request: GenerateRequest
    token_ids: array[int] = field(default_factory=lambda: array(TOKENS))
    logprobs: array[float] = field(default_factory=lambda: array(LOGPROBS))
    versions: list[VersionSpan] = field(default_factory=list)
    finish_reason: str = "abort"
    text: str | None = None
    extras: Extras = NOTHING

    @property
    def stopped(self) -> bool:
        """True if it came to its end by itself, rather than at the length limit."""
        return self.finish_reason == "stop"

    def take(self, result: GenerateResult, engine: int) -> None:
        offset = len(self.token_ids)
        for start, stop, version, _ in result.versions:
            last = self.versions[-1] if self.versions else None
            if last is not None and (last.version, last.engine, last.stop) == (version, engine, start + offset):
                self.versions[-1] = last._replace(stop=stop + offset)
            else:
                self.versions.append(VersionSpan(start + offset, stop + offset, version, engine))
        self.token_ids.extend(result.token_ids)
        self.logprobs.extend(result.logprobs)
        self.extras = self.extras.then(result.extras)
        self.finish_reason = result.finish_reason
        # The text of one call is the engine's; a response made in several calls is decoded (and cut) as a whole at the end.
        self.text = result.text if offset == 0 else None
        if result.finish_reason == "abort":
            self.request = replace(self.request, partial_ids=tuple(self.token_ids))


Answer = tuple[GenerateResult, int]
"""The engine that gave the answer."""


@dataclass(eq=False, slots=True)
class EngineRequest:
    """A request at an engine."""

    route: Route
    request: GenerateRequest
    until: asyncio.Timeout
    """Ends it when the stand-in has an answer."""
    stand_in: asyncio.Future[Answer] | None = None
    """The same request at another engine."""
    lost: bool = False
    """True if the engine has died over it."""


class RolloutClient:
    def __init__(
        self, engines: Cluster, router: Router, tokenizer: Any, seed: int, keeper: EngineKeeper | None, expand: bool = False
    ) -> None:
        """`keeper` gets a report of each engine that dies; without a keeper the error is the caller's. `expand`: the samples of a
        group are routed one by one (`is_num_return_sequences_expand`); else one engine is given them together."""
        self._engines = engines
        self._router = router
        self._tokenizer = tokenizer
        self._seed = seed
        self._keeper = keeper
        self._expand = expand
        self._waiting: dict[Route, asyncio.Future[None]] = {}
        self._asked: dict[int, dict[Route, EngineRequest]] = {}
        """By engine."""
        self._aborting: set[asyncio.Future[None]] = set()

    @property
    def limits(self) -> list[int]:
        """The number of requests that each engine may have, now."""
        return self._router.limits

    async def rollout(
        self, key: str, prompt: Prompt, n: int, sampling: SamplingParams, priority: int = 1, with_greedy: bool = False
    ) -> list[Sample]:
        """Samples `n` responses to the prompt, and one more, the greedy response, if it is asked for. `key` is the prefix of the
        request ids; sample i is a function of (seed, prompt uid, i)."""
        sampled = [replace(sampling, seed=derive_seed(self._seed, prompt.uid, i)) for i in range(n)]
        if with_greedy:
            sampled.append(replace(sampling, temperature=0.0, with_routes=False))
        ids = tuple(prompt.input_ids)
        requests = [GenerateRequest(f"{key}/{i}", ids, params, priority=priority) for i, params in enumerate(sampled)]
        completions = await self.complete(prompt.uid, requests, priority)
        return [self._sample(prompt, i, completion) for i, completion in enumerate(completions)]

    async def complete(self, affinity: str, requests: Sequence[GenerateRequest], priority: int = 1) -> list[Completion]:
        """Returns the whole answer to every request. Requests of one `affinity` go to one engine if that engine has room: its
        cache may hold their common beginning."""
        sizes = [1] * len(requests) if self._expand else [len(requests)]
        routes = [route for size in sizes for route in self._request(size, affinity, priority)]
        answers = [
            asyncio.ensure_future(self._complete(route, request, affinity, priority))
            for route, request in zip(routes, requests, strict=True)
        ]
        try:
            return await asyncio.gather(*answers)
        finally:
            for route, answer in zip(routes, answers, strict=True):
                answer.cancel()
                self._release(route)  # an answer that is cancelled before it has begun does not

    async def answer(
        self,
        key: str,
        affinity: str,
        context: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        most: int,
        stop: tuple[str, ...] = (),
        priority: int = 1,
    ) -> PolicyAnswer:
        """The policy's turn in an episode: at most `most` new tokens behind the context. `stop`: further strings that end it, and
        are no part of its text."""
        sampling = replace(sampling, seed=seed, max_new_tokens=min(most, sampling.max_new_tokens))
        if stop:
            sampling = replace(sampling, stop_strings=(*sampling.stop_strings, *stop), include_stop_str_in_output=False)
        (done,) = await self.complete(affinity, [GenerateRequest(key, tuple(context), sampling, priority=priority)], priority)
        return PolicyAnswer(done.token_ids, done.logprobs, done.versions, self.text(done), done.stopped, done.extras)

    def text(self, completion: Completion) -> str:
        """Returns the text of a complete answer, cut at its stop string."""
        if completion.text is not None:
            return completion.text
        sampling = completion.request.sampling
        ids = without_end(completion.token_ids, sampling, completion.finish_reason)
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        return cut_at_stop(text, sampling.stop_strings, sampling.include_stop_str_in_output) if completion.stopped else text

    def close(self, engine: int) -> None:
        self._router.close(engine)

    def doubt(self, engine: int) -> None:
        """Sends the requests of a silent engine to others, too; the first answer counts."""
        self.close(engine)
        for asked in list(self._asked.get(engine, {}).values()):
            asked.stand_in = asked.stand_in or asyncio.ensure_future(self._elsewhere(asked))

    def open(self, engine: int) -> None:
        self._wake(self._router.open(engine))

    async def _complete(self, route: Route, request: GenerateRequest, affinity: str, priority: int) -> Completion:
        completion = Completion(request)
        while True:
            completion.take(*await self._send(route, completion.request))
            if completion.finish_reason != "abort":
                return completion
            (route,) = self._request(1, affinity, priority)

    async def _send(self, route: Route, request: GenerateRequest) -> Answer:
        preempted = False
        try:
            if route.engine is None:
                await self._wait(route)
            assert route.engine is not None
            engine, worker = route.engine, self._engines.workers[route.engine]
            try:
                result = await self._ask(route, engine, worker, request)
            except LOST as error:
                self._report(engine, worker, error)
                return GenerateResult.without_tokens(request, "abort"), engine
            except asyncio.CancelledError:
                self._abort_unheard(engine, request)
                raise
            if not isinstance(result, GenerateResult):
                return result
            preempted = result.preempted
            return result, engine
        finally:
            self._release(route, preempted)

    async def _ask(self, route: Route, engine: int, worker: WorkerHandle, request: GenerateRequest) -> GenerateResult | Answer:
        """Returns the engine's result, or the answer of another one, if this one falls silent and the other is first."""
        asked = EngineRequest(route, request, asyncio.timeout(None))
        self._asked.setdefault(engine, {})[route] = asked
        try:
            async with asked.until:
                result: GenerateResult = await self._engines.call(engine, "generate", request)
                return result
        except TimeoutError:
            if asked.stand_in is None or not asked.until.expired():
                raise
            self._abort_unheard(engine, request)
            return asked.stand_in.result()
        except LOST as error:
            if asked.stand_in is None:
                raise
            asked.lost = True
            self._report(engine, worker, error)
            return await asked.stand_in
        finally:
            del self._asked[engine][route]
            if asked.stand_in is not None:
                asked.stand_in.cancel()

    async def _elsewhere(self, asked: EngineRequest) -> Answer:
        (route,) = self._request(1, asked.route.affinity, asked.request.priority)
        answer = await self._send(route, asked.request)
        if not asked.lost:
            asked.until.reschedule(asyncio.get_running_loop().time())
        return answer

    def _abort_unheard(self, engine: int, request: GenerateRequest) -> None:
        """Aborts a request in another process, which would otherwise finish it for nobody."""
        aborting = asyncio.ensure_future(self._abort(engine, request.request_id))
        self._aborting.add(aborting)
        aborting.add_done_callback(self._aborted)

    def _request(self, count: int, affinity: str, priority: int) -> list[Route]:
        routes, granted = self._router.request(count, affinity, priority)
        self._wake(granted)
        return routes

    async def _wait(self, route: Route) -> None:
        granted = self._waiting[route] = asyncio.get_running_loop().create_future()
        try:
            await granted
        finally:
            del self._waiting[route]

    def _release(self, route: Route, preempted: bool = False) -> None:
        """Gives the place back; the second time this does nothing."""
        self._wake(self._router.release(route, preempted))

    async def _abort(self, engine: int, request_id: str) -> None:
        worker = self._engines.workers[engine]
        try:
            await self._engines.call(engine, "abort", [request_id])
        except EngineClosed:  # at the end of a run, and with all that ran in it
            return
        except LOST as error:
            self._report(engine, worker, error)

    def _aborted(self, aborting: asyncio.Future[None]) -> None:
        """Notes the end of an abort. An engine that is gone by then has nothing to abort."""
        self._aborting.discard(aborting)
        if not aborting.cancelled():
            aborting.exception()

    def _report(self, engine: int, worker: WorkerHandle, error: Exception) -> None:
        if self._keeper is None:
            raise error
        # Otherwise the error is late news of a worker that has a successor.
        if self._engines.workers[engine] is worker:
            self._keeper.report(engine, error)

    def _wake(self, granted: Sequence[Route]) -> None:
        for route in granted:
            waiting = self._waiting.get(route)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _sample(self, prompt: Prompt, index: int, completion: Completion) -> Sample:
        return Sample(
            prompt=prompt,
            index=index,
            response_ids=completion.token_ids,
            behaviour_logprobs=completion.logprobs,
            versions=completion.versions,
            finish_reason="stop" if completion.stopped else "length",
            response_text=begun_answer(prompt.conversation) + self.text(completion),
            extras=completion.extras,
        )
