"""Explanation of a step: its gradient by sample and token, and the first value that is not finite, with the row that brought
it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roll.core.algorithms.loss import LossSpec, prepare_batch
from roll.core.configs.plain import JsonObject
from roll.core.data.sample import Sample, SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.cluster import Cluster
from roll.core.record.journal import write_atomically
from roll.core.trainer.batch import totals_of
from roll.core.trainer.trainer import Step

EXPLAINED = "explained.json"
GIVEN = {"behaviour_logprobs": "log-prob of the sampler"}
COMPUTED = {
    "proximal_logprobs": "recomputed log-prob",
    "reference_logprobs": "log-prob of the reference",
    "values": "value of the critic",
    "advantages": "advantage",
}
"""Fields of a batch, in the order of their computation, in words for people."""


class Explaining:
    """A stage between the advantages and the training of a step: it hands the step on as it is."""

    def __init__(self, step: int, policy: Cluster, loss: LossSpec, run_dir: Path) -> None:
        self._step, self._policy, self._loss, self._run_dir = step, policy, loss, run_dir

    async def process(self, step: Step) -> Step:
        if step.number + 1 == self._step:
            batch = prepare_batch(step.batch, self._loss)
            (found,) = await self._policy.scatter("explain", [batch], self._loss, totals_of(batch))
            told = explained(step, found)
            await asyncio.to_thread(write_atomically, self._run_dir / EXPLAINED, json.dumps(told).encode())
        return step


def explained(step: Step, found: JsonObject) -> JsonObject:
    """`found`: by `ExplainingWorker.explain`."""
    rows = [(group, sample) for group in step.lease.groups for sample in group.samples]
    samples = []
    for (group, sample), of_sample in zip(rows, found["samples"], strict=True):
        start = len(sample.prompt.input_ids)
        tokens = [token | {"place": token["place"] - start} for token in of_sample["tokens"]]
        who: JsonObject = {"group": group.group_id, "index": sample.index, "prompt": sample.prompt.uid, "reward": sample.reward}
        samples.append(who | of_sample | {"tokens": tokens, "response": sample.response_text})
    cause = next(causes(step.batch, rows, found), None)
    return {"step": step.number + 1, "grad_norm": found["grad_norm"], "samples": samples, "cause": cause}


def causes(batch: TokenBatch, rows: list[tuple[SampleGroup, Sample]], found: JsonObject) -> Iterator[JsonObject]:
    """Yields values that are not finite, in the order of their computation: recorded ones, the weights, the model's outputs, and
    values computed from those."""
    for group, sample in rows:
        if sample.reward is not None and not math.isfinite(sample.reward):
            yield _cause("reward", group, sample, value=sample.reward)
    yield from _of_fields(batch, rows, GIVEN)
    if (parameter := found["parameter"]) is not None:
        yield {"what": "weight", **parameter}
    for (group, sample), of_sample in zip(rows, found["samples"], strict=True):
        if (fault := of_sample["fault"]) is not None and fault["tensor"] == "output":
            yield _cause("module", group, sample, **fault)
    yield from _of_fields(batch, rows, COMPUTED)
    for (group, sample), of_sample in zip(rows, found["samples"], strict=True):
        if of_sample["fault"] is not None:
            yield _cause("gradient", group, sample, **of_sample["fault"])


def _of_fields(batch: TokenBatch, rows: list[tuple[SampleGroup, Sample]], names: dict[str, str]) -> Iterator[JsonObject]:
    stops = batch.offsets.tolist()
    for name, words in names.items():
        values = getattr(batch, name)
        bad = [] if values is None else (batch.loss_mask & ~values.isfinite()).nonzero()[:, 0].tolist()
        for place in bad[:1]:
            row = next(i for i in range(len(rows)) if place < stops[i + 1])
            at = place - stops[row] - len(rows[row][1].prompt.input_ids)
            yield _cause(words, *rows[row], token=at, value=float(values[place]))


def _cause(what: str, group: SampleGroup, sample: Sample, **more: Any) -> JsonObject:
    return {"what": what, "group": group.group_id, "index": sample.index, "prompt": sample.prompt.uid, **more}
