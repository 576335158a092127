"""hf_infer and vLLM on one GPU: log-probs, weight updates, memory.

Each token is re-scored by the float32 model of its stamped version. In bf16 the mean difference is below 0.02, and about 1 where
the version is another.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from train_specs import fsdp2_spec

from roll.core.configs.arguments import KV_BLOCK
from roll.core.data.token_batch import TokenBatch
from roll.core.weights.bucket import manifest_of
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, InferStrategy
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.strategies.infer.hf.block_cache import BlockRows, block_attention
from roll.strategies.infer.hf.decode_graphs import CudaCapture
from roll.transports.buckets import make_buckets

BF16_MEAN = 2e-2
FP32 = 1e-4
SLOTS, LONGEST = 8, 400
VOCABULARY = 256
VLLM = {"gpu_memory_utilization": 0.3}


class Served:
    """An engine with its event loop, and the models whose weights it was given, by version."""

    def __init__(self, lab: SimpleNamespace, name: str, options: dict[str, Any]) -> None:
        self.name, self._lab = name, lab
        self._runner = asyncio.Runner()
        self.engine: InferStrategy = make_infer_strategy(name, options)
        self.models = {0: lab.make_model(0)}

    @property
    def version(self) -> int:
        return max(self.models)

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(body, 300))

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        async def body() -> list[GenerateResult]:
            return await asyncio.gather(*map(self.engine.generate, requests))

        return self.run(body())

    async def update(self, mode: Any) -> None:
        """To other random weights, which arrive in bf16 as a trainer exports them."""
        version = self.version + 1
        model = self._lab.make_model(version)
        named = ((name, parameter.detach().bfloat16()) for name, parameter in model.named_parameters())
        buckets = list(make_buckets(named, 1 << 20))
        for bucket in buckets:
            await self.engine.receive_bucket(version, bucket)
        await self.engine.activate_weights(manifest_of(version, buckets), mode)
        self.models[version] = model

    async def until_generated(self, tokens: int) -> None:
        goal = (await self.engine.stats()).generated_tokens + tokens
        while (await self.engine.stats()).generated_tokens < goal:
            await asyncio.sleep(0)

    def errors(self, request: GenerateRequest, result: GenerateResult, shift: int = 0) -> list[float]:
        """Of each token, under the model of its version plus `shift`."""
        got = torch.tensor(result.logprobs)
        parts = []
        for span in result.versions:
            model = self.models[span.version + shift]
            true = self._lab.true_logprobs(model, request.prompt_ids, result.token_ids, request.sampling.temperature or 1.0)
            parts.append((got - true)[span.start : span.stop].abs())
        return torch.cat(parts).tolist()

    def close(self) -> None:
        self.run(self.engine.close())
        self._runner.close()


def serve(
    name: str,
    lab: SimpleNamespace,
    device: str,
    model_path: str,
    dtype: str = "bfloat16",
    vllm_python: str | None = None,
    given: dict[str, Any] | None = None,
    cache_tokens: int | None = None,
) -> Served:
    options: dict[str, Any] = {"model_path": model_path, "max_running_requests": SLOTS, "max_length": LONGEST, "dtype": dtype}
    if name == "vllm":
        interpreter = {"python": vllm_python} if vllm_python else {}
        own: dict[str, Any] = {
            "devices": [device],
            "engine_args": (VLLM | {"enable_sleep_mode": True} if device != "cpu" else {}) | interpreter | (given or {}),
        }
    else:
        own = {"device": device, "cache_tokens": cache_tokens}
    return Served(lab, name, options | own)


@pytest.fixture(scope="module", params=["hf_infer", "vllm"])
def served(request: pytest.FixtureRequest, infer_lab: SimpleNamespace, device: str, model_path: str) -> Iterator[Served]:
    python = request.getfixturevalue("vllm_python") if request.param == "vllm" else None
    served = serve(request.param, infer_lab, device, model_path, vllm_python=python)
    yield served
    served.close()


def make_requests(lab: SimpleNamespace, count: int, tokens: int, prefix: str = "") -> list[GenerateRequest]:
    temperatures = (1.0, 0.7, 0.0)
    return [
        lab.make_request(f"{prefix}{i}", [i + 1, 7 * i % 250, 9], temperature=temperatures[i % 3], max_new_tokens=tokens + i)
        for i in range(count)
    ]


def mean_error(served: Served, requests: Sequence[GenerateRequest], results: Sequence[GenerateResult], shift: int = 0) -> float:
    errors = [e for request, result in zip(requests, results, strict=True) for e in served.errors(request, result, shift)]
    return sum(errors) / len(errors)


def as_batch(requests: Sequence[GenerateRequest], results: Sequence[GenerateResult]) -> TokenBatch:
    """What a trainer would be given of these responses."""
    tokens = [[*request.prompt_ids, *result.token_ids] for request, result in zip(requests, results, strict=True)]
    behaviour = [[0.0] * len(request.prompt_ids) + [*result.logprobs] for request, result in zip(requests, results, strict=True)]
    mask = [[i >= len(request.prompt_ids) for i in range(len(row))] for request, row in zip(requests, tokens, strict=True)]
    chain = itertools.chain.from_iterable
    flat = torch.tensor(list(chain(behaviour)))
    return TokenBatch(
        lengths=torch.tensor([len(row) for row in tokens]),
        scores=torch.zeros(len(tokens)),
        temperatures=torch.tensor([request.sampling.temperature for request in requests]),
        tokens=torch.tensor(list(chain(tokens))),
        loss_mask=torch.tensor(list(chain(mask))),
        behaviour_logprobs=flat,
        advantages=torch.zeros_like(flat),
    )


def test_log_probs_are_near_those_of_float32_and_of_the_trainer(
    served: Served, infer_lab: SimpleNamespace, device: str, model_path: str
) -> None:
    """The first test: the engine has the weights of the folder."""
    requests = make_requests(infer_lab, 12, 100)
    results = served.generate(requests)
    assert [len(result.token_ids) for result in results] == [100 + i for i in range(12)]
    assert {span.version for result in results for span in result.versions} == {0}
    assert 0 < mean_error(served, requests, results) <= BF16_MEAN

    trainer: Any = make_train_strategy(RankContext(device=device), fsdp2_spec(model_path, dtype="bf16", trainable=False))
    batch = as_batch(requests, results)
    difference = (trainer.log_probs(batch) - batch.behaviour_logprobs)[batch.loss_mask]
    trainer.close()
    assert float(difference.abs().mean()) <= BF16_MEAN
    # E[log p_trainer - log p_engine] over the engine's samples is minus a KL divergence: rounding must not add up to a bias.
    assert abs(float(difference.mean())) <= BF16_MEAN / 4


def test_log_probs_of_who_asks_are_over_the_sets_that_tokens_were_drawn_from(served: Served, infer_lab: SimpleNamespace) -> None:
    """Beside requests that do not ask. A log-prob over another token's set would be off by about 1."""
    cut = {"top_p": 0.8, "top_k": 40, "max_new_tokens": 100, "temperature": 0.9}
    asking = [infer_lab.make_request(f"asks{i}", [i + 1, 5, 9], with_kept=True, **cut) for i in range(SLOTS)]
    silent = [infer_lab.make_request(f"silent{i}", [i + 1, 5, 9], **cut) for i in range(SLOTS)]
    results = served.generate([each for pair in zip(asking, silent, strict=True) for each in pair])
    assert all(result.extras.kept is None for result in results[1::2])
    errors = []
    for request, result in zip(asking, results[::2], strict=True):
        kept = result.extras.kept
        assert kept is not None and len(kept) == 100 and min(kept.sizes) >= 1 and max(kept.sizes) <= 40
        ids = torch.tensor([[*request.prompt_ids, *result.token_ids[:-1]]])
        with torch.no_grad():
            logits = served.models[served.version](ids).logits[0, len(request.prompt_ids) - 1 :] / 0.9
        for row, token, told, of_token in zip(
            logits, result.token_ids, result.logprobs, np.split(kept.ids, np.cumsum(kept.counts)[:-1]), strict=True
        ):
            among = of_token.tolist()
            errors.append(abs(told - float(row[among].log_softmax(-1)[among.index(token)])))
    assert sum(errors) / len(errors) <= BF16_MEAN


@pytest.mark.parametrize("mode", ["interrupt", "drain", "in_flight"])
def test_each_token_has_the_log_prob_of_its_stamped_version(served: Served, infer_lab: SimpleNamespace, mode: Any) -> None:
    """More requests than slots, an update while they run. In flight a request keeps the keys and values of the old weights, so
    only what begins after the update is compared."""
    requests = make_requests(infer_lab, 3 * SLOTS, 150, prefix=mode)
    old = served.version

    async def body() -> list[GenerateResult]:
        calls = [asyncio.ensure_future(served.engine.generate(request)) for request in requests]
        await served.until_generated(30 * SLOTS)
        await served.update(mode)
        return await asyncio.gather(*calls)

    results = served.run(body())
    for result in results:
        starts, stops = [s.start for s in result.versions], [s.stop for s in result.versions]
        assert [0, *stops] == [*starts, len(result.token_ids)]
    mixed = [len(result.versions) > 1 for result in results]
    assert not any(mixed) if mode == "drain" else sum(mixed) >= SLOTS // 2
    assert {span.version for result in results for span in result.versions} == {old, old + 1}
    compared = [
        pair for pair, both in zip(zip(requests, results, strict=True), mixed, strict=True) if mode != "in_flight" or not both
    ]
    assert mean_error(served, *zip(*compared, strict=True)) <= BF16_MEAN
    new = [(request, result) for request, result in compared if result.versions[0].version == old + 1]
    assert mean_error(served, *zip(*new, strict=True), shift=-1) > 0.5


def test_sleep_frees_memory_and_wake_serves_the_same_policy(served: Served, infer_lab: SimpleNamespace) -> None:
    """As the driver counts it, for vLLM's memory belongs to another process."""
    requests = make_requests(infer_lab, SLOTS, 40, prefix="awake")
    served.generate(requests)
    torch.cuda.synchronize()
    awake, total = torch.cuda.mem_get_info()
    served.run(served.engine.sleep())
    asleep, _ = torch.cuda.mem_get_info()
    # hf_infer keeps its weights; vLLM gives up its share but for what CUDA and its graphs need.
    assert asleep - awake >= (0.5 * VLLM["gpu_memory_utilization"] * total if served.name == "vllm" else 1 << 20)
    served.run(served.engine.wake())
    requests = make_requests(infer_lab, SLOTS, 40, prefix="woken")
    results = served.generate(requests)
    assert {span.version for result in results for span in result.versions} == {served.version}
    assert mean_error(served, requests, results) <= BF16_MEAN


def test_weights_wait_while_the_engine_sleeps(served: Served, infer_lab: SimpleNamespace) -> None:
    served.run(served.engine.sleep())
    with pytest.raises(ValueError, match="sleeps"):
        served.run(served.update("interrupt"))
    served.run(served.engine.wake())
    served.run(served.update("interrupt"))
    for prefix in ("changed", "after another sleep"):
        requests = make_requests(infer_lab, SLOTS, 40, prefix=prefix)
        results = served.generate(requests)
        assert {span.version for result in results for span in result.versions} == {served.version}
        assert mean_error(served, requests, results) <= BF16_MEAN
        served.run(served.engine.sleep())
        served.run(served.engine.wake())


@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_each_version_is_quantised_as_it_arrives(
    infer_lab: SimpleNamespace, device: str, model_path: str, vllm_python: str | None, cache: str
) -> None:
    """Weights in FP8 cost more than bf16 does, another version's a nat; graphs go on with the weights that came last."""
    given = {"quantization": "fp8", "kv_cache_dtype": cache}
    served = serve("vllm", infer_lab, device, model_path, vllm_python=vllm_python, given=given)
    for version in range(3):
        if version:
            served.run(served.update("interrupt"))
        requests = make_requests(infer_lab, SLOTS, 100, prefix=f"{cache}{version}")
        results = served.generate(requests)
        assert {span.version for result in results for span in result.versions} == {version}
        error = mean_error(served, requests, results)
        assert 1.2 * BF16_MEAN / 2 < error < 0.3, error
        assert not version or mean_error(served, requests, results, shift=-1) > 0.5
    served.close()


def test_token_steps_of_hf_infer_are_graphs_also_under_new_weights(
    infer_lab: SimpleNamespace, device: str, model_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each that was captured gave the hidden states of the step without it, no step had to go without, and when the cache has its
    size none is captured again."""
    captured = []
    with caplog.at_level("INFO", logger="roll.strategies.infer.hf.decode_graphs"):
        served = serve("hf_infer", infer_lab, device, model_path)
        for version in range(3):
            if version:
                served.run(served.update("interrupt"))
            requests = make_requests(infer_lab, SLOTS, 100, prefix=f"graphs{version}")
            results = served.generate(requests)
            assert {span.version for result in results for span in result.versions} == {version}
            assert mean_error(served, requests, results) <= BF16_MEAN
            captured.append(len(caplog.records))
        served.close()
    said = [record.getMessage() for record in caplog.records]
    assert captured[0] > 0 and captured[1] == captured[2] and all(" are one graph " in message for message in said), said


def test_the_kernel_of_hf_infer_over_blocks_attends_as_over_gathered_rows(infer_lab: SimpleNamespace, device: str) -> None:
    """With the arguments of a token step, in a graph as without; a row's output does not depend on the others, bitwise."""
    rows, longest, heads, kv_heads, width = 6, 3, 14, 2, 64
    draw = torch.Generator(device).manual_seed(0)
    keys, values = (
        torch.randn(20, KV_BLOCK, kv_heads, width, device=device, dtype=torch.bfloat16, generator=draw) for _ in range(2)
    )
    query = torch.randn(rows, heads, 1, width, device=device, dtype=torch.bfloat16, generator=draw)
    table = torch.randperm(19, device=device, generator=draw)[: rows * longest].reshape(rows, longest).int() + 1
    lengths = torch.tensor([1, 255, 256, 257, 600, 768], device=device, dtype=torch.int32)
    borders = torch.arange(rows + 1, device=device, dtype=torch.int32)

    def attend(count: int = rows) -> torch.Tensor:
        of = BlockRows(table[:count], lengths[:count], borders[: count + 1])
        return block_attention(query[:count], keys, values, of, None)

    replay = CudaCapture(torch.device(device))(attend)
    found = attend()
    assert torch.equal(replay(), found)
    for count in range(1, rows):
        assert torch.equal(attend(count), found[:count])
    given = {"scale": None, "enable_gqa": True, "seqused_k": lengths.cpu(), "block_table": table.cpu(), "num_splits": 1}
    most = longest * KV_BLOCK
    where = borders.cpu(), borders.cpu() * most, 1, most
    true = infer_lab.gathering(query[:, :, 0].cpu().float(), keys.cpu().float(), values.cpu().float(), *where, **given)
    assert (found[:, 0].cpu().float() - true).abs().max() < 0.02


@pytest.mark.parametrize("tokens", [None, 5 * KV_BLOCK])
def test_hf_infer_serves_from_blocks_also_from_too_few(
    infer_lab: SimpleNamespace, device: str, model_path: str, tokens: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve("hf_infer", infer_lab, device, model_path, cache_tokens=tokens)
    assert not [record for record in caplog.records if "in rows of the longest" in record.getMessage()]
    requests = make_requests(infer_lab, 2 * SLOTS, 300, prefix="blocks")
    results = served.generate(requests)
    served.close()
    assert mean_error(served, requests, results) <= BF16_MEAN
    assert any(result.preempted for result in results) == (tokens is not None)


def test_float32_of_hf_infer_is_that_of_the_cpu(infer_lab: SimpleNamespace, device: str, model_path: str) -> None:
    served = serve("hf_infer", infer_lab, device, model_path, dtype="float32")
    requests = make_requests(infer_lab, 12, 60)
    results = served.generate(requests)
    served.close()
    assert max(max(served.errors(request, result)) for request, result in zip(requests, results, strict=True)) <= FP32
