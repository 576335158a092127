"""Advantages of episodes and turns on plain values, and what a loss mask keeps out of the loss."""

import pytest
import torch

from roll.core.algorithms.loss import LossSpec, compute_loss
from roll.core.configs.agentic import AgenticConfig, EnvManagerConfig, RewardNormalizationConfig
from roll.core.data.sample import Prompt, Sample, SampleGroup, Trajectory, Turn, VersionSpan
from roll.core.record.episode_metrics import episode_metrics
from roll.core.trainer.agentic_advantages import AgenticAdvantages
from roll.core.trainer.batch import rollout_metrics, token_batch

BETWEEN = 2
"""Environment tokens between two turns."""


def turn(reward, state="s", tokens=1, valid=True):
    return Turn(f"saw {state}", "act", reward, state, valid, reward > 0, tokens)


def told(turns, first, whole, success=False):
    return Trajectory(turns, first, len(whole), sum(t.reward for t in whole), success, "terminated", 1.0, 2.0, 3.0)


def trajectory(index, turns, tag="lake", group=0):
    """One sample: prompt of 3 tokens, turns of their tokens, `BETWEEN` environment tokens in the gaps."""
    mask = []
    for i, one in enumerate(turns):
        mask += [False] * (BETWEEN if i else 0) + [True] * one.tokens
    prompt = Prompt(f"train/{tag}/{group}", [1, 2, 3], "", tag, tag, "")
    score = sum(one.reward for one in turns)
    spans = [VersionSpan(0, len(mask), 0)]
    logprobs = [-0.5 if own else 0.0 for own in mask]
    return Sample(prompt, index, [4] * len(mask), logprobs, spans, "stop", "", score, mask, told(turns, 0, turns))


def steps(index, turns, tag="lake", group=0):
    """The same episode as samples of one turn each."""
    prompt = Prompt(f"train/{tag}/{group}", [1, 2, 3], "", tag, tag, "")
    score = sum(one.reward for one in turns)
    return [
        Sample(
            prompt, index, [4] * t.tokens, [-0.5] * t.tokens, [VersionSpan(0, t.tokens, 0)], "stop", "", score, None,
            told([t], i, turns),
        )
        for i, t in enumerate(turns)
    ]  # fmt: skip


def grouped(number, samples):
    return SampleGroup(number, 0, samples[0].prompt, samples)


def configure(norm=None, **changes):
    return AgenticConfig(
        train_env_manager=EnvManagerConfig(group_size=2),
        reward_normalization=RewardNormalizationConfig(**(norm or {})),
        **changes,
    )


def advantages(groups, config):
    """[per sample: advantages of its policy tokens, turn by turn]; asserts that other tokens have none."""
    batch = token_batch(groups, 1.0)
    batch, _ = AgenticAdvantages(config)(batch, groups)
    assert not batch.advantages[~batch.loss_mask].any()
    rows = batch.advantages.split(batch.lengths.tolist())
    masks = batch.loss_mask.split(batch.lengths.tolist())
    return [row[mask].tolist() for row, mask in zip(rows, masks, strict=True)]


TWO = [[turn(0.0, "a"), turn(0.0, "b", tokens=2), turn(1.0, "c")], [turn(0.0, "a"), turn(0.0, "d")]]
"""A won and a lost episode of one environment; they differ after the first turn."""


def test_grpo_compares_the_episodes_of_a_group():
    group = grouped(0, [trajectory(i, turns) for i, turns in enumerate(TWO)])
    won, lost = advantages([group], configure())
    assert won == pytest.approx([0.7071] * 4, abs=1e-3) and lost == pytest.approx([-0.7071] * 2, abs=1e-3)


@pytest.mark.parametrize(
    ("estimator", "norm", "expected"),
    [
        ("grpo", {}, 0.5),
        ("rloo", {}, 0.5),
        ("reinforce", {"norm_mean_type": "group"}, 0.5),
        ("step_reinforce", {"norm_mean_type": "group"}, 0.5),
        ("gigpo", {}, 0.5),
        ("agentic_reinforce", {"norm_mean_type": "group"}, 0.5),
    ],
)
def test_rewards_are_clipped_after_they_were_compared(estimator, norm, expected):
    """Scores of 40 and 20: clipped to 0.5 before the comparison, both would be 0.5."""
    group = grouped(0, [trajectory(i, [turn(score)]) for i, score in enumerate((40.0, 20.0))])
    rows = advantages([group], configure(norm, adv_estimator=estimator, reward_clip=0.5))
    assert rows == [[expected], [-expected]]


@pytest.mark.parametrize(
    ("estimator", "norm", "compares"),
    [
        ("grpo", {}, True),
        ("step_reinforce", {"norm_mean_type": "group"}, True),
        ("step_reinforce", {"norm_mean_type": "group", "grouping": "tags"}, False),
        ("step_reinforce", {"norm_mean_type": "batch"}, False),
        ("agentic_reinforce", {}, False),
    ],
)
def test_equal_scores_of_a_group_are_no_signal_where_the_group_is_compared(estimator, norm, compares):
    assert configure(norm, adv_estimator=estimator).compares_in_groups is compares


def test_an_episode_counts_once_however_many_samples_it_became():
    """Mean of the scores 1 and 0 is 1/2: the three samples of the won episode are not three scores of 1."""
    group = grouped(0, [sample for i, turns in enumerate(TWO) for sample in steps(i, turns)])
    rows = advantages([group], configure(adv_estimator="dr_grpo"))
    assert [row[0] for row in rows] == pytest.approx([0.5] * 3 + [-0.5] * 2)
    assert group.outcomes == [1.0, 0.0]
    assert rollout_metrics([group])["critic/score/mean"] == 0.5


@pytest.mark.parametrize("sampled_as", [lambda i, t: [trajectory(i, t)], steps])
def test_gamma_discounts_by_turns_not_by_tokens(sampled_as):
    """Three turns, one of two tokens, with environment tokens between them: 1, 0.5, 0.25 from the last to the first."""
    group = grouped(0, [sample for i, turns in enumerate(TWO) for sample in sampled_as(i, turns)])
    rows = advantages([group], configure(adv_estimator="reinforce", gamma=0.5))
    flat = [value for row in rows for value in row]
    assert flat[:4] == pytest.approx([0.25, 0.5, 0.5, 1.0]) and flat[4:] == [0.0, 0.0]


def test_agentic_reinforce_gives_each_turn_its_own_return():
    turns = [[turn(1.0), turn(0.0), turn(2.0)], [turn(0.0)]]
    group = grouped(0, [trajectory(i, one) for i, one in enumerate(turns)])
    won, lost = advantages([group], configure(adv_estimator="agentic_reinforce", step_reward_gamma=0.5))
    assert won == pytest.approx([1 + 0.25 * 2, 0.5 * 2, 2.0]) and lost == [0.0]
    # Normalised: scores 3 and 0 become ±0.7071, which stand where the episodes ended.
    norm = {"norm_mean_type": "group", "norm_std_type": "group"}
    won, lost = advantages([group], configure(norm, adv_estimator="agentic_reinforce", step_reward_gamma=0.5))
    assert won == pytest.approx([0.7071 / 4, 0.7071 / 2, 0.7071], abs=1e-3) and lost == pytest.approx([-0.7071], abs=1e-3)


@pytest.mark.parametrize("sampled_as", [lambda i, t: [trajectory(i, t)], steps])
def test_gigpo_adds_the_episodes_and_the_states_advantage(sampled_as):
    """By hand, γ = 1/2, without deviations. Episodes: 1 and 0, mean 1/2. Returns: a 1/4 and 0 (mean 1/8); b, c, d were seen once
    and add nothing."""
    group = grouped(0, [sample for i, turns in enumerate(TWO) for sample in sampled_as(i, turns)])
    config = configure(adv_estimator="gigpo", step_reward_gamma=0.5, episode_reward_weight=1.0, step_reward_weight=2.0)
    flat = [value for row in advantages([group], config) for value in row]
    assert flat == pytest.approx([0.5 + 2 / 8, 0.5, 0.5, 0.5, -0.5 - 2 / 8, -0.5])


def test_equal_states_of_different_environments_are_different_states():
    first = grouped(0, [trajectory(i, turns) for i, turns in enumerate(TWO)])
    other = grouped(1, [trajectory(i, [turn(5.0, "a")], group=1) for i in range(2)])
    config = configure(adv_estimator="gigpo", step_reward_gamma=0.5)
    alone = advantages([first], config)
    assert advantages([first, other], config)[:2] == [pytest.approx(row) for row in alone]


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        ("traj_group_id", [0.5, -0.5, 0.5, -0.5]),
        ("tags", [0.5, -0.5, 0.5, -0.5]),
        ("batch", [1.0 - 2.75, 0.0 - 2.75, 5.5 - 2.75, 4.5 - 2.75]),
    ],
)
def test_reward_normalisation_compares_whom_it_is_told_to(grouping, expected):
    """Scores 1, 0 in lakes and 5.5, 4.5 in rooms."""
    lake = grouped(0, [trajectory(0, [turn(1.0)]), trajectory(1, [turn(0.0)])])
    room = grouped(1, [trajectory(0, [turn(5.5)], "room", 1), trajectory(1, [turn(4.5)], "room", 1)])
    norm = {"grouping": grouping, "norm_mean_type": "group"}
    rows = advantages([lake, room], configure(norm, adv_estimator="reinforce"))
    assert [row[0] for row in rows] == pytest.approx(expected)


def test_step_reinforce_may_compare_the_turns_of_one_state():
    group = grouped(0, [trajectory(i, turns) for i, turns in enumerate(TWO)])
    norm = {"grouping": "state", "norm_mean_type": "group"}
    won, lost = advantages([group], configure(norm, adv_estimator="step_reinforce", step_reward_gamma=0.5))
    assert won == pytest.approx([1 / 8, 0.0, 0.0, 0.0]) and lost == pytest.approx([-1 / 8, 0.0])


def test_what_an_environment_said_changes_neither_loss_nor_gradient():
    """Other log-probs of the environment's and the prompt's tokens, even infinite ones: bit for bit the same."""
    group = grouped(0, [trajectory(i, turns) for i, turns in enumerate(TWO)])
    batch, _ = AgenticAdvantages(configure())(token_batch([group], 1.0), [group])
    padded = batch.padded()
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(padded.tokens.shape, generator=generator)
    foreign = padded.attention_mask & ~padded.loss_mask

    def loss_and_gradient(changed):
        values = torch.where(foreign, torch.full_like(logprobs, changed), logprobs).requires_grad_()
        noise = torch.where(foreign, torch.full_like(logprobs, changed), padded.behaviour_logprobs)
        padded.behaviour_logprobs = noise
        tokens, sequences = int(padded.loss_mask.sum()), len(batch)
        loss, _ = compute_loss(values, None, padded, LossSpec(pg_variant="ppo"), tokens, sequences)
        loss.backward()
        return loss.detach(), values.grad

    loss, gradient = loss_and_gradient(-1.0)
    assert gradient[padded.loss_mask].any() and not gradient[~padded.loss_mask].any()
    for changed in (-30.0, float("-inf")):
        again, same = loss_and_gradient(changed)
        assert torch.equal(loss, again) and torch.equal(gradient, same)


def test_episode_metrics_count_each_episode_once_and_each_turn_once():
    turns = [[turn(0.0, valid=False), turn(1.0, tokens=3)], [turn(0.0)]]
    samples = [sample for i, one in enumerate(turns) for sample in steps(i, one)]
    for sample in samples:
        sample.trajectory.success = sample.index == 0
    metrics = episode_metrics(samples)
    assert (metrics["env/lake/success"], metrics["env/lake/score"], metrics["env/lake/num_actions"]) == (0.5, 0.5, 1.5)
    assert metrics["env/lake/action_is_valid"] == pytest.approx(2 / 3)
    assert metrics["env/lake/action_is_effective"] == pytest.approx(1 / 3)
    assert metrics["env/lake/response_length"] == pytest.approx(5 / 3)
    assert metrics["env/time/generation_s"] == 1.0 and metrics["env/time/waiting_s"] == 3.0
