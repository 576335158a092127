"""Generates recorded tokens again, version by version, and compares them.

An engine that promises it (hf_infer) makes an answer that is a function of weights, context and seed alone. So each span of a
recorded answer can be had again from the tokens before it, under the weights of its version. As the replay comes to a version,
all spans that it sampled are: none is older than the steps that follow within the bound of staleness.

A response is one answer, an episode one for each turn. Seeds follow from the run's own, the prompt, the sample and the turn.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from roll.core.data.sample import Sample, SampleGroup, VersionSpan
from roll.core.data.seeding import derive_seed
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.record.journal import write_atomically
from roll.core.weights.store import BucketRef, WeightStore
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams
from roll.envs.turn_files import ATTEMPT
from roll.topologies.replay.recording import Recording

REGENERATED = "regenerated.json"


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first token that differs."""

    step: int
    group: int
    sample: int
    token: int
    version: int
    engine: int
    recorded: int
    generated: int | None


@dataclass(slots=True)
class Counts:
    tokens: int = 0
    equal: int = 0
    largest_gap: float = 0.0
    """Largest difference of an equal token's log-probs, in nats."""
    not_compared: int = 0
    """Tokens behind a change of weights that kept the old weights' cache (weight_update_mode: in_flight), or of conversations
    whose turns are in other samples, too."""
    first: TokenDifference | None = None


@dataclass(frozen=True, slots=True)
class Generating:
    """Values that requests of the recorded run had in common."""

    sampling: SamplingParams
    seed: int
    bound: int
    """Versions that a token may be old."""
    first: int
    last: int
    """Steps that are compared."""
    keeps_cache: bool


class _Answer(NamedTuple):
    start: int
    """Place in the response."""
    stop: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Span:
    step: int
    group: SampleGroup
    sample: Sample
    span: VersionSpan
    answer: _Answer


def answers(run_seed: int, sample: Sample) -> list[_Answer]:
    """Returns the answers of a response, or of an episode's turns; none if its tokens are not those of its turns."""
    uid, episode = sample.prompt.uid, sample.trajectory
    if episode is None:
        return [_Answer(0, len(sample.response_ids), derive_seed(run_seed, uid, sample.index))]
    mask = sample.loss_mask
    places = [place for place in range(len(sample.response_ids)) if mask is None or mask[place]]
    if len(places) != sum(turn.tokens for turn in episode.turns):
        return []
    name, found, before = f"{sample.index}.{int(episode.metrics.get(ATTEMPT, 0))}", [], 0
    for number, turn in enumerate(episode.turns, episode.first_turn):
        if turn.tokens:
            own = places[before : before + turn.tokens]
            found.append(_Answer(own[0], own[-1] + 1, derive_seed(run_seed, uid, name, number)))
        before += turn.tokens
    return found


class Regeneration:
    def __init__(
        self, engines: Cluster, devices: DeviceLocks, recording: Recording, generating: Generating, run_dir: Path
    ) -> None:
        """`engines`: the first one is used. It has the weights of the version that the replay begins with."""
        self._engines, self._devices, self._recording = engines, devices, recording
        self._given, self._run_dir = generating, run_dir
        self.counts = Counts()

    async def take(self, store: WeightStore, version: int) -> None:
        """Loads a version that the store has, and compares its tokens."""

        async def receive(version: int, bucket: BucketRef) -> None:
            await self._engines.call(0, "receive_bucket", version, bucket.argument)

        async with self._devices.hold("actor_infer"):
            manifest = await store.pull(version, receive)
            await self._engines.call(0, "activate_weights", manifest, "interrupt")
        await self.compare(version)

    async def compare(self, version: int) -> None:
        given = self._given
        for step in range(max(version + 1, given.first), min(version + 1 + given.bound, given.last) + 1):
            spans = await asyncio.to_thread(self._spans, step, version)
            async with self._devices.hold("actor_infer"):
                results = await asyncio.gather(*(self._engines.call(0, "generate", self._request(one)) for one in spans))
            for one, result in zip(spans, results, strict=True):
                self._count(one, result)
        found = json.dumps(asdict(self.counts)).encode()
        await asyncio.to_thread(write_atomically, self._run_dir / REGENERATED, found)

    def _spans(self, step: int, version: int) -> list[_Span]:
        found = []
        for group in (group for part in self._recording.parts(step) for group in part):
            for sample in group.samples:
                known = answers(self._given.seed, sample)
                for span in (span for span in sample.versions if span.version == version):
                    answer = next((each for each in known if each.start <= span.start < each.stop), None)
                    if answer is None or (span.start > answer.start and self._given.keeps_cache):
                        self.counts.not_compared += span.stop - span.start
                    else:
                        found.append(_Span(step, group, sample, span, answer))
        return found

    def _request(self, one: _Span) -> GenerateRequest:
        """Returns a request for the span alone, from the tokens before it."""
        sample, span, answer = one.sample, one.span, one.answer
        sampling = replace(self._given.sampling, seed=answer.seed, max_new_tokens=span.stop - answer.start)
        turn = 0 if sample.trajectory is None else sample.trajectory.first_turn
        key = f"{one.step}/{one.group.group_id}/{sample.index}/{turn}/{span.start}"
        context = (*sample.prompt.input_ids, *sample.response_ids[: answer.start])
        return GenerateRequest(key, context, sampling, tuple(sample.response_ids[answer.start : span.start]))

    def _count(self, one: _Span, result: GenerateResult) -> None:
        counts, span = self.counts, one.span
        for place in range(span.start, span.stop):
            recorded, at = one.sample.response_ids[place], place - span.start
            generated = result.token_ids[at] if at < len(result.token_ids) else None
            if recorded != generated:
                who = (one.step, one.group.group_id, one.sample.index, place, span.version, span.engine)
                counts.first = counts.first or TokenDifference(*who, recorded, generated)
                break  # what follows is another response
            counts.equal += 1
            counts.largest_gap = max(counts.largest_gap, abs(one.sample.behaviour_logprobs[place] - result.logprobs[at]))
        counts.tokens += span.stop - span.start
