"""Should response tokens pass the driver by value, or stay where they are made and pass as references of Ray's?

Engines answer, the driver makes samples of the answers, and a trainer gets the step's batch: real actors and the production's
messages, batches and objects. How the tokens of an answer pass:

value       as production does it: an answer is a `GenerateResult`; the driver makes the `TokenBatch` and puts it once
reference   the engine puts an answer's arrays into Ray's store and answers with the reference; the trainer gets the arrays
returns     the arrays are a second result of the call, which the driver owns: small ones (100 KB) are its own all the same

value/8, reference/8: the same, with the answers of a group in one message, as if they had ended together

Processor time is that of the driver's whole process, Ray's threads among them, from the first call to the trainer's answer;
medians over `--rounds`. `bytes` is what the driver reads and writes of tokens, pickled. `lost`: of the answers when all engines
are killed before the trainer has what it trains.

    python benchmarks/token_references.py [--tokens 1024 4096 16384 65536] [--responses 256] [--open 32] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import random
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from pipeline_run import save_results
from ray.exceptions import RayError

from roll.core.data.sample import LOGPROBS, TOKENS, Prompt, Sample, SampleGroup, VersionSpan
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.devices import Inventory, place
from roll.core.trainer.batch import token_batch
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams
from roll.platform.ray_backend import RayBackend

WAYS = ("value", "reference", "returns", "value/8", "reference/8")
ENGINES, GROUP, PROMPT = 2, 8, 128
MOMENT_S = 0.05
"""Answers come at random within this: engines do not end their responses together."""
PIECE = random.Random(0).choices(range(50_000), k=1024)

Arrays = tuple[Sequence[int], Sequence[float]]


class Engine:
    """Has its answers ready."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        await asyncio.sleep(random.random() * MOMENT_S)
        tokens = request.sampling.max_new_tokens
        ids, logprobs = array(TOKENS, PIECE) * (tokens // len(PIECE)), array(LOGPROBS, [-1.0]) * tokens
        return GenerateResult(request.request_id, ids, logprobs, [VersionSpan(0, tokens, 1)], "length")

    async def generate_all(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        return await asyncio.gather(*map(self.generate, requests))

    async def refer(self, requests: Sequence[GenerateRequest]) -> list[tuple[Any, GenerateResult]]:
        results = await self.generate_all(requests)
        return [(ray.put((result.token_ids, result.logprobs)), without_arrays(result)) for result in results]

    async def returns(self, request: GenerateRequest) -> tuple[Arrays, GenerateResult]:
        result = await self.generate(request)
        return (result.token_ids, result.logprobs), without_arrays(result)


class Trainer:
    async def train(self, batch: TokenBatch) -> int:
        return digest(batch)

    async def train_references(self, references: Sequence[Any], groups: Sequence[SampleGroup]) -> int:
        arrays = iter(await asyncio.gather(*references))
        for group in groups:
            group.samples = [with_arrays(sample, next(arrays)) for sample in group.samples]
        return digest(token_batch(groups, 1.0))

    async def count_lost(self, references: Sequence[Any]) -> int:
        return sum(await asyncio.gather(*map(is_lost, references)))


def without_arrays(result: GenerateResult) -> GenerateResult:
    return replace(result, token_ids=array(TOKENS), logprobs=array(LOGPROBS))


def with_arrays(sample: Sample, arrays: Arrays) -> Sample:
    return replace(sample, response_ids=arrays[0], behaviour_logprobs=arrays[1])


def digest(batch: TokenBatch) -> int:
    return int(batch.tokens.sum()) + int(batch.loss_mask.sum()) - int(batch.behaviour_logprobs.sum())


async def is_lost(reference: Any) -> bool:
    try:
        await reference
    except RayError:
        return True
    return False


@dataclass
class Answers:
    groups: list[SampleGroup]
    references: list[Any]
    bytes: int


class Step:
    """One step of one way."""

    def __init__(self, way: str, engines: Sequence[Any], trainer: Any, backend: RayBackend, args: argparse.Namespace) -> None:
        self._way, self._engines, self._trainer, self._backend = way, engines, trainer, backend
        self._args = args

    async def answers(self, tokens: int) -> Answers:
        prompts = [Prompt(f"p{i}", PIECE[:PROMPT], "", "", "", "") for i in range(self._args.responses // GROUP)]
        places = asyncio.Semaphore(self._args.open // GROUP)
        sampling = SamplingParams(max_new_tokens=tokens)

        async def group(number: int, prompt: Prompt) -> list[tuple[Any, GenerateResult]]:
            requests = [GenerateRequest(f"{prompt.uid}-{i}", tuple(prompt.input_ids), sampling) for i in range(GROUP)]
            async with places:
                return await self._ask(self._engines[number % len(self._engines)], requests)

        answered = await asyncio.gather(*(group(number, prompt) for number, prompt in enumerate(prompts)))
        groups = [SampleGroup(number, 1, prompt, []) for number, prompt in enumerate(prompts)]
        for made, answers in zip(groups, answered, strict=True):
            made.samples = [
                Sample(made.prompt, i, result.token_ids, result.logprobs, result.versions, "length", reward=1.0)
                for i, (_, result) in enumerate(answers)
            ]
        size = len(pickle.dumps(answered[0][0][1])) * self._args.responses
        return Answers(groups, [reference for answers in answered for reference, _ in answers], size)

    async def _ask(self, engine: Any, requests: Sequence[GenerateRequest]) -> list[tuple[Any, GenerateResult]]:
        if self._way == "value":
            return [(None, result) for result in await asyncio.gather(*(engine.call("generate", each) for each in requests))]
        if self._way == "value/8":
            return [(None, result) for result in await engine.call("generate_all", requests)]
        if self._way == "returns":
            return await asyncio.gather(*(engine.call_for_reference("returns", each) for each in requests))
        # Not by the messages that calls travel in: Ray has to see a reference to keep its object.
        messages = [requests] if self._way == "reference/8" else [[each] for each in requests]
        answered = await asyncio.gather(*(engine._actor.call.remote("refer", message) for message in messages))
        return [answer for answers in answered for answer in answers]

    async def train(self, answers: Answers) -> int:
        """What the trainer found: the same by all ways."""
        if self._way.startswith("value"):
            batch = await asyncio.to_thread(token_batch, answers.groups, 1.0)
            return int(await self._trainer.call("train", await self._backend.put(batch)))
        return int(await self._trainer._actor.call.remote("train_references", answers.references, answers.groups))


async def measure(way: str, tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    inventory = Inventory("cpu", 1, ENGINES + 1, ENGINES + 1)
    backend = RayBackend(inventory)
    *places, trains = place(tuple(range(ENGINES + 1)), inventory)
    specs = [WorkerSpec(f"engine-{i}", "token_references.Engine", each) for i, each in enumerate(places)]
    try:
        engines = [await backend.start(spec) for spec in specs]
        trainer = await backend.start(WorkerSpec("trainer-0", "token_references.Trainer", trains))
        step, costs, spent, found = Step(way, engines, trainer, backend, args), [], [], set()
        for _ in range(args.rounds + 1):
            began, clock = time.process_time(), time.perf_counter()
            answers = await step.answers(tokens)
            found.add(await step.train(answers))
            costs.append(time.process_time() - began)
            spent.append(time.perf_counter() - clock)
        lost = await kill_and_count(step, engines, trainer, tokens)
    finally:
        await backend.shutdown()
    [sum_of_all] = found
    sent = answers.bytes + (batch_bytes(answers.groups) if way.startswith("value") else 0)
    cost = statistics.median(costs[1:]) / args.responses
    seconds = statistics.median(spent[1:])
    return {"way": way, "tokens": tokens, "cost_s": cost, "step_s": seconds, "bytes": sent, "lost": lost, "sum": sum_of_all}


async def kill_and_count(step: Step, engines: Sequence[Any], trainer: Any, tokens: int) -> int:
    answers = await step.answers(tokens)
    for engine in engines:
        engine.kill()
    await asyncio.gather(*(engine.died() for engine in engines))
    if step._way.startswith("value"):
        await step.train(answers)
        return 0
    return int(await trainer._actor.call.remote("count_lost", answers.references))


def batch_bytes(groups: Sequence[SampleGroup]) -> int:
    batch = token_batch(groups, 1.0)
    fields = (getattr(batch, name) for name in batch.__slots__)
    return sum(each.nbytes for each in fields if isinstance(each, torch.Tensor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 4096, 16384, 65536], help="of a response")
    parser.add_argument("--responses", type=int, default=256, help="of a step")
    parser.add_argument("--open", type=int, default=32, help="requests that run together")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.1f}; of the driver's process")
    print(f"{'way':12}{'tokens':>8}{'ms/response':>13}{'µs/token':>10}{'s/step':>8}{'MB/step':>9}{'lost':>12}")
    rows = []
    for tokens in args.tokens:
        for way in WAYS:
            row = asyncio.run(measure(way, tokens, args))
            rows.append(row)
            figures = f"{1e3 * row['cost_s']:13.3f}{1e6 * row['cost_s'] / tokens:10.4f}{row['step_s']:8.2f}"
            print(f"{way:12}{tokens:8}{figures}{row['bytes'] / 1e6:9.2f}{row['lost']:6} of {args.responses}", flush=True)
        assert len({row["sum"] for row in rows if row["tokens"] == tokens}) == 1, "the ways trained different batches"
    save_results("token_references", {"responses": args.responses, "open": args.open, "rows": rows})


if __name__ == "__main__":
    main()
