"""Reward normalisation, advantage estimators, whitening: golden values and degenerate groups."""

import itertools
import json
import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.algorithms.reward_normalization import RunningMoments, group_moments, normalize_rewards
from roll.core.algorithms.sequence_advantages import advantage_estimator, clip, remax, sequence_advantages, whiten
from roll.core.algorithms.step_advantages import step_estimator
from roll.core.configs.estimators import ESTIMATORS
from roll.prepare.own_code import try_estimator

# Group 7: rewards 1, 0, 0, 1 (interleaved); group 3: 2, 4; group 5: a single 9.
REWARDS = torch.tensor([1.0, 2.0, 0.0, 0.0, 4.0, 1.0, 9.0], dtype=torch.float64)
GROUPS = torch.tensor([7, 3, 7, 7, 3, 7, 5])
LENGTHS = torch.tensor([1, 2, 3, 1, 6, 5, 4])
GROUP_RELATIVE = sorted(set(advantage_estimator.names) - {"raft", "reinforce", "reinforce_plus_plus"})
DIV7, DIV3 = math.sqrt(1 / 3) + 1e-6, math.sqrt(2) + 1e-6  # unbiased deviations


@pytest.mark.parametrize(
    ("estimator", "right"),
    [
        ("reinforce", [1, 2, 0, 0, 4, 1, 9]),
        ("dr_grpo", [0.5, -1, -0.5, -0.5, 1, 0.5, 0]),
        ("rloo", [1 - 1 / 3, 2 - 4, -2 / 3, -2 / 3, 4 - 2, 1 - 1 / 3, 0]),
        ("grpo", [0.5 / DIV7, -1 / DIV3, -0.5 / DIV7, -0.5 / DIV7, 1 / DIV3, 0.5 / DIV7, 0]),
        ("reinforce_plus_plus", [1, 2, 0, 0, 4, 1, 9]),
        ("reinforce_plus_plus_baseline", [0.5, -1, -0.5, -0.5, 1, 0.5, 0]),
        # Length-weighted: group 7 (1·1 + 1·5)/(1 + 3 + 1 + 5) = 0.6; group 3 (2·2 + 4·6)/8 = 3.5.
        ("opo", [0.4, -1.5, -0.6, -0.6, 0.5, 0.4, 0]),
        # Six of the seven samples are in groups whose rewards differ: α = 7/6.
        ("gpg", [7 / 12, -7 / 6, -7 / 12, -7 / 12, 7 / 6, 7 / 12, 0]),
    ],
)
def test_golden_values(estimator, right):
    result = sequence_advantages(REWARDS, GROUPS, estimator, LENGTHS)
    torch.testing.assert_close(result, torch.tensor(right, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", GROUP_RELATIVE)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(estimator, reward, dtype):
    """Summed naively, the mean of equal values is not always that value: divided by a std of about 0 that would be noise."""
    result = sequence_advantages(torch.full((7,), reward, dtype=dtype), torch.zeros(7, dtype=torch.int64), estimator)
    assert (result == 0).all()


@pytest.mark.parametrize("estimator", GROUP_RELATIVE)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), shift=st.floats(-1e3, 1e3))
def test_a_reward_added_to_a_whole_group_changes_nothing(estimator, seed, shift):
    """It may be another one for each group: what all responses to a prompt earn says nothing about any of them."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 3, (12,), generator=generator).double()
    groups, lengths = torch.randint(0, 4, (12,), generator=generator), torch.randint(0, 9, (12,), generator=generator)
    plain = sequence_advantages(rewards, groups, estimator, lengths)
    shifted = sequence_advantages(rewards + shift * groups, groups, estimator, lengths)
    torch.testing.assert_close(shifted, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("estimator", advantage_estimator.names)
def test_samples_without_trained_tokens_keep_everything_finite(estimator):
    """All masked: the lengths are 0. opo is then the plain group mean."""
    result = sequence_advantages(REWARDS, GROUPS, estimator, torch.zeros(7, dtype=torch.int64))
    assert torch.isfinite(result).all()
    if estimator == "opo":
        torch.testing.assert_close(result, sequence_advantages(REWARDS, GROUPS, "dr_grpo"))


def test_gpg_where_no_group_teaches_is_zero():
    assert (sequence_advantages(torch.ones(4), torch.tensor([0, 0, 1, 1]), "gpg") == 0).all()


def test_remax_subtracts_the_greedy_reward():
    assert remax(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 0.0])).tolist() == [0.0, -1.0, 1.0]


def half(rewards, group_ids, lengths):
    return rewards / 2


def wrong_shape(rewards, group_ids, lengths):
    return rewards[:1]


def fails(rewards, group_ids, lengths):
    raise KeyError("no such thing")


def test_a_function_of_the_user_is_found_by_its_path_and_tried_before_it_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_estimators", sys.modules[__name__])
    try_estimator("my_estimators.half")
    assert sequence_advantages(REWARDS, GROUPS, "my_estimators.half").tolist() == (REWARDS / 2).tolist()
    for name, message in [("wrong_shape", "one finite advantage a sample"), ("fails", "KeyError: 'no such thing'")]:
        with pytest.raises(ValueError, match=message):
            try_estimator(f"my_estimators.{name}")
    with pytest.raises(ValueError, match=r"cannot load adv_estimator 'my_estimators\.missing'"):
        try_estimator("my_estimators.missing")


def test_a_configuration_knows_the_registered_estimators_and_those_of_turns():
    elsewhere = {"gae", "remax", *step_estimator.names}
    assert set(ESTIMATORS) == set(advantage_estimator.names) | elsewhere


@pytest.mark.parametrize("estimator", GROUP_RELATIVE)
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
    with pytest.raises(ValueError, match="unknown adv_estimator 'gpro'; did you mean grpo"):
        sequence_advantages(REWARDS, GROUPS, "gpro")


def test_moments_against_torch_per_group():
    mean, std, size = group_moments(REWARDS, GROUPS)
    for group in (3, 7):
        chosen = REWARDS[group == GROUPS]
        assert torch.allclose(mean[group == GROUPS], chosen.mean())
        assert torch.allclose(std[group == GROUPS], chosen.std())
        assert (size[group == GROUPS] == len(chosen)).all()
    assert std[-1] == 0


SCOPES = ("batch", "group", "running", None)
EARLIER = torch.tensor([3.0, 5.0, 10.0], dtype=torch.float64)


def running_over(*batches):
    moments = RunningMoments()
    for batch in batches:
        moments.update(batch)
    return moments


@pytest.mark.parametrize(("mean", "std"), list(itertools.product(SCOPES, SCOPES)))
def test_every_combination_of_scopes(mean, std):
    """32 rewards in groups of 8: always [32], and what the formula says. "running" has seen three rewards before."""
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn(32, dtype=torch.float64, generator=generator)
    groups = torch.arange(4).repeat_interleave(8)
    by_group = rewards.reshape(4, 8)
    means = {
        "batch": rewards.mean().expand(32),
        "group": by_group.mean(1).repeat_interleave(8),
        "running": torch.cat([EARLIER, rewards]).mean().expand(32),
        None: torch.zeros(32, dtype=torch.float64),
    }
    stds = {
        "batch": rewards.std() + 1e-6,
        "group": by_group.std(1).repeat_interleave(8) + 1e-6,
        "running": torch.cat([EARLIER, rewards]).std() + 1e-6,
        None: torch.ones(()),
    }
    running = running_over(EARLIER, rewards)
    torch.testing.assert_close(
        normalize_rewards(rewards, groups, mean, std, running=running), (rewards - means[mean]) / stds[std]
    )


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-100, 100), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    offset=st.sampled_from([0.0, 1e6]),
)
def test_running_moments_are_those_of_all_rewards_however_they_came(values, cuts, offset):
    """Also with a mean far larger than the deviation, and through a checkpoint after every batch."""
    everything = torch.tensor(values, dtype=torch.float64) + offset
    moments = RunningMoments()
    for batch in torch.tensor_split(everything, sorted(cuts)):
        moments.update(batch)
        moments = RunningMoments(**json.loads(json.dumps(moments.state())))
    assert moments.count == len(values)
    assert moments.mean == pytest.approx(everything.mean().item(), abs=1e-9 * (1 + offset))
    assert moments.std == pytest.approx(everything.std().item() if len(values) > 1 else 0, abs=1e-6, rel=1e-6)


def test_running_moments_of_equal_rewards_have_no_spread_at_all():
    """0.1 + 0.1 + ... is not exactly a multiple of 0.1; the deviation must be 0 all the same, and so the result."""
    batches = [torch.full((size,), 0.1) for size in (3, 1, 7)]
    moments = running_over(*batches)
    assert moments.std == 0
    assert (normalize_rewards(batches[2], torch.zeros(7).long(), "running", "running", running=moments) == 0).all()


def test_the_running_scope_needs_its_moments():
    with pytest.raises(ValueError, match="running moments"):
        normalize_rewards(REWARDS, GROUPS, "batch", "running")


@pytest.mark.parametrize(("mean", "std"), list(itertools.product(SCOPES, SCOPES)))
@settings(max_examples=25, deadline=None)
@given(rewards=st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.1, 5e4]), min_size=0, max_size=9), seed=st.integers(0, 999))
def test_always_finite_and_of_the_shape_of_the_rewards(mean, std, rewards, seed):
    groups = torch.randint(0, 4, (len(rewards),), generator=torch.Generator().manual_seed(seed))
    values = torch.tensor(rewards)
    result = normalize_rewards(values, groups, mean, std, running=running_over(values))
    assert result.shape == (len(rewards),)
    assert result.dtype == torch.float32
    assert torch.isfinite(result).all()


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


def test_scaling_without_a_shift_keeps_zero_and_signs():
    values = torch.tensor([0.0, 0.0, 6.0, 99.0], dtype=torch.float64)
    mask = torch.tensor([True, True, True, False])
    right = torch.tensor([0, 0, 6 / (math.sqrt(12) + 1e-6), 0], dtype=torch.float64)  # mean 2, (4 + 4 + 16)/2 = 12
    torch.testing.assert_close(whiten(values, mask, shift=False), right)
    equal = torch.full((3,), 0.5)
    assert whiten(equal, torch.tensor([True, True, False]), shift=False).tolist() == [0.5, 0.5, 0.0]


def test_clip():
    values = torch.tensor([-3.0, 0.5, 3.0])
    assert clip(values, 2.0).tolist() == [-2.0, 0.5, 2.0]
    assert clip(values, None) is values
