"""vLLM behind `InferStrategy`, one real engine for the whole module (it takes half a minute to start). The truth everywhere is a
plain forward of transformers: 1e-4 in float32 allows for another order of additions; a token of other weights is off by 0.1 or
more.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from living import command_lines
from prometheus_client import REGISTRY
from safetensors.torch import save_file
from tiny_models import FOR_VLLM, tiny_qwen2
from transformers import DynamicCache

from roll.core.configs.rlvr import RLVRConfig
from roll.core.errors import EngineError
from roll.core.weights.bucket import Bucket, WeightManifest, manifest_of
from roll.core.workers.infer_interface import GenerateResult
from roll.core.workers.workers import InferWorker
from roll.reports.prometheus.engine_watch import figures_of
from roll.reports.prometheus.page import MetricsPage
from roll.strategies.infer.vllm.weights import StagedBuckets
from roll.transports.buckets import make_buckets
from roll.transports.lending import Lender, LentBucket
from roll.transports.shared_buffers import FileBuffer

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("vllm")]

SLOTS, LONGEST = 8, 400
EXACT = 1e-4


def make_model(seed: int) -> Any:
    return tiny_qwen2(256, seed=seed, **FOR_VLLM)


class Served:
    """The strategy on an event loop of its own, and the models whose weights it was given, by version."""

    def __init__(self, lab: Any, strategy: Any) -> None:
        self.lab = lab
        self.strategy = strategy
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.models = {0: make_model(0)}

    @property
    def version(self) -> int:
        return max(self.models)

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(body, 60), self.loop).result()

    def generate(self, *requests: Any) -> list[GenerateResult]:
        async def body() -> list[GenerateResult]:
            return await asyncio.gather(*map(self.strategy.generate, requests))

        return self.run(body())

    async def update(self, mode: Any, model: Any | None = None, named: Any | None = None) -> float:
        """To new random weights, or to those of `model`, exported as `named`."""
        version = self.version + 1
        model = make_model(version) if model is None else model
        buckets = list(make_buckets(named or model.named_parameters(), 20_000))
        for bucket in buckets:
            await self.strategy.receive_bucket(version, bucket)
        pause: float = await self.strategy.activate_weights(manifest_of(version, buckets), mode)
        self.models[version] = model
        return pause

    async def until_generated(self, tokens: int) -> None:
        """Until the engine has made so many more tokens."""
        goal = (await self.strategy.stats()).generated_tokens + tokens
        while (await self.strategy.stats()).generated_tokens < goal:
            await asyncio.sleep(0)

    def error(self, request: Any, result: GenerateResult, version: int | None = None) -> float:
        """Largest error of a log-prob, each token re-scored by the model of its stamped version (or of `version`)."""
        given = (*request.prompt_ids, *request.partial_ids)
        temperature = request.sampling.temperature or 1.0
        got = torch.tensor(result.logprobs)
        worst = 0.0
        for span in result.versions:
            model = self.models[span.version if version is None else version]
            true = self.lab.true_logprobs(model, given, result.token_ids, temperature)
            worst = max(worst, float((got - true)[span.start : span.stop].abs().max()))
        return worst


@pytest.fixture(scope="module")
def served(lab: Any, tmp_path_factory: Any) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("model")
    make_model(0).save_pretrained(folder)
    lab.tokenizer().save_pretrained(folder)
    # A short name: those of sockets end after 107 characters.
    temporary = Path(tempfile.mkdtemp(prefix="vllm-test-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        yield from serve(lab, folder)
    notes = f"roll-buckets-{os.getuid()}"  # which stay
    left = [path.name for path in temporary.iterdir() if path.name != notes]
    shutil.rmtree(temporary)
    assert left == [], "an engine that was killed leaves nothing behind"


def serve(lab: Any, folder: Path) -> Iterator[Served]:
    from roll.core.workers.infer_engines import make_infer_strategy

    environment = dict(os.environ)
    options = {"model_path": str(folder), "max_running_requests": SLOTS, "max_length": LONGEST, "threads": 1, "seed": 7}
    served = Served(lab, make_infer_strategy("vllm", options))
    assert dict(os.environ) == environment  # what the engine needs is in its own process alone
    assert all(path.name.startswith("roll-") for path in Path(tempfile.gettempdir()).iterdir())  # removed if we were killed
    yield served
    served.run(served.strategy.close())
    served.loop.call_soon_threadsafe(served.loop.stop)


def prompt(draw: random.Random, longest: int = 20) -> list[int]:
    return [draw.randrange(256) for _ in range(draw.randint(1, longest))]


def whole(result: GenerateResult) -> bool:
    """Its spans tile its tokens."""
    starts, stops = [s.start for s in result.versions], [s.stop for s in result.versions]
    return [0, *stops] == [*starts, len(result.token_ids)] and len(result.logprobs) == len(result.token_ids)


def test_log_probs_are_those_of_the_whole_distribution_at_the_temperature(lab: Any, served: Served) -> None:
    """top_p and top_k cut off tokens, but nothing is renormalised; greedy counts as temperature 1. All in one batch."""
    draw = random.Random(0)
    sampling = [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 0.6, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.5, "top_k": 3, "seed": 3},
        {"temperature": 0.0},
        {"temperature": 0.0, "top_p": 0.5},
    ]
    requests = [lab.request(str(i), prompt(draw), max_new_tokens=60, **one) for i, one in enumerate(sampling)]
    for request, result in zip(requests, served.generate(*requests), strict=True):
        params = request.sampling
        assert (len(result.token_ids), result.finish_reason, whole(result)) == (60, "length", True)
        assert served.error(request, result) < EXACT
        ids = torch.tensor([[*request.prompt_ids, *result.token_ids]])
        with torch.no_grad():
            logits = served.models[0](ids).logits[0, len(request.prompt_ids) - 1 : -1]
        better = (logits > logits.gather(1, torch.tensor(result.token_ids)[:, None]) + 1e-4).sum(-1)
        allowed = 1 if params.temperature == 0 else params.top_k or 256
        assert better.max() < allowed, f"a token outside {params}"


def test_its_own_metrics_are_its_own_and_come_to_the_page_of_figures(lab: Any, served: Served, tmp_path: Path) -> None:
    async def call(method: str) -> Any:
        return await getattr(InferWorker, method)(SimpleNamespace(strategy=served.strategy))

    page = MetricsPage(RLVRConfig(metrics_address=":0"), tmp_path, None, lambda said: None)

    async def asked() -> dict[str, float]:
        figures = await figures_of(SimpleNamespace(call=call))  # type: ignore[arg-type]
        assert figures is not None
        page.engines, page.own = {3: figures[0]}, {3: figures[1]}
        told = [each for family in page.collect() for each in family.samples if each.labels.get("engine") == "3"]
        return {each.name: each.value for each in told if "le" not in each.labels and "reason" not in each.labels}

    before = served.run(asked())
    results = served.generate(*(lab.request(f"m{i}", [1, 2, 3], max_new_tokens=9) for i in range(3)))
    after = served.run(asked())
    tokens = sum(len(result.token_ids) for result in results)
    for counted in ("vllm:generation_tokens_total", "roll_engine_generated_tokens_total"):
        assert after[counted] - before[counted] == tokens, counted
    assert after["vllm:e2e_request_latency_seconds_count"] - before["vllm:e2e_request_latency_seconds_count"] == 3
    assert after["vllm:num_requests_running"] == 0
    assert not [name for collector in REGISTRY.collect() if (name := collector.name).startswith("vllm:")], "none of the process"


def test_a_seeded_response_is_the_same_in_any_company(lab: Any, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", True, raising=False)  # here alone: so seeds are sent
    request = lab.request("a", [5, 6, 7], seed=11, max_new_tokens=50)
    (alone,) = served.generate(request)
    others = [lab.request(str(i), [i, 9], max_new_tokens=30, seed=i) for i in range(12)]
    in_company = served.generate(*others, request)[-1]
    assert in_company.token_ids == alone.token_ids
    (other_seed,) = served.generate(lab.request("a", [5, 6, 7], seed=12, max_new_tokens=50))
    assert other_seed.token_ids != alone.token_ids


def test_aborted_requests_return_what_they_have_and_go_on_from_it(lab: Any, served: Served) -> None:
    requests = [lab.request(str(i), [i + 1, 2, 3], max_new_tokens=380, temperature=0.9, seed=i) for i in range(SLOTS + 3)]

    async def interrupted() -> list[GenerateResult]:
        calls = [asyncio.create_task(served.strategy.generate(request)) for request in requests]
        await served.until_generated(20 * SLOTS)
        await served.strategy.abort(["0", "unknown"])
        first = await calls[0]
        assert first.finish_reason == "abort" and not any(call.done() for call in calls[1:])
        await served.strategy.abort()
        results = await asyncio.gather(*calls)
        stats = await served.strategy.stats()
        assert (stats.running, stats.queued, stats.free_slots) == (0, 0, SLOTS)
        return results

    partials = served.run(interrupted())
    assert all(p.finish_reason == "abort" and len(p.token_ids) < 380 and whole(p) for p in partials)
    assert sum(len(p.token_ids) == 0 for p in partials) >= 2 and sum(len(p.token_ids) >= 15 for p in partials) >= SLOTS - 1
    again = [
        lab.request(r.request_id, r.prompt_ids, p.token_ids, max_new_tokens=380, temperature=0.9, seed=i)
        for i, (r, p) in enumerate(zip(requests, partials, strict=True))
    ]
    for request, partial, result in zip(again, partials, served.generate(*again), strict=True):
        assert len(partial.token_ids) + len(result.token_ids) == 380
        assert served.error(request, result) < EXACT
        # The numbers of the first tokens are not drawn again.
        assert not partial.token_ids or result.token_ids[:10] != partial.token_ids[:10]
    (nothing,) = served.generate(lab.request("full", [1], [2] * 10, max_new_tokens=10))
    assert (len(nothing.token_ids), nothing.finish_reason) == (0, "length")


def test_stop_tokens_and_stop_strings(lab: Any, served: Served) -> None:
    (free,) = served.generate(lab.request("a", [70, 71], temperature=0, max_new_tokens=30))
    token = free.token_ids[6]
    (result,) = served.generate(lab.request("a", [70, 71], temperature=0, max_new_tokens=30, stop_token_ids=(token,)))
    assert (result.finish_reason, result.token_ids) == ("stop", free.token_ids[: free.token_ids.index(token) + 1])
    # A text that may lie across two tokens; greedy, so both calls make the same tokens.
    text = lab.tokenizer().decode(free.token_ids)
    readable = [i for i in range(4, len(text) - 1) if "\ufffd" not in text[i : i + 2]]
    stop = text[readable[0] : readable[0] + 2]
    for include in (True, False):
        params = {"stop_strings": (stop,), "include_stop_str_in_output": include, "temperature": 0, "max_new_tokens": 30}
        (result,) = served.generate(lab.request("a", [70, 71], **params))
        assert result.finish_reason == "stop" and whole(result)
        assert result.token_ids == free.token_ids[: len(result.token_ids)]
        assert result.text == text[: text.index(stop) + len(stop) * include]
        # The stop string begins in the earlier call's tokens and ends in this one's.
        earlier, last = result.token_ids[:-1], result.token_ids[-1:]
        (resumed,) = served.generate(lab.request("a", [70, 71], earlier, **params))
        assert (resumed.finish_reason, resumed.token_ids) == ("stop", last)


def test_bad_requests_are_refused_and_the_engine_goes_on(lab: Any, served: Served) -> None:
    for bad, message in [
        (lab.request("a", []), "empty"),
        (lab.request("a", [256]), "token ids"),
        (lab.request("a", [1] * LONGEST), "no room"),
        (lab.request("a", [1], top_p=0.0), "out of range"),
    ]:
        with pytest.raises(ValueError, match=message):
            served.generate(bad)
    with pytest.raises(ValueError, match="already"):
        served.generate(lab.request("a", [1], max_new_tokens=50), lab.request("a", [2], max_new_tokens=50))
    served.run(served.strategy.abort())  # the first of the two, which may still be on its way out
    assert len(served.generate(lab.request("b", [1], max_new_tokens=3))[0].token_ids) == 3


@pytest.mark.parametrize("mode", ["interrupt", "drain"])
def test_each_token_has_the_log_prob_of_its_stamped_version(lab: Any, served: Served, mode: Any) -> None:
    """Updates at random moments over more requests than slots; each token is re-scored by the model of its version."""
    draw = random.Random(1)
    requests = [
        lab.request(str(i), prompt(draw), temperature=0.8, max_new_tokens=draw.randint(60, 350), priority=i % 2)
        for i in range(4 * SLOTS)
    ]

    async def body() -> list[GenerateResult]:
        calls = [asyncio.create_task(served.strategy.generate(request)) for request in requests]
        for _ in range(3):
            await served.until_generated(draw.randint(50, 200))
            assert await served.update(mode) > 0
        return await asyncio.gather(*calls)

    results = served.run(body())
    mixed = sum(len(result.versions) > 1 for result in results)
    assert mixed == 0 if mode == "drain" else mixed >= SLOTS
    assert len({span.version for result in results for span in result.versions}) == 4
    for request, result in zip(requests, results, strict=True):
        assert len(result.token_ids) == request.sampling.max_new_tokens and whole(result)
        assert served.error(request, result) < EXACT


def test_in_flight_requests_keep_their_cache_and_their_stamps_are_true(lab: Any, served: Served) -> None:
    """Re-scored as it was computed: keys and values of the old model up to the update, the new model from there on."""
    requests = [lab.request(str(i), [i + 1, 8], max_new_tokens=150) for i in range(SLOTS)]

    async def body() -> list[GenerateResult]:
        calls = [asyncio.create_task(served.strategy.generate(request)) for request in requests]
        await served.until_generated(30 * SLOTS)
        await served.update("in_flight")
        return await asyncio.gather(*calls)

    old = served.version
    for request, result in zip(requests, served.run(body()), strict=True):
        (first, second) = result.versions
        assert (first.version, second.version, whole(result)) == (old, old + 1, True)
        ids = torch.tensor([[*request.prompt_ids, *result.token_ids]])
        # The newest token of the old version is in no cache yet: its keys and values are the new model's.
        cached = len(request.prompt_ids) + first.stop - 1
        cache = DynamicCache()
        with torch.no_grad():
            before = served.models[old](ids[:, :cached], past_key_values=cache).logits
            after = served.models[old + 1](ids[:, cached:-1], past_key_values=cache).logits
        logits = torch.cat([before, after], 1)[0, len(request.prompt_ids) - 1 :]
        true = logits.log_softmax(-1).gather(1, torch.tensor(result.token_ids)[:, None])[:, 0]
        assert (torch.tensor(result.logprobs) - true).abs().max() < EXACT


def test_prefixes_are_shared_within_a_version_and_never_across(lab: Any, served: Served) -> None:
    """While a request of the old version keeps its blocks, equal prompts under the new one are computed anew."""
    shared = [i * 7 % 256 for i in range(300)]
    requests = [lab.request(str(i), shared, max_new_tokens=20) for i in range(2)]

    async def computed(*names: int) -> tuple[list[GenerateResult], int]:
        before = (await served.strategy.stats()).prefill_tokens
        results = [await served.strategy.generate(requests[i]) for i in names]
        return results, (await served.strategy.stats()).prefill_tokens - before

    async def body() -> list[GenerateResult]:
        old, tokens = await computed(0, 1)
        assert 300 <= tokens < 400  # the second finds the first two blocks of 128
        running = asyncio.create_task(served.strategy.generate(lab.request("old", shared, max_new_tokens=90)))
        await served.until_generated(5)
        await served.update("in_flight")
        assert not running.done()
        new, tokens = await computed(0, 1)
        assert 300 <= tokens < 400
        await running
        return old + new

    results = served.run(body())
    assert [result.versions[0].version for result in results] == [served.version - 1] * 2 + [served.version] * 2
    assert max(served.error(request, result) for request, result in zip(requests * 2, results, strict=True)) < EXACT


@pytest.mark.parametrize("names", ["embedding", "head", "both"])
def test_tied_weights_may_come_under_either_name_or_both(lab: Any, served: Served, names: str) -> None:
    """The output layer computes with a copy of the embedding, which every update must replace, too."""
    model = make_model(100)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.3)
    left_out = {"embedding": "lm_head.weight", "head": "model.embed_tokens.weight", "both": ""}[names]
    state = [(name, tensor) for name, tensor in model.state_dict().items() if name != left_out]
    served.run(served.update("interrupt", model, state))
    request = lab.request("a", [3, 4], max_new_tokens=30)
    assert served.error(request, served.generate(request)[0]) < EXACT


def test_weights_of_another_type_are_converted(lab: Any, served: Served) -> None:
    """A bfloat16 trainer and a float32 engine."""
    rounded = make_model(101)
    exported = [(name, tensor.detach().to(torch.bfloat16)) for name, tensor in rounded.named_parameters()]
    rounded.load_state_dict(dict(exported), strict=False)
    served.run(served.update("interrupt", rounded, exported))
    request = lab.request("a", [3, 4], max_new_tokens=30)
    assert served.error(request, served.generate(request)[0]) < EXACT


def test_weights_that_were_not_received_whole_are_refused_and_change_nothing(lab: Any, served: Served) -> None:
    version = served.version + 1
    buckets = list(make_buckets(make_model(5).named_parameters(), 20_000))

    async def body() -> None:
        with pytest.raises(ValueError, match="were requested"):
            await served.strategy.activate_weights(manifest_of(version, buckets), "interrupt")
        for bucket in buckets[1:]:
            await served.strategy.receive_bucket(version, bucket)
        with pytest.raises(ValueError, match="differ in"):
            await served.strategy.activate_weights(manifest_of(version, buckets), "interrupt")
        buckets[0].checksum += 1
        with pytest.raises(ValueError, match="corrupt"):
            await served.strategy.receive_bucket(version, buckets[0])

    served.run(body())
    request = lab.request("a", [3, 4], max_new_tokens=30)
    (result,) = served.generate(request)
    assert result.versions[0].version == served.version
    assert served.error(request, result) < EXACT


def test_sleep_keeps_requests_and_new_weights_waiting(lab: Any, served: Served) -> None:
    request = lab.request("a", [1, 2], max_new_tokens=20)

    async def body() -> GenerateResult:
        running = asyncio.create_task(served.strategy.generate(lab.request("long", [1], max_new_tokens=300)))
        await served.until_generated(5)
        sleeping = asyncio.create_task(served.strategy.sleep())
        await served.until_generated(5)
        assert not sleeping.done(), "what runs would lose its memory"
        await served.strategy.abort()
        assert (await running).finish_reason == "abort"
        await sleeping
        call = asyncio.create_task(served.strategy.generate(request))
        given_up = asyncio.create_task(served.strategy.generate(lab.request("b", [1])))
        await asyncio.sleep(0)
        await served.strategy.abort(["b"])
        assert (await given_up).finish_reason == "abort"
        with pytest.raises(ValueError, match="sleeps"):
            await served.strategy.activate_weights(WeightManifest(served.version), "interrupt")
        assert (await served.strategy.stats()).queued == 1 and not call.done()
        await served.strategy.wake()
        return await call

    result = served.run(body())
    assert [span.version for span in result.versions] == [served.version]
    assert served.error(request, result) < EXACT


@pytest.fixture
def dropping(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The calls for weights, of an engine that drops them while it sleeps. On a CPU vLLM keeps them: zeros take their place."""
    strategy, calls = served.strategy, []
    engine = strategy._engine
    sleep, call = engine.sleep, engine.collective_rpc
    zeros = {name: torch.zeros_like(weight) for name, weight in make_model(0).state_dict().items() if name != "lm_head.weight"}
    save_file(zeros, tmp_path / "zeros.safetensors")

    async def drop(level: int) -> None:
        await sleep(level)
        if level == 2:
            await call("load_policy", args=([str(tmp_path / "zeros.safetensors")],))

    async def counted(method: str, **options: Any) -> Any:
        calls.append(options["args"])
        return await call(method, **options)

    monkeypatch.setattr(strategy, "_frees_memory", True)
    monkeypatch.setattr(engine, "sleep", drop)
    monkeypatch.setattr(engine, "collective_rpc", counted)
    yield calls
    served.run(served.update("interrupt"))  # which the next test has, whatever became of this one


@pytest.mark.parametrize("updated", [True, False], ids=["received", "of the folder"])
def test_weights_that_a_sleep_drops_are_loaded_again_where_no_new_ones_come(
    lab: Any, served: Served, dropping: list[Any], updated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, again = (lab.request(name, [1, 2], max_new_tokens=20) for name in "ab")

    async def turn() -> None:
        await served.strategy.sleep()
        await served.strategy.wake()

    if updated:
        served.run(served.update("interrupt"))
    else:  # as after the start
        served.models[served.version].save_pretrained(tmp_path / "start")
        monkeypatch.setattr(served.strategy, "_whole", StagedBuckets(tmp_path / "start", tied=True))
        shutil.rmtree(tmp_path / "start")  # a checkpoint that has made room for the next
    dropping.clear()
    served.run(turn())
    assert not dropping, "new weights may come"
    results = served.generate(request, again)
    assert len(dropping) == 1
    served.run(turn())
    served.run(turn())
    results += served.generate(lab.request("c", [1, 2], max_new_tokens=20))
    assert len(dropping) == 2
    assert {span.version for result in results for span in result.versions} == {served.version}
    assert max(served.error(request, result) for result in results) < EXACT


def test_weights_that_a_sleep_drops_are_not_loaded_where_new_ones_come(lab: Any, served: Served, dropping: list[Any]) -> None:
    async def turn() -> None:
        await served.strategy.sleep()
        await served.strategy.wake()
        await served.update("interrupt")

    served.run(turn())
    request = lab.request("a", [1, 2], max_new_tokens=20)
    (result,) = served.generate(request)
    assert len(dropping) == 1 and served.error(request, result) < EXACT


def test_a_cancelled_call_leaves_the_engine(lab: Any, served: Served) -> None:
    async def body() -> None:
        call = asyncio.create_task(served.strategy.generate(lab.request("a", [1], max_new_tokens=390)))
        await served.until_generated(5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await served.strategy.stats()).running == 0

    served.run(body())
    assert len(served.generate(lab.request("a", [1], max_new_tokens=3))[0].token_ids) == 3


def engine_processes() -> list[Any]:
    return [child for child, line in command_lines(recursive=False).items() if "EngineCore" in "".join(line[:1])]


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_lent_buckets_are_copied_by_the_engines_own_process(lab: Any, served: Served, mode: Any) -> None:
    """From memory of this process, by its handle; others come as files, or in both ways."""
    lender, version = Lender({"cpu": FileBuffer}), served.version + 1
    model = make_model(version)
    place, buckets = lender.begin(1 << 20), list(make_buckets(model.named_parameters(), 20_000))

    def lent(bucket: Bucket) -> LentBucket:
        lender.use(0)
        for tensor in bucket.tensors.values():
            place(tensor)
        found = lender.lent(bucket.names)
        assert found is not None
        return LentBucket("/nowhere", bucket.names, bucket.checksum, bucket.nbytes, found)

    async def update() -> None:
        for number, bucket in enumerate(buckets):
            if number % 3 < 2:
                await served.strategy.receive_lent(version, there := lent(bucket))
                lent(buckets[number - 1])  # the buffer is written again
                with pytest.raises(ValueError, match="has changed"):
                    await served.strategy.receive_lent(version, there)
            if number % 3 > 0:
                await served.strategy.receive_bucket(version, bucket)
        await served.strategy.activate_weights(manifest_of(version, buckets), mode)

    served.run(update())
    served.models[version] = model
    request = lab.request(f"lent-{mode}", prompt(random.Random(1)), max_new_tokens=30)
    [result] = served.generate(request)
    assert {span.version for span in result.versions} == {version} and len(buckets) > 6
    assert served.error(request, result) < EXACT


def test_lent_buckets_that_are_not_the_models_are_refused(served: Served) -> None:
    lender = Lender({"cpu": FileBuffer})
    place = lender.begin(1 << 10)
    for name, shape, says in (("model.norm.weight", 7, "has shape"), ("other", 3, "unknown")):
        lender.use(0)
        place(torch.ones(shape))
        lent = lender.lent([name])
        assert lent is not None
        with pytest.raises(ValueError, match=says):
            served.run(served.strategy.receive_lent(served.version + 1, LentBucket("/nowhere", (name,), 0, 4 * shape, lent)))


def test_the_death_of_the_engine_reaches_every_pending_and_later_call(lab: Any, served: Served) -> None:
    """The last test: nothing runs after it."""

    async def body() -> None:
        calls = [asyncio.create_task(served.strategy.generate(lab.request(str(i), [1], max_new_tokens=390))) for i in range(12)]
        await served.until_generated(20)
        (engine,) = engine_processes()
        engine.send_signal(signal.SIGKILL)
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(failure, EngineError) and "died" in str(failure) for failure in failures), failures
        bucket = next(make_buckets(make_model(1).named_parameters(), 1000))
        for later in (
            served.strategy.generate(lab.request("later", [1])),
            served.strategy.abort(),
            served.strategy.stats(),
            served.strategy.receive_bucket(99, bucket),
        ):
            with pytest.raises(EngineError, match="died"):
                await later

    served.run(body())
