"""Reward normalisation, advantage estimators, whitening: golden values and degenerate groups."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.algorithms.advantages import advantage_estimator, clip, sequence_advantages, whiten
from roll.algorithms.reward_normalization import group_moments, normalize_rewards

# Group 7: rewards 1, 0, 0, 1 (interleaved); group 3: 2, 4; group 5: a single 9.
REWARDS = torch.tensor([1.0, 2.0, 0.0, 0.0, 4.0, 1.0, 9.0], dtype=torch.float64)
GROUPS = torch.tensor([7, 3, 7, 7, 3, 7, 5])
DIV7, DIV3 = math.sqrt(1 / 3) + 1e-6, math.sqrt(2) + 1e-6  # unbiased deviations


@pytest.mark.parametrize(
    ("estimator", "right"),
    [
        ("reinforce", [1, 2, 0, 0, 4, 1, 9]),
        ("dr_grpo", [0.5, -1, -0.5, -0.5, 1, 0.5, 0]),
        ("rloo", [1 - 1 / 3, 2 - 4, -2 / 3, -2 / 3, 4 - 2, 1 - 1 / 3, 0]),
        ("grpo", [0.5 / DIV7, -1 / DIV3, -0.5 / DIV7, -0.5 / DIV7, 1 / DIV3, 0.5 / DIV7, 0]),
    ],
)
def test_golden_values(estimator, right):
    result = sequence_advantages(REWARDS, GROUPS, estimator)
    torch.testing.assert_close(result, torch.tensor(right, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(estimator, reward, dtype):
    """Summed naively, the mean of equal values is not always that value: divided by a std of about 0 that would be noise."""
    result = sequence_advantages(torch.full((7,), reward, dtype=dtype), torch.zeros(7, dtype=torch.int64), estimator)
    assert (result == 0).all()


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo"])
def test_groups_of_one_have_advantage_zero(estimator):
    assert (sequence_advantages(torch.tensor([1.0, 0.0, 3.0]), torch.arange(3), estimator) == 0).all()


@settings(max_examples=60, deadline=None)
@given(
    rewards=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    seed=st.integers(0, 2**20),
    estimator=st.sampled_from(advantage_estimator.names),
)
def test_order_and_numbering_of_groups_do_not_matter(rewards, seed, estimator):
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor(rewards, dtype=torch.float64)
    groups = torch.randint(0, 4, values.shape, generator=generator)
    order = torch.randperm(len(rewards), generator=generator)
    result = sequence_advantages(values, groups, estimator)
    shuffled = sequence_advantages(values[order], groups[order] * 10 - 5, estimator)
    assert result.shape == values.shape
    assert torch.isfinite(result).all()
    torch.testing.assert_close(shuffled, result[order], rtol=1e-6, atol=1e-6)


def test_unknown_estimator_names_the_nearest():
    with pytest.raises(ValueError, match="unknown adv_estimator 'gpro'; did you mean 'grpo'"):
        sequence_advantages(REWARDS, GROUPS, "gpro")


def test_moments_against_torch_per_group():
    mean, std, size = group_moments(REWARDS, GROUPS)
    for group in (3, 7):
        chosen = REWARDS[group == GROUPS]
        assert torch.allclose(mean[group == GROUPS], chosen.mean())
        assert torch.allclose(std[group == GROUPS], chosen.std())
        assert (size[group == GROUPS] == len(chosen)).all()
    assert std[-1] == 0


SCOPES = ("batch", "group", None)


@pytest.mark.parametrize(("mean", "std"), list(itertools.product(SCOPES, SCOPES)))
def test_every_combination_of_scopes(mean, std):
    """32 rewards in groups of 8: always [32], and what the formula says."""
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn(32, dtype=torch.float64, generator=generator)
    groups = torch.arange(4).repeat_interleave(8)
    by_group = rewards.reshape(4, 8)
    means = {
        "batch": rewards.mean().expand(32),
        "group": by_group.mean(1).repeat_interleave(8),
        None: torch.zeros(32, dtype=torch.float64),
    }
    stds = {"batch": rewards.std() + 1e-6, "group": by_group.std(1).repeat_interleave(8) + 1e-6, None: torch.ones(())}
    torch.testing.assert_close(normalize_rewards(rewards, groups, mean, std), (rewards - means[mean]) / stds[std])


@pytest.mark.parametrize(("mean", "std"), list(itertools.product(SCOPES, SCOPES)))
@settings(max_examples=25, deadline=None)
@given(rewards=st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.1, 5e4]), min_size=0, max_size=9), seed=st.integers(0, 999))
def test_always_finite_and_of_the_shape_of_the_rewards(mean, std, rewards, seed):
    groups = torch.randint(0, 4, (len(rewards),), generator=torch.Generator().manual_seed(seed))
    result = normalize_rewards(torch.tensor(rewards), groups, mean, std, clip=3.0)
    assert result.shape == (len(rewards),)
    assert result.dtype == torch.float32
    assert torch.isfinite(result).all()
    assert (result.abs() <= 3).all()


def test_groups_of_one_normalised_by_group_are_zero():
    assert (normalize_rewards(torch.tensor([1.0, 0.0, 5.0]), torch.arange(3), "group", "group") == 0).all()


def test_a_group_without_spread_is_zero_even_if_the_batch_mean_is_subtracted():
    rewards, groups = torch.tensor([1.0, 1.0, 0.0, 4.0]), torch.tensor([0, 0, 1, 1])
    result = normalize_rewards(rewards, groups, "batch", "group")  # batch mean 1.5, std of the second group 2√2
    torch.testing.assert_close(result, torch.tensor([0, 0, -1.5 / math.sqrt(8), 2.5 / math.sqrt(8)]), rtol=1e-5, atol=0)


def test_mismatched_groups_are_refused():
    with pytest.raises(ValueError, match="group_ids"):
        normalize_rewards(torch.ones(4), torch.zeros(3, dtype=torch.int64), "batch", None)


def test_whiten_sees_only_the_mask():
    values = torch.tensor([1.0, float("nan"), 3.0, float("inf"), 5.0], dtype=torch.float64)
    mask = torch.tensor([True, False, True, False, True])
    right = torch.tensor([-2, 0, 0, 0, 2], dtype=torch.float64) / (2 + 1e-6)
    torch.testing.assert_close(whiten(values, mask), right)


@pytest.mark.parametrize("chosen", [0, 1, 3])
def test_whiten_without_spread_is_zero(chosen):
    values = torch.full((3,), 0.1)
    assert (whiten(values, torch.arange(3) < chosen) == 0).all()


def test_clip():
    values = torch.tensor([-3.0, 0.5, 3.0])
    assert clip(values, 2.0).tolist() == [-2.0, 0.5, 2.0]
    assert clip(values, None) is values
