"""The rollout side: sends a prompt's requests to the engines and brings back its samples, whatever happens on the way.

A request that an engine ends early (`abort`) is sent again with the tokens it has, to the same or another engine, until it is
complete; its samples carry the policy version of every token. An engine that dies is like an abort whose tokens are lost: the
request goes elsewhere with those of earlier calls. A group that was given up is aborted on its engine and raises `GroupCancelled`
in whoever waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from roll.data.sample import Prompt, Sample, VersionSpan
from roll.data.seeding import derive_seed
from roll.distributed.backend import WorkerDied, WorkerHandle
from roll.distributed.cluster import Cluster
from roll.rollout.router import Route, Router
from roll.strategies.infer.interface import EngineError, GenerateRequest, GenerateResult, SamplingParams
from roll.strategies.infer.stop_strings import cut_at_stop


class GroupCancelled(Exception):
    """The group was dropped while it was being generated."""


@dataclass(slots=True)
class Completion:
    """One response, in the making or complete."""

    request: GenerateRequest
    token_ids: list[int]
    logprobs: list[float]
    versions: list[VersionSpan]
    finish_reason: str = "abort"
    text: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether it came to its end by itself, rather than at the length limit."""
        return self.finish_reason == "stop"

    def take(self, result: GenerateResult, engine: int) -> None:
        offset = len(self.token_ids)
        for start, stop, version, _ in result.versions:
            last = self.versions[-1] if self.versions else None
            if last is not None and (last.version, last.engine, last.stop) == (version, engine, start + offset):
                self.versions[-1] = last._replace(stop=stop + offset)
            else:
                self.versions.append(VersionSpan(start + offset, stop + offset, version, engine))
        self.token_ids += result.token_ids
        self.logprobs += result.logprobs
        self.finish_reason = result.finish_reason
        # The text of one call is the engine's; a response made in several calls is decoded (and cut) as a whole at the end.
        self.text = result.text if offset == 0 else None
        self.request = replace(self.request, partial_ids=tuple(self.token_ids))


@dataclass(slots=True)
class _Group:
    """Where the requests of a group are: waiting for an engine, or on one."""

    waiting: set[asyncio.Event] = field(default_factory=set)
    on_engine: dict[int, tuple[int, list[str]]] = field(default_factory=dict)
    """Call -> (engine, request ids)."""
    cancelled: bool = False


class Explorer:
    def __init__(
        self,
        engines: Cluster,
        router: Router,
        decode: Callable[[list[int]], str],
        seed: int,
        expand: bool = False,
        on_death: Callable[[int, Exception], None] | None = None,
    ) -> None:
        """`decode`: token ids -> text. `expand`: the samples of a group are requests of their own
        (`is_num_return_sequences_expand`), routed one by one; else one engine serves them all with one call. `on_death(engine,
        error)` is told of an engine that died under a request, and has to close it; without it the error is the caller's."""
        self._engines = engines
        self._router = router
        self._decode = decode
        self._seed = seed
        self._expand = expand
        self._on_death = on_death
        self._granted: dict[int, asyncio.Event] = {}
        self._groups: dict[str, _Group] = {}
        self._aborting: set[asyncio.Future[None]] = set()

    async def rollout(
        self, key: str, prompt: Prompt, n: int, sampling: SamplingParams, priority: int = 1, with_greedy: bool = False
    ) -> list[Sample]:
        """`n` samples of the prompt, and one more, the greedy response, if it is asked for. `key` names the group for `cancel`;
        sample i is a function of (seed, prompt uid, i)."""
        wished = [replace(sampling, seed=derive_seed(self._seed, prompt.uid, i)) for i in range(n)]
        if with_greedy:
            wished.append(replace(sampling, temperature=0.0))
        requests = [
            GenerateRequest(f"{key}/{i}", tuple(prompt.input_ids), params, priority=priority) for i, params in enumerate(wished)
        ]
        completions = await self.complete(key, prompt.uid, requests, priority)
        return [self._sample(prompt, i, completion) for i, completion in enumerate(completions)]

    async def complete(self, key: str, affinity: str, requests: Sequence[GenerateRequest], priority: int = 1) -> list[Completion]:
        """Every request's whole answer. `key` names them for `cancel` until then; requests of one `affinity` go to one engine
        if there is room, which may have their common beginning in its cache."""
        group = self._groups[key] = _Group()
        batches = [[request] for request in requests] if self._expand else [list(requests)]
        try:
            done = await asyncio.gather(*(self._complete(group, affinity, batch, priority) for batch in batches))
        finally:
            del self._groups[key]
        return [completion for batch in done for completion in batch]

    def text(self, completion: Completion) -> str:
        """Of a complete answer, cut at its stop string."""
        if completion.text is not None:
            return completion.text
        text, sampling = self._decode(completion.token_ids), completion.request.sampling
        return cut_at_stop(text, sampling.stop_strings, sampling.include_stop_str_in_output) if completion.stopped else text

    async def cancel(self, key: str) -> None:
        """Gives a group up, wherever its requests are."""
        group = self._groups.get(key)
        if group is None:
            return
        group.cancelled = True
        for event in group.waiting:
            event.set()
        calls = list(group.on_engine.values())
        await asyncio.gather(*(self._abort(engine, ids) for engine, ids in calls))

    def close(self, engine: int) -> None:
        """No request goes to the engine any more."""
        self._router.close(engine)

    def open(self, engine: int) -> None:
        """The engine is there again."""
        self._wake(self._router.open(engine))

    async def _abort(self, engine: int, request_ids: list[str]) -> None:
        worker = self._engines.workers[engine]
        try:
            await self._engines.call(engine, "abort", request_ids)
        except (WorkerDied, EngineError) as error:
            self._report(engine, worker, error)

    async def _complete(self, group: _Group, affinity: str, requests: list[GenerateRequest], priority: int) -> list[Completion]:
        partials = [Completion(request, [], [], []) for request in requests]
        while open_ := [partial for partial in partials if partial.finish_reason == "abort"]:
            engine, results = await self._send(group, affinity, [partial.request for partial in open_], priority)
            for partial, result in zip(open_, results, strict=True):
                partial.take(result, engine)
        return partials

    async def _send(
        self, group: _Group, affinity: str, requests: list[GenerateRequest], priority: int
    ) -> tuple[int, list[GenerateResult]]:
        """The engine that served them, and what it answered."""
        if group.cancelled:
            raise GroupCancelled
        route, granted = self._router.request(len(requests), affinity, priority)
        event = self._granted[id(route)] = asyncio.Event()
        group.waiting.add(event)
        self._wake(granted)
        preempted = False
        try:
            await event.wait()
            if group.cancelled or route.engine is None:
                raise GroupCancelled
            engine = route.engine
            group.on_engine[id(route)] = (engine, [request.request_id for request in requests])
            worker = self._engines.workers[engine]
            try:
                results: list[GenerateResult] = await self._engines.call(engine, "generate", requests)
            except (WorkerDied, EngineError) as error:
                self._report(engine, worker, error)
                return engine, [GenerateResult(request.request_id, [], [], [], "abort") for request in requests]
            except asyncio.CancelledError:
                # Who called has gone; the engine, in another process, would go on without being asked.
                aborting = asyncio.ensure_future(self._abort(engine, [request.request_id for request in requests]))
                self._aborting.add(aborting)
                aborting.add_done_callback(self._aborting.discard)
                raise
            preempted = any(result.preempted for result in results)
            return engine, results
        finally:
            group.waiting.discard(event)
            group.on_engine.pop(id(route), None)
            del self._granted[id(route)]
            self._wake(self._router.release(route, preempted))

    def _report(self, engine: int, worker: WorkerHandle, error: Exception) -> None:
        if self._on_death is None:
            raise error
        # Else it is late news of a worker that has a successor.
        if self._engines.workers[engine] is worker:
            self._on_death(engine, error)

    def _wake(self, granted: Sequence[Route]) -> None:
        for route in granted:
            self._granted[id(route)].set()

    def _sample(self, prompt: Prompt, index: int, completion: Completion) -> Sample:
        return Sample(
            prompt=prompt,
            index=index,
            response_ids=completion.token_ids,
            behaviour_logprobs=completion.logprobs,
            versions=completion.versions,
            finish_reason="stop" if completion.stopped else "length",
            response_text=self.text(completion),
        )
