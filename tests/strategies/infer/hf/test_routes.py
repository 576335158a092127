"""The experts that a result says are those that its tokens were computed with, whatever company they had.

They are compared with a full forward's of the same weights, whose rounding may turn a choice between two experts of nearly equal
score: one in a thousand is let pass.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_mixture

from roll.strategies.routers import Routers

VOCABULARY, LAYERS, EACH = 64, 3, 2
SAMPLED = {"temperature": 0.8, "with_routes": True}


def model(seed: int = 0) -> Any:
    return tiny_mixture(VOCABULARY, seed=seed)


def plain_routes(model: Any, tokens: list[int]) -> np.ndarray:
    """[tokens, layers, experts], of one forward without a cache."""
    routers = Routers(model)
    routers.record()
    with torch.no_grad():
        model(torch.tensor([tokens]), use_cache=False)
    return routers.taken().numpy()


def prompts(count: int, seed: int = 0, longest: int = 20) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, longest))) for _ in range(count)]


def same(ours: np.ndarray, plain: np.ndarray) -> float:
    """Share of equal sets of experts; their order says nothing."""
    return float((np.sort(ours, -1) == np.sort(plain, -1)).all(-1).mean())


def check(request: Any, result: Any) -> None:
    """Of a response that one call made of one version."""
    routes = result.extras.routes
    computed = [*request.prompt_ids, *result.token_ids][:-1]
    assert routes.experts.shape == (len(computed), LAYERS, EACH) and routes.experts.dtype == np.uint8
    assert same(routes.experts, plain_routes(model(), computed)) >= 0.999


@pytest.mark.parametrize("deterministic", [False, True])
def test_of_prompt_and_response_while_requests_join_and_leave_and_share_prompts(lab: Any, deterministic: bool) -> None:
    engine = lab.engine(model(), slots=5, deterministic=deterministic)
    requests = [
        lab.request(f"{i}.{j}", p, **SAMPLED, max_new_tokens=3 + (7 * i + 11 * j) % 40)
        for i, p in enumerate(prompts(6))
        for j in range(4)
    ]
    late = requests[16:]

    def join(step: int) -> None:
        if step % 5 == 4 and late:
            engine.submit(late.pop())

    results = lab.run_all(engine, requests[:16], join)
    assert len(results) == 24 and engine.stats().prefill_tokens < sum(len(r.prompt_ids) for r in requests)
    for request in requests:
        check(request, results[request.request_id])


def test_who_does_not_ask_gets_none_and_whose_prompt_was_there_before_gets_all(lab: Any) -> None:
    """The first request fills its slot while nobody has asked yet."""
    engine = lab.engine(model())
    prompt = prompts(1, seed=3)[0]
    silent = lab.request("silent", prompt, max_new_tokens=30)
    asking = lab.request("asking", prompt, **SAMPLED, max_new_tokens=9)
    results = lab.run_all(engine, [silent], lambda step: engine.submit(asking) if step == 4 else None)
    assert results["silent"].extras.routes is None
    check(asking, results["asking"])


def test_a_resumed_call_says_those_of_the_tokens_that_no_call_before_has_computed(lab: Any) -> None:
    engine = lab.engine(model())
    requests = [lab.request(str(i), p, **SAMPLED, seed=i, max_new_tokens=30) for i, p in enumerate(prompts(6, seed=2))]
    first = lab.run_all(engine, requests, lambda step: engine.abort() if step == 12 else None)
    resumed = [replace(r, partial_ids=tuple(first[r.request_id].token_ids)) for r in requests]
    second = lab.run_all(engine, resumed)
    assert any(len(first[r.request_id].token_ids) == 0 for r in requests), "one was still queued"
    for request in requests:
        one, two = first[request.request_id], second[request.request_id]
        assert (one.extras.routes is None) == (not one.token_ids)
        both = one.extras.then(two.extras)
        check(request, replace(two, token_ids=one.token_ids + two.token_ids, extras=both))


def test_a_turn_says_the_experts_of_what_it_did_not_compute_itself(lab: Any) -> None:
    """The next turn begins with what a free slot still holds, but not with what was cached before anybody asked."""
    engine = lab.engine(model(), slots=3)
    said = {name: list(prompt) * 4 for name, prompt in zip("abcd", prompts(4, seed=5), strict=True)}
    lab.run_all(engine, [lab.request("silent", said["a"], max_new_tokens=20)])
    running = lab.request("running", said["b"], max_new_tokens=40)

    def ask(step: int) -> None:
        if step == 10:
            engine.submit(lab.request("first", said["c"], **SAMPLED, max_new_tokens=2))

    before = lab.run_all(engine, [running], ask)
    said["b"] += before["running"].token_ids
    for turn in range(4):
        requests = [lab.request(f"{name}.{turn}", said[name], **SAMPLED, max_new_tokens=6) for name in "bdac"]
        computed = engine.stats().prefill_tokens
        for request, result in lab.run_all(engine, requests).items():
            check(next(one for one in requests if one.request_id == request), result)
            said[request[0]] += [*result.token_ids, turn]
        assert turn == 0 or engine.stats().prefill_tokens - computed < sum(len(r.prompt_ids) for r in requests)


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_a_token_keeps_the_experts_of_the_weights_that_sampled_what_followed_it(lab: Any, mode: str) -> None:
    versions = {version: model(seed=version) for version in range(4)}
    engine = lab.engine(model(), slots=4)
    borders = {9: 1, 20: 2, 33: 3}
    requests = [lab.request(str(i), p, **SAMPLED, max_new_tokens=20 + 5 * i) for i, p in enumerate(prompts(8, seed=1))]

    def update(step: int) -> None:
        if (version := borders.get(step)) is not None:
            buckets, manifest = lab.weights(versions[version], version)
            for bucket in buckets:
                engine.shadow.receive(version, bucket)
            engine.activate(manifest, mode)

    results = lab.run_all(engine, requests, update)
    assert sum(len(result.versions) > 1 for result in results.values()) >= 3
    for request in requests:
        result, prompt = results[request.request_id], len(request.prompt_ids)
        tokens = [*request.prompt_ids, *result.token_ids][:-1]
        assert len(result.extras.routes) == len(tokens)
        for span in result.versions if mode == "interrupt" else result.versions[:1]:
            start = 0 if span.start == 0 else prompt + span.start - 1
            of_span = slice(start, prompt + span.stop - 1)
            plain = plain_routes(model(seed=span.version), tokens)
            assert same(result.extras.routes.experts[of_span], plain[of_span]) >= 0.99


def test_a_model_without_experts_refuses_to_say_them(lab: Any) -> None:
    with pytest.raises(ValueError, match="Qwen2ForCausalLM has no routers"):
        lab.engine(lab.model()).submit(lab.request("a", [1], with_routes=True))
