"""Drafted tokens of a real vLLM engine have the policy's distribution and its log-probs. A million tokens:
benchmarks/drafted.py, whose statistics these are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from roll.core.workers.infer_interface import SamplingParams
from roll.strategies.infer.vllm.arguments import check_argument

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("vllm"), pytest.mark.usefixtures("forked_engines")]

RESPONSE, EXACT = 48, 1e-4
SURE, DEVIATIONS = 1e-6, 5
"""An engine draws other numbers each time: so seldom, or so far off, is no chance. As vLLM comes, it is 400 deviations off."""


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[4] / "benchmarks"))
        import drafted

        yield drafted


def test_tokens_are_those_of_the_policy_before_and_after_an_update(script: ModuleType, lab: Any, tmp_path: Any) -> None:
    from roll.core.workers.infer_engines import make_infer_strategy

    models = [script.make_model(0), script.make_model(1)]
    models[0].save_pretrained(tmp_path)
    options = {"model_path": str(tmp_path), "max_running_requests": 64, "max_length": script.PROMPT + RESPONSE, "threads": 1}

    async def respond() -> list[tuple[Any, SamplingParams, list[Any], list[Any]]]:
        engine: Any = make_infer_strategy("vllm", {**options, "engine_args": {"speculative_config": script.DRAFTS}})
        found = []
        for version, model in enumerate(models):
            if version:
                buckets, manifest = lab.weights(model, version)
                for bucket in buckets:
                    await engine.receive_bucket(version, bucket)
                await engine.activate_weights(manifest, "interrupt")
            for kind in script.SAMPLINGS.values():
                sampling = replace(kind, max_new_tokens=RESPONSE)
                requests = script.requests_of(version, 64, sampling)
                found.append((model, sampling, requests, await asyncio.gather(*map(engine.generate, requests))))
        await engine.close()
        return found

    for model, sampling, requests, results in asyncio.run(respond()):
        fit = script.Fit()
        assert script.compared(model, requests, results, sampling, fit) <= EXACT
        assert fit.tokens == 64 * RESPONSE and fit.drafted > 0.7 * fit.tokens
        assert fit.p_value > SURE and abs(fit.deviations) < DEVIATIONS


def test_a_rejected_draft_that_is_drawn_from_the_whole_distribution_is_found(script: ModuleType) -> None:
    chance, draft = torch.Generator().manual_seed(0), 3
    probs = torch.rand(3_000, script.VOCABULARY, generator=chance, dtype=torch.float64).softmax(-1)

    def fit_of(redrawn: torch.Tensor) -> Any:
        kept = torch.rand(len(probs), generator=chance) < probs[:, draft]
        fit = script.Fit()
        fit.add(probs, torch.where(kept, draft, redrawn.multinomial(1, generator=chance)[:, 0]), [draft] * len(probs))
        return fit

    exact = fit_of(probs.index_fill(1, torch.tensor([draft]), 0))
    assert exact.p_value > SURE and abs(exact.deviations) < DEVIATIONS
    assert fit_of(probs).deviations > 8


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("ngram", "is not a mapping"),
        ({"method": "eagle", "model": "draft", "num_speculative_tokens": 2}, "weights of their own"),
        ({"model": "draft", "num_speculative_tokens": 2}, "only ngram"),
        ({"method": "ngram"}, "no num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "from 1 on"),
        ({"method": "ngram", "num_speculative_tokens": 4, "rejection_sample_method": "synthetic"}, "rejection_sample_method"),
    ],
)
def test_other_drafts_are_refused(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_argument(None, "speculative_config", value)
    check_argument(None, "speculative_config", {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3})
