"""A KV cache in blocks gives what rows give. On a CPU the kernel that attends over blocks is a stand-in with its arguments:
`lab.gathering`."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import torch
from tiny_models import tiny_mixture
from torch import Tensor

from roll.strategies.infer.hf import block_cache
from roll.strategies.infer.hf.block_cache import BlockCache

BLOCK = 16
CLOSE = 5e-5
"""Between log-probs of float32 products of other shapes, down to -9."""


@pytest.fixture(autouse=True)
def _kernel(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "varlen_attn", lab.gathering)


def in_blocks(lab: Any, model: Any = None, **options: Any) -> Any:
    engine = lab.engine(lab.model() if model is None else model, block=BLOCK, **options)
    assert isinstance(engine._model.cache, BlockCache)
    return engine


def groups(lab: Any, count: int, seed: int, **params: Any) -> list[Any]:
    """Of four, with prompts of up to 60 tokens, and some that begin alike."""
    draw = random.Random(seed)
    rules = tuple(draw.randrange(64) for _ in range(25))
    prompts = [
        rules[: draw.choice((0, 25))] + tuple(draw.randrange(64) for _ in range(draw.randint(1, 35))) for _ in range(count)
    ]
    return [
        lab.request(f"{i}.{j}", p, seed=10 * i + j, temperature=0.9, max_new_tokens=3 + (37 * i + 11 * j) % 70, **params)
        for i, p in enumerate(prompts)
        for j in range(4)
    ]


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, result in expected.items():
        assert found[name].token_ids == result.token_ids and found[name].finish_reason == result.finish_reason
        assert torch.tensor(found[name].logprobs).sub(torch.tensor(result.logprobs)).abs().max() < CLOSE


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_blocks_give_what_rows_give(lab: Any, architecture: str) -> None:
    asked = groups(lab, 8, seed=0)
    engine = in_blocks(lab, lab.model(architecture), slots=6)
    same(lab.run_all(engine, asked), lab.run_all(lab.engine(lab.model(architecture), slots=6), asked))
    blocks = engine._model.cache.blocks
    engine._own([])
    assert blocks.used == blocks.used_by(engine._kept.slots) > 0, "what ended is freed, but for what may be begun with"


def test_requests_wait_for_blocks_and_leave_for_others(lab: Any) -> None:
    """Of one prompt, with room for one and a half responses of full length: all end, with the tokens that they get alone."""
    asked = [lab.request(str(i), range(20), seed=i, max_new_tokens=100) for i in range(5)] + groups(lab, 4, seed=1)
    engine = in_blocks(lab, slots=8, max_length=140, cache_tokens=200)
    blocks, most = engine._model.cache.blocks, []
    found = lab.run_all(engine, asked, lambda _: most.append(blocks.used))
    same(found, lab.run_all(lab.engine(lab.model(), slots=8, max_length=140), asked))
    assert max(most) == blocks.most == 200 // BLOCK
    assert any(result.preempted for result in found.values()) and not all(result.preempted for result in found.values())


def test_memory_follows_the_tokens_that_there_are(lab: Any) -> None:
    """Sixteen responses to one prompt, most of them short."""
    lengths = [10] * 14 + [60, 200]
    asked = [lab.request(str(i), range(100), seed=i, max_new_tokens=length) for i, length in enumerate(lengths)]
    engine, rows = in_blocks(lab, slots=16, max_length=400), lab.engine(lab.model(), slots=16, max_length=400)
    blocks = engine._model.cache.blocks
    running: list[tuple[int, int]] = []
    lab.run_all(engine, asked, lambda _: running.append((len(engine._rows), blocks.used_by(range(len(engine._rows))))))
    lab.run_all(rows, asked)
    for count, used in running:
        # The shared blocks of the prompt, and of each row its own.
        assert used <= 6 + 16 * 2 + (12 if count <= 2 else 0) + 4
    assert engine._model.cache.nbytes * 4 < rows._model.cache.nbytes
    engine.sleep()
    assert engine._model.cache.nbytes == 0 and engine._model.cache.blocks.used == 0


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_new_weights_and_resumed_requests_in_blocks(lab: Any, mode: str) -> None:
    """While blocks are short, too; what is aborted goes on from its tokens."""
    buckets, manifest = lab.weights(lab.model(seed=1), 1)
    asked = groups(lab, 5, seed=2)

    def played(engine: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        def border(step: int) -> None:
            if step == 20:
                for bucket in buckets:
                    engine.shadow.receive(1, bucket)
                engine.activate(manifest, mode)
            if step == 50:
                engine.abort()

        first = lab.run_all(engine, asked, border)
        resumed = [
            lab.request(
                r.request_id,
                r.prompt_ids,
                first[r.request_id].token_ids,
                seed=r.sampling.seed,
                temperature=0.9,
                max_new_tokens=r.sampling.max_new_tokens,
            )
            for r in asked
        ]
        return first, lab.run_all(engine, resumed)

    plain = {0: lab.model(), 1: lab.model(seed=1)}
    for first, second in (played(in_blocks(lab, slots=6)), played(in_blocks(lab, slots=6, max_length=140, cache_tokens=250))):
        assert {span.version for result in first.values() for span in result.versions} == {0, 1}
        for request in asked:
            one, two = first[request.request_id], second[request.request_id]
            whole = [*one.token_ids, *two.token_ids]
            assert len(whole) == request.sampling.max_new_tokens
            offset = len(one.token_ids)
            spans = [*one.versions, *(span._replace(start=span.start + offset, stop=span.stop + offset) for span in two.versions)]
            told = torch.tensor([*one.logprobs, *two.logprobs])
            for span in spans if mode == "interrupt" else spans[:1]:
                true = lab.true_logprobs(plain[span.version], request.prompt_ids, whole, 0.9)
                assert (told - true)[span.start : span.stop].abs().max() < CLOSE


def test_a_deterministic_engine_in_blocks_is_bitwise_the_same_in_any_company(lab: Any) -> None:
    watched = [lab.request(f"w{i}", range(i, 40), seed=i, temperature=0.8, max_new_tokens=30) for i in range(3)]
    alone = lab.run_all(in_blocks(lab, slots=1, deterministic=True), watched)
    crowded = in_blocks(lab, slots=8, max_length=120, deterministic=True, cache_tokens=260)
    found = lab.run_all(crowded, [*groups(lab, 3, seed=3), *watched])
    for name, result in alone.items():
        assert found[name].token_ids == result.token_ids and found[name].logprobs == result.logprobs


def test_experts_of_tokens_in_blocks_are_those_of_rows(lab: Any) -> None:
    asked = groups(lab, 4, seed=4, with_routes=True)
    expected = lab.run_all(lab.engine(tiny_mixture(64), slots=6), asked)
    for options in ({}, {"max_length": 140, "cache_tokens": 300}):
        found = lab.run_all(in_blocks(lab, tiny_mixture(64), slots=6, **options), asked)
        same(found, expected)
        for name, result in expected.items():
            assert (found[name].extras.routes.experts == result.extras.routes.experts).all(-1).mean() > 0.999


@pytest.mark.parametrize("fault", ["refuses", "reads the wrong block"])
def test_a_kernel_that_fails_at_the_start_leaves_rows_and_is_said(
    lab: Any, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def faulty(*args: Any, **given: Any) -> Tensor:
        if fault == "refuses":
            raise RuntimeError("FlashAttention only supports Ampere GPUs or newer")
        return lab.gathering(*args, **given | {"block_table": torch.zeros_like(given["block_table"])})

    monkeypatch.setattr(block_cache, "varlen_attn", faulty)
    engine = lab.engine(lab.model(), slots=4, block=BLOCK, cache_tokens=600)
    assert not isinstance(engine._model.cache, BlockCache)
    (said,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "in rows of the longest" in said and ("Ampere" in said if fault == "refuses" else "differ" in said)
    assert engine.slots == 600 // 256, "rows have one length: fewer of them run at once"
    asked = groups(lab, 2, seed=5)
    same(lab.run_all(engine, asked), lab.run_all(lab.engine(lab.model(), slots=4), asked))


def test_the_kernel_itself_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own declaration, where no device is needed: shapes and arguments, not numbers."""
    monkeypatch.undo()
    pool, numbers = torch.empty(20, 256, 2, 64, device="meta"), torch.arange(7, dtype=torch.int32, device="meta")
    rows = block_cache.BlockRows(torch.empty(6, 3, dtype=torch.int32, device="meta"), numbers[1:], numbers)
    with torch.inference_mode():
        out = block_cache.block_attention(torch.empty(6, 14, 1, 64, device="meta"), pool, pool, rows, None)
    assert out.shape == (6, 1, 14, 64) and (rows.borders * 768).dtype == torch.int32
