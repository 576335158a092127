"""Returns and GAE along tokens: golden values with observations between the actions, and what may never matter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.algorithms.returns import discounted_returns, gae, on_last_token

DOUBLE = torch.float64
# One trajectory: two tokens, three observed ones, one token. The reward stands on the last.
MASK = torch.tensor([[1, 1, 0, 0, 0, 1]]).bool()
REWARDS = torch.tensor([[0, 0, 0, 0, 0, 1]], dtype=DOUBLE)


def close(found, right):
    torch.testing.assert_close(found, torch.tensor(right, dtype=DOUBLE), rtol=0, atol=1e-12)


def test_observations_are_not_discounted_through():
    """γ = 0.9 over actions: the first token is two tokens (one turn) before the last, not five positions."""
    close(discounted_returns(REWARDS, MASK, 0.9, "token"), [[0.81, 0.9, 0, 0, 0, 1]])
    close(discounted_returns(REWARDS, MASK, 0.9, "turn"), [[0.9, 0.9, 0, 0, 0, 1]])


def test_without_observations_every_token_is_an_action_and_the_response_one_turn():
    mask = torch.ones(1, 6).bool()
    close(discounted_returns(REWARDS, mask, 0.9, "token"), [[0.9**5, 0.9**4, 0.9**3, 0.9**2, 0.9, 1]])
    close(discounted_returns(REWARDS, mask, 0.9, "turn"), [[1, 1, 1, 1, 1, 1]])


def test_rewards_of_several_turns_add_up():
    """Turns {0, 1}, {3}, {5}; rewards 1, 2, 4 at their ends: 1 + 0.5·(2 + 0.5·4) = 3, 2 + 0.5·4 = 4, 4."""
    mask = torch.tensor([[1, 1, 0, 1, 0, 1]]).bool()
    rewards = torch.tensor([[0, 1, 0, 2, 0, 4]], dtype=DOUBLE)
    close(discounted_returns(rewards, mask, 0.5, "turn"), [[3, 3, 0, 4, 0, 4]])
    close(discounted_returns(rewards, mask, 0.5, "token"), [[1.5, 3, 0, 4, 0, 4]])
    close(discounted_returns(rewards, mask, 1.0), [[7, 7, 0, 6, 0, 4]])


def test_the_reward_stands_on_the_last_token_of_the_mask():
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]).bool()
    close(on_last_token(torch.tensor([2.0, 3.0, 4.0], dtype=DOUBLE), mask), [[0, 0, 2, 0], [0, 0, 0, 3], [0, 0, 0, 0]])


def test_gae_does_not_see_the_value_of_a_masked_token():
    """δ₁ = 1 + 0 − 0 = 1, A₁ = 1; δ₀ = 0 + 0 − 0, A₀ = 0.95·1. A masked value of 100 behind the end is not the future."""
    rewards = torch.tensor([[0, 1, 0]], dtype=DOUBLE)
    values = torch.tensor([[0, 0, 100]], dtype=DOUBLE)
    mask = torch.tensor([[True, True, False]])
    advantages, returns = gae(rewards, values, mask, gamma=1.0, lam=0.95)
    close(advantages, [[0.95, 1.0, 0]])
    close(returns, [[0.95, 1.0, 0]])


def test_gae_by_hand_across_an_observation():
    """Tokens 0 and 2, V = 0.5, 0.25, r₂ = 1, γ = 0.5, λ = 0.5: δ₂ = 1 − 0.25 = 0.75, δ₀ = 0.5·0.25 − 0.5 = −0.375,
    A₀ = −0.375 + 0.25·0.75 = −0.1875."""
    rewards = torch.tensor([[0, 9, 1]], dtype=DOUBLE)
    values = torch.tensor([[0.5, 9, 0.25]], dtype=DOUBLE)
    advantages, returns = gae(rewards, values, torch.tensor([[True, False, True]]), gamma=0.5, lam=0.5)
    close(advantages, [[-0.1875, 0, 0.75]])
    close(returns, [[0.3125, 0, 1.0]])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    junk=st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e30]),
)
def test_masked_entries_never_matter_and_taking_them_out_changes_nothing(seed, gamma, lam, junk):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(1, 9, generator=generator) < 0.6
    rewards, values = torch.randn(2, 1, 9, dtype=DOUBLE, generator=generator)
    found = gae(rewards.masked_fill(~mask, junk), values.masked_fill(~mask, junk), mask, gamma, lam)
    squeezed = gae(rewards[mask][None], values[mask][None], torch.ones(1, int(mask.sum())).bool(), gamma, lam)
    for one, other in zip(found, squeezed, strict=True):
        torch.testing.assert_close(one[mask], other[0], rtol=1e-12, atol=1e-12)
        assert (one[~mask] == 0).all()
    by_token = discounted_returns(rewards.masked_fill(~mask, junk), mask, gamma)
    torch.testing.assert_close(by_token[mask], discounted_returns(rewards[mask][None], mask[mask][None], gamma)[0])
    # λ = 1 without values is the plain return.
    torch.testing.assert_close(gae(rewards, torch.zeros_like(values), mask, gamma, 1.0)[0], by_token)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (3, 4)])
def test_nothing_masked_in_is_zero_of_the_same_shape(shape):
    nothing = torch.zeros(shape).bool()
    rewards = torch.full(shape, float("nan"), dtype=DOUBLE)
    assert (discounted_returns(rewards, nothing, 0.9, "turn") == torch.zeros(shape)).all()
    assert all((part == torch.zeros(shape)).all() for part in gae(rewards, rewards, nothing, 0.9, 0.9))
