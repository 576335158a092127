"""Continuous batching must not change what a request gets: compared with `generate`, full forwards and other company."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from roll.core.weights.bucket import WeightManifest


def prompts(count: int, seed: int = 0, longest: int = 30) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(256) for _ in range(draw.randint(1, longest))) for _ in range(count)]


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_greedy_tokens_equal_generate_for_ragged_prompts(lab: Any, architecture: str) -> None:
    model, plain = lab.model(architecture), lab.model(architecture)
    requests = [lab.request(str(i), p, temperature=0, max_new_tokens=5 + 7 * (i % 4)) for i, p in enumerate(prompts(11))]
    results = lab.run_all(lab.engine(model), requests)
    for request in requests:
        ids = torch.tensor([request.prompt_ids])
        length = request.sampling.max_new_tokens
        expected = plain.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False, pad_token_id=0
        )
        assert list(results[request.request_id].token_ids) == expected[0, ids.shape[1] :].tolist()
        assert results[request.request_id].finish_reason == "length"


def test_log_probs_equal_a_full_forward_while_requests_join_and_leave(lab: Any) -> None:
    """Groups share prompts, slots are fewer than requests, lengths and temperatures differ; the cache grows on the way."""
    engine, plain = lab.engine(lab.model(), slots=5, max_length=200), lab.model()
    requests = [
        lab.request(
            f"{i}.{j}", p, temperature=(0.5, 0.8, 1.7)[j % 3], top_p=(1.0, 0.9)[j % 2], max_new_tokens=3 + (37 * i + 11 * j) % 120
        )
        for i, p in enumerate(prompts(6, seed=1, longest=70))
        for j in range(4)
    ]
    late = requests[16:]

    def join(step: int) -> None:
        if step % 9 == 8 and late:
            engine.submit(late.pop())

    results = lab.run_all(engine, requests[:16], join)
    assert not late and len(results) == 24
    for request in requests:
        result = results[request.request_id]
        expected = lab.true_logprobs(plain, request.prompt_ids, result.token_ids, request.sampling.temperature)
        assert len(result.token_ids) == request.sampling.max_new_tokens
        # A few units in the last place of log-probs down to -9; which ones depends on the processor and MKL's mode.
        assert torch.tensor(result.logprobs).sub(expected).abs().max() < 5e-5
        assert [tuple(span)[:3] for span in result.versions] == [(0, len(result.token_ids), 0)]
    stats = engine.stats()
    assert stats.generated_tokens == sum(r.sampling.max_new_tokens for r in requests)
    assert (stats.running, stats.queued, stats.free_slots) == (0, 0, 5)


def test_short_prompts_are_not_padded_to_the_longest_that_joins_with_them(lab: Any) -> None:
    model, plain = lab.model(), lab.model()
    engine = lab.engine(model, slots=16)
    computed: list[int] = []
    model.base_model.register_forward_pre_hook(
        lambda _, args, inputs: computed.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    given = [prompt * 8 for prompt in prompts(1, seed=6)] + prompts(15, seed=7, longest=10)
    results = lab.run_all(engine, [lab.request(str(i), p, max_new_tokens=1) for i, p in enumerate(given)])
    real = sum(map(len, given))
    assert engine.stats().prefill_tokens == real
    assert real < sum(computed) <= 2 * real < len(given) * max(map(len, given))
    for i, prompt in enumerate(given):
        result = results[str(i)]
        expected = lab.true_logprobs(plain, prompt, result.token_ids)
        assert torch.tensor(result.logprobs).sub(expected).abs().max() < 1e-5


def test_equal_prompts_are_prefilled_once_while_one_of_them_runs(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=3)
    prompt = prompts(1, seed=2)[0]
    lab.run_all(engine, [lab.request(str(i), prompt, max_new_tokens=4 + i) for i in range(8)])
    assert engine.stats().prefill_tokens == len(prompt)


def test_a_seed_gives_the_same_tokens_alone_batched_interrupted_and_resumed(lab: Any) -> None:
    requests = [
        lab.request(str(i), p, seed=100 + i, temperature=0.9, max_new_tokens=40) for i, p in enumerate(prompts(9, seed=3))
    ]
    alone: dict[str, list[int]] = {}
    for request in requests:
        alone[request.request_id] = lab.run_all(lab.engine(lab.model(), slots=1), [request])[request.request_id].token_ids

    batched = lab.run_all(lab.engine(lab.model(), slots=4), requests)
    assert {name: result.token_ids for name, result in batched.items()} == alone

    model = lab.model()
    interrupted = lab.engine(model, slots=4)
    buckets, manifest = lab.weights(lab.model(), 0)

    def same_weights_again(step: int) -> None:
        if step % 13 == 7:
            for bucket in buckets:
                interrupted.shadow.receive(0, bucket)
            interrupted.activate(manifest, "interrupt")

    assert {n: r.token_ids for n, r in lab.run_all(interrupted, requests, same_weights_again).items()} == alone

    engine = lab.engine(lab.model(), slots=4)
    first = lab.run_all(engine, requests, lambda step: engine.abort() if step == 17 else None)
    assert {result.finish_reason for result in first.values()} == {"abort"}
    assert 0 < sum(len(result.token_ids) for result in first.values()) < 9 * 40
    resumed = [
        lab.request(
            r.request_id, r.prompt_ids, first[r.request_id].token_ids, seed=r.sampling.seed, temperature=0.9, max_new_tokens=40
        )
        for r in reversed(requests)
    ]
    second = lab.run_all(engine, resumed)
    assert {n: first[n].token_ids + second[n].token_ids for n in alone} == alone


def test_a_fully_resumed_request_has_nothing_left(lab: Any) -> None:
    result = lab.run_all(lab.engine(lab.model()), [lab.request("a", [1], [2, 3], max_new_tokens=2)])["a"]
    assert (len(result.token_ids), result.versions, result.finish_reason) == (0, [], "length")


def test_abort_of_running_and_queued_requests(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=2)
    for name in "abcd":
        engine.submit(lab.request(name, [1, 2, 3], max_new_tokens=50))
    for _ in range(5):
        assert engine.step() == []
    engine.abort(["a", "d", "unknown"])
    results = {result.request_id: result for result in engine.step()}
    assert {name: (len(r.token_ids), r.finish_reason) for name, r in results.items()} == {"a": (5, "abort"), "d": (0, "abort")}
    assert len(results["a"].logprobs) == 5
    rest = lab.run_all(engine, [])
    assert {name: len(r.token_ids) for name, r in rest.items()} == {"b": 50, "c": 50}


def test_priority_then_arrival_orders_the_queue(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=1)
    requests = [
        lab.request(f"{priority}{i}", [i + 1], priority=priority, max_new_tokens=2) for i, priority in enumerate([1, 1, 0, 2, 0])
    ]
    assert list(lab.run_all(engine, requests)) == ["02", "04", "10", "11", "23"]


def test_stop_token_ends_and_belongs_to_the_response(lab: Any) -> None:
    free = lab.run_all(lab.engine(lab.model()), [lab.request("a", [5, 6], seed=1, max_new_tokens=30)])["a"]
    stop = free.token_ids[10]
    until = free.token_ids[: free.token_ids.index(stop) + 1]
    request = lab.request("a", [5, 6], seed=1, max_new_tokens=30, stop_token_ids=(stop,))
    result = lab.run_all(lab.engine(lab.model()), [request])["a"]
    assert (result.token_ids, result.finish_reason) == (until, "stop")


def test_stop_strings_end_text_and_span_abort_and_resumption(lab: Any) -> None:
    tokenizer = lab.tokenizer()
    options = {"seed": 4, "max_new_tokens": 60, "top_k": 40}
    free = lab.run_all(lab.engine(lab.model(), tokenizer=tokenizer), [lab.request("a", [5, 6], **options)])["a"]
    start = next(i for i in range(20, 58) if all(token < 94 for token in free.token_ids[i : i + 2]))  # two ASCII characters
    stop = tokenizer.decode(free.token_ids[start : start + 2])
    text = tokenizer.decode(free.token_ids)
    end = text.index(stop)
    for include in (True, False):
        request = lab.request("a", [5, 6], **options, stop_strings=("never seen", stop), include_stop_str_in_output=include)
        result = lab.run_all(lab.engine(lab.model(), tokenizer=tokenizer), [request])["a"]
        assert result.finish_reason == "stop"
        assert result.text == text[: end + 2 * include]
        assert result.token_ids == free.token_ids[: len(result.token_ids)]
        assert tokenizer.decode(result.token_ids).endswith(stop)
        partial = result.token_ids[:-1]  # the first half of the stop string was sampled before
        resumed = lab.request("a", [5, 6], partial, **options, stop_strings=(stop,))
        again = lab.run_all(lab.engine(lab.model(), tokenizer=tokenizer), [resumed])["a"]
        assert (again.token_ids, again.finish_reason) == (result.token_ids[-1:], "stop")


def test_max_length_ends_a_response(lab: Any) -> None:
    result = lab.run_all(lab.engine(lab.model(), max_length=20), [lab.request("a", range(15), max_new_tokens=50)])["a"]
    assert (len(result.token_ids), result.finish_reason) == (5, "length")


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "empty"),
        ([256], {}, "token ids"),
        ([-1], {}, "token ids"),
        (range(40), {}, "no room"),
        ([1], {"temperature": -0.5}, "out of range"),
        ([1], {"top_p": 0.0}, "out of range"),
        ([1], {"max_new_tokens": 0}, "out of range"),
        ([1], {"stop_strings": ("x",)}, "tokenizer"),
    ],
)
def test_requests_that_can_never_run_are_refused_and_harm_nothing(lab: Any, prompt: Any, params: Any, message: str) -> None:
    engine = lab.engine(lab.model(), max_length=40)
    with pytest.raises(ValueError, match=message):
        engine.submit(lab.request("bad", prompt, **params))
    assert engine.idle
    engine.submit(lab.request("good", [1]))
    with pytest.raises(ValueError, match="already"):
        engine.submit(lab.request("good", [1]))


def test_models_of_an_unsupported_kind_are_refused(lab: Any) -> None:
    sliding = lab.model("qwen2")
    sliding.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        lab.engine(sliding)
    flash = lab.model("qwen2")
    flash.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="flash_attention_2"):
        lab.engine(flash)
    ruined = lab.model("qwen2")
    torch.nn.init.constant_(ruined.model.norm.weight, float("nan"))
    with pytest.raises(ValueError, match="not finite: its weights hold NaN"):
        lab.engine(ruined)


@pytest.mark.parametrize("company", [0, 3, 12])
def test_deterministic_results_are_bitwise_equal_in_any_company(lab: Any, company: int) -> None:
    watched = [lab.request(f"w{i}", p, seed=i, temperature=0.8, max_new_tokens=30) for i, p in enumerate(prompts(3, seed=5))]
    others = [lab.request(f"o{i}", p, max_new_tokens=5 + 4 * i) for i, p in enumerate(prompts(company, seed=6, longest=60))]
    reference = {}
    for request in watched:
        reference |= lab.run_all(lab.engine(lab.model(), slots=1, deterministic=True), [request])
    engine = lab.engine(lab.model(), slots=10, deterministic=True)
    mixed = [*others[::2], *watched, *others[1::2]]
    results = lab.run_all(engine, mixed, lambda step: engine.abort(["w1"]) if step == 9 else None)
    first = results["w1"]
    rest = lab.run_all(
        engine, [lab.request("w1", watched[1].prompt_ids, first.token_ids, seed=1, temperature=0.8, max_new_tokens=30)]
    )["w1"]
    for name in ("w0", "w2"):
        assert (results[name].token_ids, results[name].logprobs) == (reference[name].token_ids, reference[name].logprobs)
    assert first.finish_reason == "abort" and 0 < len(first.token_ids) < 30
    assert first.token_ids + rest.token_ids == reference["w1"].token_ids
    assert first.logprobs + rest.logprobs == reference["w1"].logprobs


def test_sleep_frees_the_cache_and_holds_requests_until_wake(lab: Any) -> None:
    engine = lab.engine(lab.model())
    engine.submit(lab.request("a", [1, 2], seed=3, max_new_tokens=8))
    engine.step()
    with pytest.raises(ValueError, match="1 requests running"):
        engine.sleep()
    before = lab.run_all(engine, [])["a"].token_ids
    assert engine._model.cache.nbytes > 0
    engine.sleep()
    assert engine._model.cache.nbytes == 0
    engine.submit(lab.request("a", [1, 2], seed=3, max_new_tokens=8))
    assert engine.idle and engine.step() == []
    with pytest.raises(ValueError, match="sleeps"):
        engine.activate(WeightManifest(1), "interrupt")
    engine.wake()
    assert lab.run_all(engine, [])["a"].token_ids == before
