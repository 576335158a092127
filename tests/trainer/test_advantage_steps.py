"""From scores to token advantages, step after step: KL in the reward, discount, whitening, and what a checkpoint carries."""

import json
import math

import pytest
import torch

from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.core.groups.filters import equal_rewards, std_filter
from roll.core.trainer.advantages import RLVRAdvantages
from roll.core.trainer.batch import token_batch


def group(number, rewards, lengths, domain="a", finish="stop"):
    """Prompts of two tokens; the behaviour log-prob of every response token is -1."""
    prompt = Prompt(f"{domain}/{number}", [1, 1], "", domain, domain, "")
    samples = [
        Sample(prompt, i, [5] * n, [-1.0] * n, [VersionSpan(0, n, 0)], finish, "", reward)
        for i, (reward, n) in enumerate(zip(rewards, lengths, strict=True))
    ]
    return SampleGroup(number, 0, prompt, samples)


def step(advantages, groups, config, **fields):
    """The advantages of each sample's response, and the metrics. `fields`: further per-token values, [N] or one for all."""
    batch = token_batch(groups, 1.0, RLVRAdvantages(config).trains)
    fields = {name: torch.full((batch.num_tokens,), v) if isinstance(v, float) else v for name, v in fields.items()}
    batch, metrics = advantages(batch.with_(**fields), groups)
    assert (batch.advantages[~batch.loss_mask] == 0).all()
    assert torch.isfinite(batch.advantages).all()
    return [part[2:].tolist() for part in batch.advantages.split(batch.lengths.tolist())], metrics


def test_the_kl_penalty_reaches_a_token_and_all_before_it():
    """k1 is -1 - (-1.5) = 0.5 a token, the weight 0.2: a token loses 0.1 for itself and for each one after it."""
    config = RLVRConfig(adv_estimator="reinforce", add_token_level_kl=True, init_kl_coef=0.2)
    groups = [group(0, [1.0, 0.0], [3, 1])]
    (first, second), metrics = step(RLVRAdvantages(config), groups, config, reference_logprobs=-1.5)
    assert first == pytest.approx([0.7, 0.8, 0.9])
    assert second == pytest.approx([-0.1])
    assert metrics["critic/kl"] == pytest.approx(0.5)
    assert metrics["critic/kl_coef"] == 0.2


def test_the_divergence_is_that_of_the_policy_the_loss_starts_from():
    """With recomputed log-probs of -1.2: 0.3 a token."""
    config = RLVRConfig(adv_estimator="reinforce", add_token_level_kl=True)
    _, metrics = step(RLVRAdvantages(config), [group(0, [1.0], [3])], config, reference_logprobs=-1.5, proximal_logprobs=-1.2)
    assert metrics["critic/kl"] == pytest.approx(0.3)


@pytest.mark.parametrize("junk", [float("nan"), -float("inf")])
def test_a_token_without_a_log_prob_has_no_penalty(junk):
    config = RLVRConfig(adv_estimator="reinforce", add_token_level_kl=True, init_kl_coef=0.2)
    reference = torch.tensor([junk, junk, -1.5, junk, -1.5])
    (only,), metrics = step(RLVRAdvantages(config), [group(0, [1.0], [3])], config, reference_logprobs=reference)
    assert only == pytest.approx([0.8, 0.9, 0.9])
    assert metrics["critic/kl"] == pytest.approx(1 / 3)


def test_hopeless_tokens_are_held_by_the_reward_clip():
    """k3 of a token that the reference finds e^20 times likelier is 4.9e8."""
    config = RLVRConfig(adv_estimator="reinforce", add_token_level_kl=True, kl_penalty="k3", reward_clip=5.0)
    (only,), _ = step(RLVRAdvantages(config), [group(0, [1.0], [2])], config, reference_logprobs=19.0)
    assert only == pytest.approx([1 - 10, 1 - 5])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo", [-1.024695, -0.439155, 0.146385, 1.317465]),  # mean 55, deviation 34.15650
        ("rloo", [-10, -10, 6.666667, 10]),
        ("dr_grpo", [-10, -10, 5, 10]),
    ],
)
def test_rewards_are_clipped_after_the_estimator_has_compared_them(estimator, expected):
    """Scores of 20, 40, 60 and 100: clipped before they are compared, all would be 10 and teach nothing. ROLL, too, clips
    (R − mean) / (std + 1e-6) (utils/functionals.py:651-675)."""
    config = RLVRConfig(adv_estimator=estimator, reward_clip=10.0)
    rows, _ = step(RLVRAdvantages(config), [group(0, [20.0, 40.0, 60.0, 100.0], [1] * 4)], config)
    assert [value for (value,) in rows] == pytest.approx(expected, abs=1e-5)


def test_a_penalty_of_next_to_nothing_changes_a_clipped_reward_by_as_little():
    """One of eight is right: grpo makes 7/√8 = 2.47 of it, the clip 1."""
    groups = [group(0, [1.0] + [0.0] * 7, [1] * 8)]
    for coefficient in (1e-9, 1.0):
        config = RLVRConfig(adv_estimator="grpo", add_token_level_kl=True, reward_clip=1.0, init_kl_coef=coefficient)
        (best, *_), _ = step(RLVRAdvantages(config), groups, config, reference_logprobs=-1.0)
        assert best == pytest.approx([1.0], abs=1e-5)


def test_whitening_compares_the_tokens_of_a_domain_with_each_other():
    """ROLL's rule (rlvr_pipeline.py:683-723 and functionals.py:364-370: x − mean over √(unbiased variance), of one domain's
    tokens): scores 0, 1 and 10, 30, of 1, 2 and 1, 1 tokens."""
    config = RLVRConfig(adv_estimator="reinforce", whiten_advantages=True)
    groups = [group(0, [0.0, 1.0], [1, 2], "a"), group(1, [10.0, 30.0], [1, 1], "b")]
    rows, _ = step(RLVRAdvantages(config), groups, config)
    low, high = -2 / 3 / (1 / 3) ** 0.5, 1 / 3 / (1 / 3) ** 0.5
    assert rows[0] + rows[1] == pytest.approx([low, high, high], abs=1e-5)
    assert rows[2] + rows[3] == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-5)


def test_the_weight_adapts_from_step_to_step_and_through_a_checkpoint():
    config = RLVRConfig(adv_estimator="reinforce", add_token_level_kl=True, init_kl_coef=0.2, target_kl=0.1, kl_horizon=10)
    groups = [group(0, [1.0, 0.0], [2, 2])]
    advantages = RLVRAdvantages(config)
    seen = []
    for _ in range(3):
        seen.append(step(advantages, groups, config, reference_logprobs=-1.5)[1]["critic/kl_coef"])
        state = json.loads(json.dumps(advantages.state()))
        advantages = RLVRAdvantages(config)
        advantages.restore(state)
    assert seen == pytest.approx([0.2, 0.2 * 1.04, 0.2 * 1.04**2])  # 1 + 0.2 · 2 samples / 10


def test_a_weight_that_does_not_adapt_is_the_one_of_the_configuration():
    advantages = RLVRAdvantages(RLVRConfig(init_kl_coef=0.5))
    state = advantages.state()
    config = RLVRConfig(adv_estimator="reinforce", add_token_level_kl=True, init_kl_coef=0.1)
    changed = RLVRAdvantages(config)
    changed.restore(state)
    assert step(changed, [group(0, [1.0], [1])], config, reference_logprobs=-1.0)[1]["critic/kl_coef"] == 0.1


def test_a_step_of_masked_samples_alone_leaves_the_weight():
    config = RLVRConfig(adv_estimator="reinforce", add_token_level_kl=True, target_kl=0.1, kl_horizon=1, max_len_mask=True)
    advantages = RLVRAdvantages(config)
    rows, metrics = step(advantages, [group(0, [1.0, 0.0], [2, 2], finish="length")], config, reference_logprobs=-1.5)
    assert rows == [[0, 0], [0, 0]]
    assert "critic/kl" not in metrics
    assert advantages.state()["kl_coef"] == 0.2


def test_gamma_discounts_towards_the_end_of_the_response():
    config = RLVRConfig(adv_estimator="reinforce", gamma=0.5)
    (first, second), _ = step(RLVRAdvantages(config), [group(0, [1.0, 2.0], [3, 1])], config)
    assert first == [0.25, 0.5, 1.0]
    assert second == [2.0]


def test_whitened_rewards_are_scaled_not_shifted():
    """Token rewards 0, 0, 1 and 0: deviation 0.5. A shift would reward or punish every further token: length, not merit."""
    config = RLVRConfig(adv_estimator="reinforce", whiten_rewards=True)
    (first, second), _ = step(RLVRAdvantages(config), [group(0, [1.0, 0.0], [3, 1])], config)
    assert first == pytest.approx([2.0] * 3, rel=1e-5)
    assert second == [0.0]


@pytest.mark.parametrize(
    ("estimator", "centred"), [("reinforce_plus_plus", [1, 0, 0, 0]), ("reinforce_plus_plus_baseline", [0.5, -0.5, 0, 0])]
)
def test_reinforce_plus_plus_is_whitened_over_the_tokens(estimator, centred):
    """Rewards 1, 0 | 0, 0 of one token each, but the first has two."""
    config = RLVRConfig(adv_estimator=estimator)
    rows, _ = step(RLVRAdvantages(config), [group(0, [1.0, 0.0], [2, 1]), group(1, [0.0, 0.0], [1, 1])], config)
    tokens = torch.tensor([centred[0], *centred], dtype=torch.float64)
    right = (tokens - tokens.mean()) / tokens.std()
    assert [value for row in rows for value in row] == pytest.approx(right.tolist(), abs=1e-5)


def test_opo_weighs_by_trained_tokens():
    """(1·3 + 0·1)/4 = 0.75."""
    config = RLVRConfig(adv_estimator="opo")
    (first, second), _ = step(RLVRAdvantages(config), [group(0, [1.0, 0.0], [3, 1])], config)
    assert first == pytest.approx([0.25] * 3)
    assert second == pytest.approx([-0.75])


def test_running_moments_go_on_from_step_to_step_each_domain_its_own():
    """Domain a sees 1, 0 and then 2, 3: mean 1.5, deviation √(5/3). Domain b sees 10, 10 alone."""
    config = RLVRConfig(adv_estimator="reinforce", norm_mean_type="running", norm_std_type="running")
    advantages = RLVRAdvantages(config)
    step(advantages, [group(0, [1.0, 0.0], [1, 1])], config)
    state = json.loads(json.dumps(advantages.state()))
    advantages = RLVRAdvantages(config)
    advantages.restore(state)
    rows, _ = step(advantages, [group(1, [2.0, 3.0], [1, 1]), group(2, [10.0, 10.0], [1, 1], domain="b")], config)
    spread = math.sqrt(5 / 3)
    assert [row[0] for row in rows] == pytest.approx([0.5 / spread, 1.5 / spread, 0, 0], rel=1e-5)


def test_metrics_describe_normalised_rewards_and_advantages():
    config = RLVRConfig(adv_estimator="dr_grpo")
    _, metrics = step(RLVRAdvantages(config), [group(0, [1.0, 0.0], [3, 1])], config)
    assert [metrics[f"critic/rewards/{name}"] for name in ("mean", "max", "min")] == [0.5, 1.0, 0.0]
    assert [metrics[f"critic/advantages/{name}"] for name in ("mean", "max", "min")] == [0.25, 0.5, -0.5]


@pytest.mark.parametrize(("rewards", "equal"), [([0.3, 0.1 + 0.2], True), ([1.0, 0.7 + 0.2 + 0.1], True), ([0.3, 0.3001], False)])
def test_a_group_is_without_signal_where_its_advantages_are_zero_and_every_filter_says_so(rewards, equal):
    config = RLVRConfig(adv_estimator="grpo")
    parts, metrics = step(RLVRAdvantages(config), [group(0, rewards, [3, 1])], config)
    assert all(each == 0 for part in parts for each in part) is equal
    assert metrics["rewards/groups_without_signal"] == equal
    assert (equal_rewards(rewards) is not None) is equal
    assert (std_filter(0.0)(rewards) is not None) is equal


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"adv_estimator": "grpo"}, 0.5),
        ({"adv_estimator": "reinforce", "norm_mean_type": "group"}, 0.5),
        ({"adv_estimator": "reinforce"}, None),
        ({"adv_estimator": "reinforce_plus_plus", "norm_mean_type": "batch"}, None),
    ],
)
def test_groups_without_signal_are_those_of_equal_rewards_where_a_group_is_compared(changes, share):
    """With REINFORCE every reward teaches, also of groups of one, whose rewards are equal by nature."""
    config = RLVRConfig(**changes)
    _, metrics = step(RLVRAdvantages(config), [group(0, [1.0, 0.0], [3, 1]), group(1, [1.0, 1.0], [1, 1])], config)
    assert metrics.get("rewards/groups_without_signal") == share


def test_token_level_kl_without_a_reference_is_an_error():
    config = RLVRConfig(adv_estimator="reinforce", add_token_level_kl=True)
    with pytest.raises(ValueError, match="needs the log-probs of the reference"):
        step(RLVRAdvantages(config), [group(0, [1.0], [1])], config)


def test_remax_compares_with_the_greedy_response_of_the_same_prompt():
    config = RLVRConfig(adv_estimator="remax", reward_clip=2.0)
    groups = [group(0, [1.0, 0.0], [1, 1], "a"), group(1, [5.0, 1.0], [1, 2], "b")]
    for of_prompt, greedy in zip(groups, (0.25, -3.0), strict=True):
        of_prompt.baseline = group(9, [greedy], [4]).samples[0]
    rows, _ = step(RLVRAdvantages(config), groups, config)
    assert rows == [[0.75], [-0.25], [2.0], [2.0, 2.0]]


def test_a_group_without_a_greedy_response_is_no_baseline_of_zero():
    config = RLVRConfig(adv_estimator="remax")
    with pytest.raises(ValueError, match="group 3 has none"):
        step(RLVRAdvantages(config), [group(3, [1.0], [1])], config)
