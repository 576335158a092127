"""Kept sets and experts of a real SGLang server on a mixture, whose tokens are computed again by transformers."""

import asyncio
import os
import random

import numpy as np
import pytest
import torch
from tiny_models import FOR_VLLM, tiny_mixture

from roll.core.engines.rollout_client import Completion
from roll.core.weights.bucket import manifest_of
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.strategies.infer.sglang.arguments import ROUTES
from roll.strategies.infer.sglang.strategy import SGLangInferStrategy
from roll.strategies.routers import Routers
from roll.transports.buckets import make_buckets
from roll.transports.experts import published

from ..conftest import make_tokenizer

PYTHON = os.environ.get("SGLANG_PYTHON")
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PYTHON is None, reason="needs SGLANG_PYTHON, an interpreter with SGLang (make test-sglang)"),
]
VOCABULARY, SLOTS, EXACT = 256, 8, 1e-4


def mixture(seed, **changes):
    sizes = {"moe_intermediate_size": 32, "head_dim": 32, "tie_word_embeddings": False}
    return tiny_mixture(VOCABULARY, seed=seed, **FOR_VLLM | sizes | changes)


class Served:
    def __init__(self, folder):
        self.models, self.runner = {0: mixture(0)}, asyncio.Runner()
        self.models[0].save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)  # it has no end, at which SGLang would stop
        options = {"max_running_requests": SLOTS, "max_length": 400, "engine_args": {"python": PYTHON, ROUTES: True}}
        self.strategy = SGLangInferStrategy(str(folder), **options)

    def run(self, body):
        return self.runner.run(asyncio.wait_for(body, 120))

    async def whole(self, request):
        """As a rollout asks: what an engine ends early is sent again with the tokens it has."""
        made = Completion(request)
        while made.finish_reason == "abort":
            made.take(await self.strategy.generate(made.request), 0)
        return made

    async def update(self, mode):
        version = max(self.models) + 1
        self.models[version] = mixture(version)
        named = [part for one in self.models[version].named_parameters() for part in published("qwen3_moe", *one)]
        buckets = list(make_buckets(named, 100_000))
        for bucket in buckets:
            await self.strategy.receive_bucket(version, bucket)
        await self.strategy.activate_weights(manifest_of(version, buckets), mode)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("mixture"))
    yield served
    served.run(served.strategy.close())
    served.runner.close()


def requests(name, count, longest=20, **sampling):
    draw = random.Random(name)
    prompts = [tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, longest))) for _ in range(count)]
    params = SamplingParams(**{"with_kept": True, "with_routes": True, **sampling})
    return [GenerateRequest(f"{name}{i}", prompt, params) for i, prompt in enumerate(prompts)]


def recomputed(model, tokens):
    """Logits [tokens, vocabulary], and experts [tokens, layers, experts], of one forward without a cache."""
    routers = Routers(model)
    routers.record()
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits, np.sort(routers.taken().numpy(), -1)


def sets_of(extras):
    return [each.tolist() for each in np.split(extras.kept.ids, np.cumsum(extras.kept.counts)[:-1])]


def kept_by(logits, sampling):
    """By the definition: of the most probable tokens, top_k at most, those before which there is no more than top_p."""
    probs, ids = logits.softmax(-1).sort(descending=True)
    count = int((probs.cumsum(-1) - probs <= sampling.top_p).sum())
    return set(ids[: min(count, sampling.top_k or VOCABULARY)].tolist())


def check(served, made, span):
    """That a span's log-probs are those over its sets, these what the sampling keeps, and its experts those of its version's
    forward. At the edge of top_p one token may differ."""
    request, start, stop = made.request, span.start, span.stop
    prompt = len(request.prompt_ids)
    tokens, sets = [*request.prompt_ids, *made.token_ids], sets_of(made.extras)
    logits, experts = recomputed(served.models[span.version], tokens[:-1])
    logits = logits[prompt - 1 :] / request.sampling.temperature
    for at in range(start, stop):
        assert len(set(sets[at]) ^ kept_by(logits[at], request.sampling)) <= 1
        true = logits[at, sets[at]].log_softmax(-1)[sets[at].index(made.token_ids[at])]
        assert abs(made.logprobs[at] - float(true)) < EXACT
    there = slice(0 if start == 0 else prompt + start - 1, prompt + stop - 1)
    ours = np.sort(made.extras.routes.experts[there], -1)
    assert ours.shape == experts[there].shape and ours.dtype == np.uint8
    assert (ours == experts[there]).all(-1).mean() > 0.99


@pytest.mark.parametrize("cut", [{"top_p": 0.7}, {"top_k": 5}, {"top_p": 0.8, "top_k": 60, "temperature": 0.9}])
def test_sets_are_what_the_sampling_keeps_and_experts_those_that_computed_the_tokens(served, cut):
    """Another time the prompts are in the cache."""
    asked = requests(str(cut), 4, 60, max_new_tokens=24, **cut)

    async def body():
        return [each for _ in range(2) for each in await asyncio.gather(*map(served.whole, asked))]

    for made in served.run(body()):
        assert len(made.extras.kept) == 24 == len(made.extras.routes) + 1 - len(made.request.prompt_ids)
        check(served, made, made.versions[0])


def test_who_does_not_ask_or_is_not_cut_has_no_sets(served):
    ways = [{"with_kept": False, "top_p": 0.6}, {"temperature": 0.0, "top_p": 0.6}, {}, {"top_k": VOCABULARY}]
    asked = [requests(str(i), 1, max_new_tokens=20, with_routes=False, **way)[0] for i, way in enumerate(ways)]

    async def body():
        return await asyncio.gather(*map(served.whole, asked))

    made = served.run(body())
    assert [each.extras.routes for each in made] == [None] * 4 and made[0].extras.kept is None
    assert [each.extras.kept.counts.tolist() for each in made[1:]] == [[0] * 20] * 3
    for each in made:
        logits, _ = recomputed(served.models[0], [*each.request.prompt_ids, *each.token_ids])
        true = logits[len(each.request.prompt_ids) - 1 : -1].log_softmax(-1).gather(1, torch.tensor([*each.token_ids])[:, None])
        assert (torch.tensor([*each.logprobs]) - true[:, 0]).abs().max() < EXACT


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_each_token_has_the_set_and_the_experts_of_its_version(served, mode):
    """In flight the keys and values of the old weights stay: no plain forward is the truth of what follows the update."""
    asked, old = requests(mode, SLOTS - 1, max_new_tokens=150, top_p=0.8), max(served.models)

    async def body():
        calls = [asyncio.ensure_future(served.whole(request)) for request in asked]
        first = requests(f"{mode} begins", 1, max_new_tokens=5)[0]
        await served.whole(first)  # by then the others have begun, too
        await served.update(mode)
        return await asyncio.gather(*calls)

    made = served.run(body())
    assert any([span.version for span in each.versions] == [old, old + 1] for each in made)
    for each in made:
        prompt = len(each.request.prompt_ids)
        assert len(each.token_ids) == len(each.extras.kept) == 150 and len(each.extras.routes) == prompt + 149
        assert all(token in kept for token, kept in zip(each.token_ids, sets_of(each.extras), strict=True))
        for span in each.versions:
            if mode == "interrupt" or span.version == old:
                check(served, each, span)
