"""Sampling against plain definitions: distributions, truncation, log-probs, independence of rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.workers.infer_interface import SamplingParams
from roll.strategies.infer.hf.philox import uniforms
from roll.strategies.infer.hf.sampling import BatchSampling, inverse_cdf, running_sum, sample, truncate

CPU = torch.device("cpu")


def draw(logits: torch.Tensor, params: list[SamplingParams], numbers: list[float]) -> tuple[list[int], list[float]]:
    batch = BatchSampling.of(params, logits.shape[1], CPU)
    tokens, logprobs, _ = sample(logits, batch, torch.tensor(numbers, dtype=torch.float64))
    return tokens.tolist(), logprobs.tolist()


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 1e-6, 0.25, 1.0]), min_size=1, max_size=12).filter(lambda w: sum(w) > 0),
    uniform=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=200, deadline=None)
def test_inverse_cdf_brackets_the_number_and_never_picks_an_impossible_token(weights: list[float], uniform: float) -> None:
    tensor = torch.tensor([weights], dtype=torch.float64)
    index = int(inverse_cdf(tensor, torch.tensor([uniform], dtype=torch.float64)))
    running = tensor.cumsum(-1)[0].tolist()
    target = uniform * running[-1]
    assert weights[index] > 0
    assert running[index] > min(target, math.nextafter(running[-1], 0))
    assert index == 0 or running[index - 1] <= target


def test_sampled_frequencies_are_the_softmax() -> None:
    n, temperature = 20_000, 0.7
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, -30.0])
    numbers = uniforms([0] * n, range(n)).tolist()
    tokens, _ = draw(logits.expand(n, -1), [SamplingParams(temperature=temperature)] * n, numbers)
    expected = (logits / temperature).softmax(-1)
    observed = torch.bincount(torch.tensor(tokens), minlength=5) / n
    tolerance = 4 * (expected * (1 - expected) / n).sqrt() + 1e-4  # four standard errors
    assert (observed - expected).abs().le(tolerance).all()


@given(
    seed=st.integers(0, 10_000),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([0.05, 0.3, 0.5, 0.9, 0.999, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_truncation_keeps_what_a_plain_loop_keeps(seed: int, top_k: int, top_p: float) -> None:
    probs = torch.randn(8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(2).softmax(-1)
    order = sorted(range(8), key=lambda i: -probs[i].item())[: top_k or 8]
    total = sum(probs[i].item() for i in order)
    kept, mass = [], 0.0
    for i in order:
        if kept and mass >= top_p * total - 1e-12:
            break
        kept.append(i)
        mass += probs[i].item()
    result = truncate(probs[None], torch.tensor([[top_k or 8]]), torch.tensor([[top_p]], dtype=torch.float64))[0]
    assert result.nonzero()[:, 0].tolist() == sorted(kept)
    assert torch.equal(result[kept], probs[kept])


def test_greedy_takes_the_most_likely_token_with_the_log_prob_of_temperature_one() -> None:
    logits = torch.randn(6, 11, generator=torch.Generator().manual_seed(1))
    tokens, logprobs = draw(logits, [SamplingParams(temperature=0)] * 6, [0.99] * 6)
    assert tokens == logits.argmax(-1).tolist()
    assert logprobs == pytest.approx(logits.log_softmax(-1).max(-1).values.tolist())


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.6, top_p=0.5), SamplingParams(temperature=0.6, top_k=2)])
def test_log_prob_is_that_of_the_untruncated_distribution(params: SamplingParams) -> None:
    logits = torch.randn(1, 11, generator=torch.Generator().manual_seed(2))
    (token,), (logprob,) = draw(logits, [params], [0.7])
    assert logprob == pytest.approx((logits / 0.6).log_softmax(-1)[0, token].item(), abs=1e-6)


@pytest.mark.parametrize("cut", [{"top_p": 0.5}, {"top_k": 3}, {"top_p": 0.8, "top_k": 4}])
def test_who_asks_for_the_kept_tokens_gets_them_and_log_probs_over_them(cut: dict[str, float]) -> None:
    params = [
        SamplingParams(temperature=0.6, with_kept=True, **cut),
        SamplingParams(temperature=0.6, **cut),
        SamplingParams(with_kept=True),
        SamplingParams(temperature=0, with_kept=True, **cut),
    ]
    logits = torch.randn(1, 11, generator=torch.Generator().manual_seed(2)).expand(4, -1)
    numbers = torch.full((4,), 0.4, dtype=torch.float64)
    tokens, logprobs, kept = sample(logits, BatchSampling.of(params, 11, CPU), numbers)
    assert kept.keys() == {0} and tokens[0] == tokens[1]
    scaled = logits[0] / 0.6
    top_k, top_p = torch.tensor([[cut.get("top_k", 11)]]), torch.tensor([[cut.get("top_p", 1.0)]], dtype=torch.float64)
    left = truncate(scaled.softmax(-1)[None], top_k, top_p)[0]
    assert kept[0].tolist() == left.nonzero()[:, 0].tolist()
    assert logprobs[0].item() == pytest.approx((left / left.sum()).log()[tokens[0]].item(), abs=1e-6)
    assert logprobs[1].item() == pytest.approx(scaled.log_softmax(-1)[tokens[1]].item(), abs=1e-6)


def test_a_row_does_not_depend_on_its_company() -> None:
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=0),
        SamplingParams(top_p=0.6),
        SamplingParams(temperature=1.3, top_k=3),
    ]
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(3)) * 3
    numbers = uniforms([4] * 5, range(5)).tolist()
    together = draw(logits, params, numbers)
    for i in range(5):
        alone = draw(logits[i : i + 1], params[i : i + 1], numbers[i : i + 1])
        assert (together[0][i], together[1][i]) == (alone[0][0], alone[1][0])


def test_the_sum_that_accelerators_repeat_is_the_sum() -> None:
    """Float sums differ there from call to call, and torch's deterministic mode refuses them."""
    weights = torch.randn(3, 152_000, generator=torch.Generator().manual_seed(0)).mul(3).softmax(-1)
    exact, whole = running_sum(weights, repeatable=False), running_sum(weights, repeatable=True)
    assert whole.dtype == torch.float64 and float((whole - exact).abs().max()) < 152_000 * 2**-48
    shuffled = torch.randperm(weights.shape[1], generator=torch.Generator().manual_seed(1))
    assert torch.equal(running_sum(weights[:, shuffled], repeatable=True)[:, -1], whole[:, -1]), "the order does not matter"
