"""Kept sets and experts of a real vLLM engine on a mixture, whose tokens are computed again by transformers and by hf_infer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import FOR_VLLM, tiny_mixture, tiny_qwen2

from roll.core.data.extras import Extras
from roll.core.weights.bucket import manifest_of
from roll.core.workers.infer_interface import GenerateResult
from roll.strategies.routers import Routers
from roll.transports.buckets import make_buckets
from roll.transports.experts import published

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("vllm"), pytest.mark.usefixtures("forked_engines")]

SLOTS, LAYERS, EACH, VOCABULARY = 8, 3, 2, 256
ROUTES = "enable_return_routed_experts"
EXACT = 1e-4
ASKING = {"with_kept": True, "with_routes": True, "temperature": 0.9, "top_p": 0.8, "top_k": 60}


def mixture(seed: int) -> Any:
    """Its second layer has no experts."""
    changes = FOR_VLLM | {"moe_intermediate_size": 32, "head_dim": 32, "num_hidden_layers": LAYERS + 1, "mlp_only_layers": [1]}
    return tiny_mixture(VOCABULARY, seed=seed, **changes)


class Served:
    def __init__(self, folder: Any) -> None:
        from roll.core.workers.infer_engines import make_infer_strategy

        options = {"model_path": str(folder), "max_running_requests": SLOTS, "max_length": 400, "threads": 1, "seed": 7}
        self.runner, self.models = asyncio.Runner(), {0: mixture(0)}
        self.strategy = make_infer_strategy("vllm", options | {"engine_args": {ROUTES: True}})

    def run(self, body: Any) -> Any:
        return self.runner.run(asyncio.wait_for(body, 60))

    def generate(self, *requests: Any) -> list[GenerateResult]:
        async def body() -> list[GenerateResult]:
            return await asyncio.gather(*map(self.strategy.generate, requests))

        return self.run(body())

    async def until_generated(self, tokens: int) -> None:
        goal = (await self.strategy.stats()).generated_tokens + tokens
        while (await self.strategy.stats()).generated_tokens < goal:
            await asyncio.sleep(0)

    async def update(self, mode: Any) -> None:
        version = max(self.models) + 1
        self.models[version] = mixture(version)
        named = [part for one in self.models[version].named_parameters() for part in published("qwen3_moe", *one)]
        buckets = list(make_buckets(named, 100_000))
        manifest = manifest_of(version, buckets)
        for bucket in buckets:
            await self.strategy.receive_bucket(version, bucket)
        await self.strategy.activate_weights(manifest, mode)


@pytest.fixture(scope="module")
def served(lab: Any, tmp_path_factory: Any, forked_engines: Any) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("mixture")
    mixture(0).save_pretrained(folder)
    lab.tokenizer().save_pretrained(folder)
    served = Served(folder)
    yield served
    served.run(served.strategy.close())


def prompts(count: int, seed: int = 0, longest: int = 20) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, longest))) for _ in range(count)]


def recomputed(model: Any, tokens: Sequence[int]) -> tuple[torch.Tensor, np.ndarray]:
    """Logits [tokens, vocabulary], and experts [tokens, layers, experts], of one forward without a cache."""
    routers = Routers(model)
    routers.record()
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits, routers.taken().numpy()


def sets_of(extras: Extras) -> list[list[int]]:
    assert extras.kept is not None
    return [each.tolist() for each in np.split(extras.kept.ids, np.cumsum(extras.kept.counts)[:-1])]


def check(served: Served, request: Any, result: GenerateResult, span: Any, prompt: int) -> None:
    """That a span's log-probs are those over its sets, and its experts those of its version's forward. `prompt`: tokens before
    the response."""
    tokens = [*request.prompt_ids, *request.partial_ids, *result.token_ids]
    logits, experts = recomputed(served.models[span.version], tokens[:-1])
    logits = logits[prompt - 1 :] / request.sampling.temperature
    sets = sets_of(result.extras)
    for at in range(span.start, span.stop):
        assert result.token_ids[at] in sets[at]
        true = logits[at, sets[at]].log_softmax(-1)[sets[at].index(result.token_ids[at])]
        assert abs(result.logprobs[at] - float(true)) < EXACT
    assert result.extras.routes is not None
    first = 0 if span.start == 0 else prompt + span.start - 1
    there = slice(first, prompt + span.stop - 1)
    assert same(result.extras.routes.experts[there], experts[there]) > 0.99


def same(ours: np.ndarray, plain: np.ndarray) -> float:
    """Share of equal sets of experts; their order says nothing."""
    assert ours.shape == plain.shape
    return float((np.sort(ours, -1) == np.sort(plain, -1)).all(-1).mean())


def test_the_sets_are_those_of_hf_infer_and_the_log_probs_are_over_them(lab: Any, served: Served) -> None:
    """hf_infer is asked for every token anew, after the same tokens. At the edge of top_p the two may differ by one token."""
    cuts = [{"top_p": 0.7}, {"top_k": 5}, {"top_p": 0.8, "top_k": 12}, {"top_p": 0.9, "temperature": 0.6}]
    requests = [
        lab.request(f"{i}.{j}", p, **{"with_kept": True, "temperature": 1.0, **cut}, max_new_tokens=24)
        for i, cut in enumerate(cuts)
        for j, p in enumerate(prompts(3, seed=i))
    ]
    results = served.generate(*requests)
    engine, again = lab.engine(served.models[0], slots=8), []
    for request, result in zip(requests, results, strict=True):
        assert result.extras.kept is not None and len(result.extras.kept) == len(result.token_ids) == 24
        for at in range(24):
            sampling = replace(request.sampling, max_new_tokens=1)
            prompt = request.prompt_ids + tuple(result.token_ids[:at])
            again.append(replace(request, request_id=f"{request.request_id}/{at}", prompt_ids=prompt, sampling=sampling))
    theirs = lab.run_all(engine, again)
    pairs = [
        (sets, theirs[f"{request.request_id}/{at}"].extras.kept.ids.tolist())
        for request, result in zip(requests, results, strict=True)
        for at, sets in enumerate(sets_of(result.extras))
    ]
    assert sum(ours == other for ours, other in pairs) >= 0.99 * len(pairs)
    assert all(len(set(ours) ^ set(other)) <= 1 for ours, other in pairs)
    for request, result in zip(requests, results, strict=True):
        logits = recomputed(served.models[0], [*request.prompt_ids, *result.token_ids])[0][len(request.prompt_ids) - 1 : -1]
        for row, token, told, kept in zip(logits, result.token_ids, result.logprobs, sets_of(result.extras), strict=True):
            true = (row / request.sampling.temperature)[kept].log_softmax(-1)[kept.index(token)]
            assert abs(told - float(true)) < EXACT


def test_in_one_batch_only_who_asks_gets_sets_and_log_probs_over_them(lab: Any, served: Served) -> None:
    cut = {"top_p": 0.6, "max_new_tokens": 30}
    requests = [
        lab.request("asks", [1, 2], with_kept=True, **cut),
        lab.request("silent", [1, 2], **cut),
        lab.request("greedy", [1, 2], with_kept=True, temperature=0.0, **cut),
        lab.request("uncut", [1, 2], with_kept=True, max_new_tokens=30),
        lab.request("all", [1, 2], with_kept=True, max_new_tokens=30, top_k=VOCABULARY),
    ]
    asks, silent, *others = served.generate(*requests)
    assert min(asks.extras.kept.counts) >= 1 and silent.extras == Extras()
    assert [result.extras.kept.counts.tolist() for result in others] == [[0] * 30] * 3
    for request, result in zip(requests[1:], [silent, *others], strict=True):
        true = lab.true_logprobs(served.models[0], request.prompt_ids, result.token_ids)
        assert (torch.tensor(result.logprobs) - true).abs().max() < EXACT


def test_experts_are_those_that_computed_the_tokens_a_cached_prompt_included(lab: Any, served: Served) -> None:
    """The prompt is longer than a block of the cache, so that later samples find it there."""
    long = tuple(i * 7 % VOCABULARY for i in range(150))
    first = lab.request("first", long, **ASKING, max_new_tokens=5)
    results = served.generate(first)
    before = served.run(served.strategy.stats()).prefill_tokens
    requests = [lab.request(f"again{i}", long, **ASKING, max_new_tokens=20 + i) for i in range(4)]
    requests += [lab.request(f"short{i}", p, **ASKING, max_new_tokens=30) for i, p in enumerate(prompts(6, seed=4))]
    results += served.generate(*requests)
    assert served.run(served.strategy.stats()).prefill_tokens - before < 4 * 30 + 6 * 20, "the prompts were cached"
    for request, result in zip([first, *requests], results, strict=True):
        assert result.extras.routes.experts.dtype == np.uint8
        assert len(result.extras.routes) == len(request.prompt_ids) + len(result.token_ids) - 1
        check(served, request, result, result.versions[0], len(request.prompt_ids))


def test_stop_strings_end_sets_and_experts_with_the_tokens(lab: Any, served: Served) -> None:
    """With them the tokens come one by one, and vLLM samples a few beyond the stop."""
    asking = ASKING | {"top_p": 1.0, "top_k": 1, "max_new_tokens": 40}
    (free,) = served.generate(lab.request("free", [70, 71], **asking))
    text = lab.tokenizer().decode(free.token_ids)
    stop = next(char for i, char in enumerate(text) if i > 4 and char not in text[:i] and char != "\ufffd")
    request = lab.request("stopped", [70, 71], stop_strings=(stop,), **asking)
    (result,) = served.generate(request)
    length = len(result.token_ids)
    assert result.finish_reason == "stop" and length < 40 and result.token_ids == free.token_ids[:length]
    assert sets_of(result.extras) == [[token] for token in result.token_ids]
    check(served, request, result, result.versions[0], 2)


def test_an_aborted_request_keeps_its_sets_and_experts_and_goes_on(lab: Any, served: Served) -> None:
    requests = [lab.request(str(i), p, **ASKING, max_new_tokens=120) for i, p in enumerate(prompts(SLOTS + 2, seed=2))]

    async def aborted() -> list[GenerateResult]:
        calls = [asyncio.create_task(served.strategy.generate(request)) for request in requests]
        await served.until_generated(20 * SLOTS)
        await served.strategy.abort()
        return await asyncio.gather(*calls)

    partials = served.run(aborted())
    resumed = [replace(r, partial_ids=tuple(p.token_ids)) for r, p in zip(requests, partials, strict=True)]
    assert sum(len(partial.token_ids) == 0 for partial in partials) >= 2
    for request, one, two in zip(requests, partials, served.generate(*resumed), strict=True):
        tokens, extras = [*one.token_ids, *two.token_ids], one.extras.then(two.extras)
        assert len(tokens) == 120 == len(extras.kept)
        both = replace(two, token_ids=tokens, logprobs=[*one.logprobs, *two.logprobs], extras=extras)
        check(served, request, both, replace_span(two.versions[0], 0, 120), len(request.prompt_ids))


def replace_span(span: Any, start: int, stop: int) -> Any:
    return span._replace(start=start, stop=stop)


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_each_token_has_the_set_and_the_experts_of_its_stamped_version(lab: Any, served: Served, mode: Any) -> None:
    """In flight the keys and values of the old weights stay, so that no plain forward is the truth of what follows the update;
    but each set has the token and the log-probs still add up over what is before it."""
    requests = [lab.request(f"{mode}{i}", p, **ASKING, max_new_tokens=100) for i, p in enumerate(prompts(SLOTS, seed=3))]
    old = max(served.models)

    async def body() -> list[GenerateResult]:
        calls = [asyncio.create_task(served.strategy.generate(request)) for request in requests]
        await served.until_generated(30 * SLOTS)
        await served.update(mode)
        return await asyncio.gather(*calls)

    results = served.run(body())
    assert all([span.version for span in result.versions] == [old, old + 1] for result in results)
    for request, result in zip(requests, results, strict=True):
        assert len(result.extras.kept) == 100
        assert len(result.extras.routes) == len(request.prompt_ids) + 99
        assert all(token in kept for token, kept in zip(result.token_ids, sets_of(result.extras), strict=True))
        for span in result.versions if mode == "interrupt" else result.versions[:1]:
            check(served, request, result, span, len(request.prompt_ids))


def test_an_engine_that_does_not_record_refuses_to_say_experts(lab: Any, tmp_path: Any) -> None:
    """One of a dense model, which has none."""
    from roll.core.workers.infer_engines import make_infer_strategy

    tiny_qwen2(VOCABULARY, **FOR_VLLM).save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    engine = make_infer_strategy("vllm", {"model_path": str(tmp_path), "max_running_requests": 2, "max_length": 64, "threads": 1})

    async def body() -> None:
        with pytest.raises(ValueError, match=f"records no experts.*{ROUTES}"):
            await engine.generate(lab.request("a", [1], with_routes=True))
        await engine.close()

    asyncio.run(body())
