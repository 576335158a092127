"""The asynchronous shell: concurrent calls, weight updates beside them, failure and closing that leave nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.core.errors import EngineClosed
from roll.strategies.infer.hf.strategy import HFInferStrategy


def with_strategy(model: Any, body: Callable[[HFInferStrategy], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        strategy = HFInferStrategy.from_model(
            model, None, **({"max_running_requests": 4, "max_length": 450, "threads": 1} | options)
        )
        try:
            await body(strategy)
        finally:
            await strategy.close()

    asyncio.run(asyncio.wait_for(run(), 15))


def test_a_folder_is_loaded_and_serves_concurrent_calls(lab: Any, tmp_path: Path) -> None:
    lab.model().save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)

    async def run() -> None:
        strategy = HFInferStrategy(str(tmp_path), max_running_requests=4, max_length=64, threads=1, seed=0, version=3)
        requests = [lab.request(str(i), [i + 1, 7], temperature=0, max_new_tokens=4 + i) for i in range(10)]
        results = await asyncio.gather(*map(strategy.generate, requests))
        stats = await strategy.stats()
        await strategy.close()
        plain = lab.model()
        for request, result in zip(requests, results, strict=True):
            assert result.request_id == request.request_id
            assert len(result.token_ids) == request.sampling.max_new_tokens
            assert result.text == lab.tokenizer().decode(result.token_ids)
            assert [tuple(span)[:3] for span in result.versions] == [(0, len(result.token_ids), 3)]
            expected = lab.true_logprobs(plain, request.prompt_ids, result.token_ids)
            assert torch.tensor(result.logprobs).sub(expected).abs().max() < 1e-5
        assert (stats.version, stats.running, stats.queued) == (3, 0, 0)
        assert stats.busy_s > 0

    asyncio.run(asyncio.wait_for(run(), 15))


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_an_update_drains_none_of_twenty_requests_on_four_slots(lab: Any, mode: Any) -> None:
    buckets, manifest = lab.weights(lab.model(seed=1), 1)

    async def body(strategy: HFInferStrategy) -> None:
        for bucket in buckets:
            await strategy.receive_bucket(1, bucket)
        requests = [lab.request(str(i), [i + 1], max_new_tokens=150) for i in range(20)]
        calls = [asyncio.create_task(strategy.generate(request)) for request in requests]
        await asyncio.sleep(0)  # lets the calls post their requests
        await strategy.stats()
        assert await strategy.activate_weights(manifest, mode) >= 0
        stats = await strategy.stats()
        assert stats.version == 1
        results = await asyncio.gather(*calls)
        assert all(len(result.token_ids) == 150 for result in results)
        versions = [[span.version for span in result.versions] for result in results]
        assert versions == [[0, 1]] * 4 + [[1]] * 16  # a drained request would be of version 0 alone

    with_strategy(lab.model(seed=0), body)


def test_a_draining_update_waits_for_what_runs_and_lets_nothing_begin(lab: Any) -> None:
    """20 requests on 4 slots: those that run end under the old weights, all others begin under the new ones."""
    buckets, manifest = lab.weights(lab.model(seed=1), 1)

    async def body(strategy: HFInferStrategy) -> None:
        for bucket in buckets:
            await strategy.receive_bucket(1, bucket)
        calls = [asyncio.create_task(strategy.generate(lab.request(str(i), [i + 1], max_new_tokens=50 + i))) for i in range(20)]
        await asyncio.sleep(0)  # lets the calls post their requests
        await strategy.stats()
        await strategy.activate_weights(manifest, "drain")
        assert (await strategy.stats()).version == 1
        results = await asyncio.gather(*calls)
        assert [[tuple(span)[:3] for span in result.versions] for result in results] == [
            [(0, 50 + i, 0 if i < 4 else 1)] for i in range(20)
        ]
        with pytest.raises(ValueError, match="were requested"):
            await strategy.activate_weights(manifest, "drain")  # refused after the drain; the queue moves on
        assert len((await strategy.generate(lab.request("later", [1], max_new_tokens=3))).token_ids) == 3

    with_strategy(lab.model(seed=0), body)


def test_abort_all_returns_partial_and_empty_results(lab: Any) -> None:
    async def body(strategy: HFInferStrategy) -> None:
        calls = [asyncio.create_task(strategy.generate(lab.request(str(i), [1], max_new_tokens=400))) for i in range(9)]
        await asyncio.sleep(0)  # lets the calls post their requests
        await strategy.stats()
        await strategy.abort()
        results = await asyncio.gather(*calls)
        assert {result.finish_reason for result in results} == {"abort"}
        assert all(len(result.token_ids) == len(result.logprobs) < 400 for result in results)
        assert (await strategy.stats()).free_slots == 4

    with_strategy(lab.model(), body)


def test_a_cancelled_call_leaves_its_slot(lab: Any) -> None:
    async def body(strategy: HFInferStrategy) -> None:
        call = asyncio.create_task(strategy.generate(lab.request("a", [1], max_new_tokens=400)))
        await asyncio.sleep(0)
        await strategy.stats()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await strategy.stats()).running == 0
        assert len((await strategy.generate(lab.request("a", [1], max_new_tokens=3))).token_ids) == 3

    with_strategy(lab.model(), body)


def test_refusals_reach_the_caller_and_the_engine_goes_on(lab: Any) -> None:
    buckets, manifest = lab.weights(lab.model(seed=1), 1)

    async def body(strategy: HFInferStrategy) -> None:
        with pytest.raises(ValueError, match="empty"):
            await strategy.generate(lab.request("a", []))
        buckets[0].checksum += 1
        with pytest.raises(ValueError, match="corrupt"):
            await strategy.receive_bucket(1, buckets[0])
        with pytest.raises(ValueError, match="were requested"):
            await strategy.activate_weights(manifest, "interrupt")
        assert len((await strategy.generate(lab.request("a", [1], max_new_tokens=3))).token_ids) == 3

    with_strategy(lab.model(), body)


def test_sleep_and_wake(lab: Any) -> None:
    async def body(strategy: HFInferStrategy) -> None:
        running = asyncio.create_task(strategy.generate(lab.request("running", [1], max_new_tokens=100)))
        while (await strategy.stats()).running == 0:
            await asyncio.sleep(0)
        await strategy.sleep()
        assert len((await running).token_ids) == 100, "what runs would lose its memory"
        call = asyncio.create_task(strategy.generate(lab.request("a", [1], max_new_tokens=3)))
        await asyncio.sleep(0)
        assert (await strategy.stats()).queued == 1
        await strategy.wake()
        assert len((await call).token_ids) == 3

    with_strategy(lab.model(), body)


def test_what_ends_the_engine_thread_reaches_every_pending_and_later_call(lab: Any) -> None:
    model = lab.model()
    forward, left = model.model.layers[1].forward, [5]

    def fails_soon(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError("out of memory in the middle of a token step")
        return forward(*args, **kwargs)

    async def body(strategy: HFInferStrategy) -> None:
        model.model.layers[1].forward = fails_soon
        calls = [strategy.generate(lab.request(str(i), [1], max_new_tokens=400)) for i in range(9)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(failure, MemoryError) for failure in failures)
        for later in (
            strategy.generate(lab.request("later", [1])),
            strategy.abort(),
            strategy.stats(),
            strategy.receive_bucket(1, lab.weights(model, 1)[0][0]),
        ):
            with pytest.raises(MemoryError):
                await later

    with_strategy(model, body)


def test_closing_fails_pending_and_later_calls(lab: Any) -> None:
    async def body(strategy: HFInferStrategy) -> None:
        call = asyncio.create_task(strategy.generate(lab.request("a", [1], max_new_tokens=400)))
        await asyncio.sleep(0)
        await strategy.close()
        for pending in (call, strategy.generate(lab.request("b", [1])), strategy.stats()):
            with pytest.raises(EngineClosed):
                await pending

    with_strategy(lab.model(), body)
