"""Aggregation: golden values, independence of how the batch is cut, masked entries."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.algorithms.aggregation import Rollouts, aggregate
from roll.core.configs.losses import LossAggregation

MODES = get_args(LossAggregation)

LOSS = torch.tensor([[1.0, 2.0, 3.0, 0.0], [10.0, 99.0, 99.0, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True, False], [True, False, False, False]])
EACH_ITS_OWN = Rollouts(MASK.sum(dim=1), 2.0)


def of_their_own(rows, width):
    return Rollouts(torch.full((rows,), float(width)), float(rows))


@pytest.mark.parametrize(
    ("mode", "right"),
    [
        ("token-mean", 16 / 4),
        ("seq-mean-token-sum", (6 + 10) / 2),
        ("seq-mean-token-mean", (2 + 10) / 2),
        ("seq-mean-token-sum-norm", 16 / (2 * 8)),
        ("rollout-mean", (2 + 10) / 2),
    ],
)
def test_golden_values(mode, right):
    found = aggregate(LOSS, MASK, mode, totals_tokens=4, totals_sequences=2, norm_length=8, rollouts=EACH_ITS_OWN)
    assert found.item() == right


def test_an_episode_of_many_sequences_weighs_as_much_as_one_of_few():
    """Episode one: sequences of 3 and 1 tokens with mean (6 + 10) / 4 = 4; episode two: a sequence of 2 tokens with mean 7."""
    loss = torch.cat([LOSS, torch.tensor([[6.0, 8.0, 99.0, 99.0]], dtype=torch.float64)])
    mask = torch.cat([MASK, torch.tensor([[True, True, False, False]])])
    of_episodes = Rollouts(torch.tensor([4, 4, 2]), 2.0)
    assert aggregate(loss, mask, "rollout-mean", 6, 3, rollouts=of_episodes).item() == (4 + 7) / 2
    # An optimiser batch with the first sequence alone, 3 of the episode's 4 tokens, is the mean over these.
    assert aggregate(loss[:1], mask[:1], "rollout-mean", 3, 1, rollouts=Rollouts(torch.tensor([4]), 3 / 4)).item() == 2


def test_rollouts_must_be_known():
    with pytest.raises(ValueError, match="needs the rollouts"):
        aggregate(LOSS, MASK, "rollout-mean", 4, 2)


@pytest.mark.parametrize(
    ("mode", "right"), [*((mode, 1.0) for mode in MODES if mode != "seq-mean-token-sum-norm"), ("seq-mean-token-sum-norm", 0.5)]
)
def test_masked_tokens_stay_out_of_the_numerator(mode, right):
    """(1 + 1) / 2 tokens or sequences; with the sum over the tokens divided by a length of 2, half of it."""
    loss = torch.tensor([[1.0, 100.0], [1.0, -50.0]])
    mask = torch.tensor([[True, False], [True, False]])
    assert aggregate(loss, mask, mode, 2, 2, 2, of_their_own(2, 1)).item() == right


@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize(
    ("mode", "right"),
    [
        ("token-mean", 1.0),
        ("seq-mean-token-sum", 10.0),
        ("seq-mean-token-mean", 1.0),
        ("seq-mean-token-sum-norm", 1.0),
        ("rollout-mean", 1.0),
    ],
)
def test_ones_have_the_same_value_in_a_batch_of_any_size(mode, right, rows):
    """A mean of ones is 1, a sum over 10 tokens 10, divided by a length of 10 again 1."""
    ones = torch.ones(rows, 10)
    assert aggregate(ones, ones.bool(), mode, 10 * rows, rows, 10, of_their_own(rows, 10)).item() == pytest.approx(right)


@pytest.mark.parametrize("mode", MODES)
def test_value_does_not_grow_with_the_batch(mode):
    """A batch of equal rows has the value of one row, for every mode."""
    row = torch.ones(1, 10)
    one = aggregate(row, row.bool(), mode, 10, 1, 10, of_their_own(1, 10))
    four = aggregate(row.repeat(4, 1), row.repeat(4, 1).bool(), mode, 40, 4, 10, of_their_own(4, 10))
    torch.testing.assert_close(one, four)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), rows=st.integers(1, 7), width=st.integers(1, 6))
def test_any_cut_into_micro_batches_gives_the_value_and_gradient_of_one_batch(mode, data, rows, width):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    loss = torch.randn(rows, width, dtype=torch.float64, generator=generator).requires_grad_()
    mask = torch.rand(rows, width, generator=generator) < 0.6
    totals = int(mask.sum()), int(mask.any(dim=1).sum()), 5
    episode = torch.randint(3, (rows,), generator=generator)
    tokens = torch.tensor([float(mask[episode == of].sum()) for of in episode])
    total = float(((mask.sum(dim=1) > 0) * mask.sum(dim=1) / tokens.double().clamp(min=1)).sum())
    whole = aggregate(loss, mask, mode, *totals, Rollouts(tokens, total))
    (right,) = torch.autograd.grad(whole, loss)

    owner = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    parts = [aggregate(loss[owner == i], mask[owner == i], mode, *totals, Rollouts(tokens[owner == i], total)) for i in range(4)]
    (gradient,) = torch.autograd.grad(sum(parts), loss)
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), float("-inf")])
def test_masked_junk_adds_neither_value_nor_gradient(mode, junk):
    loss = LOSS.masked_fill(~MASK, junk).requires_grad_()
    value = aggregate(loss, MASK, mode, 4, 2, 8, EACH_ITS_OWN)
    value.backward()
    assert value.item() == aggregate(LOSS, MASK, mode, 4, 2, 8, EACH_ITS_OWN).item()
    assert torch.isfinite(loss.grad).all()
    assert (loss.grad[~MASK] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_an_all_masked_micro_batch_is_zero_and_differentiable(mode):
    loss = LOSS.clone().requires_grad_()
    value = aggregate(loss, torch.zeros_like(MASK), mode, 0, 0, 8, Rollouts(torch.zeros(2), 0.0))
    value.backward()
    assert value.item() == 0
    assert (loss.grad == 0).all()


def test_unknown_mode_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean token-mean"):
        aggregate(LOSS, MASK, "token_mean", 4, 2)


@pytest.mark.parametrize("norm_length", [None, 0, -1])
def test_sum_norm_needs_a_length(norm_length):
    with pytest.raises(ValueError, match="norm_length"):
        aggregate(LOSS, MASK, "seq-mean-token-sum-norm", 4, 2, norm_length)
