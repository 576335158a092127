"""From rewarded groups to tensors."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.algorithms.loss import LossSpec, compute_loss
from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.advantages import RLVRAdvantages
from roll.core.trainer.batch import gather, optimiser_batches, rollout_metrics, shards, shares, token_batch, totals_of


def group(group_id, rewards, *, domain="a", prompt_tokens=3, lengths=None, finish=None):
    """Response token t of sample i of group g is 1000 g + 100 i + t; its behaviour log-prob is -(t + 1) / 10."""
    prompt = Prompt(f"{domain}/0/{group_id}", [group_id] * prompt_tokens, "", domain, domain, "")
    samples = []
    for i, reward in enumerate(rewards):
        length = lengths[i] if lengths else i + 1
        ids = [1000 * group_id + 100 * i + t for t in range(length)]
        logprobs = [-(t + 1) / 10 for t in range(length)]
        reason = finish[i] if finish else "stop"
        samples.append(Sample(prompt, i, ids, logprobs, [VersionSpan(0, length, 0)], reason, "", reward))
    return SampleGroup(group_id, 0, prompt, samples)


def responses(batch, values):
    """The values on the response tokens of each sample (prompts have 3 tokens)."""
    return [part[3:].tolist() for part in values.split(batch.lengths.tolist())]


def config(**changes):
    return RLVRConfig(**changes)


def with_advantages(batch, groups, wish):
    """As in the first step of a run."""
    return RLVRAdvantages(wish)(batch, groups)[0]


def test_samples_lie_one_after_another_and_only_response_tokens_are_trained():
    batch = token_batch([group(1, [1.0, 0.0]), group(2, [0.5])], 0.7, RLVRAdvantages(config()).trains)
    assert batch.lengths.tolist() == [4, 5, 4]
    assert batch.tokens.tolist() == [1, 1, 1, 1000, 1, 1, 1, 1100, 1101, 2, 2, 2, 2000]
    assert batch.loss_mask.tolist() == [False] * 3 + [True] + [False] * 3 + [True] * 2 + [False] * 3 + [True]
    assert batch.behaviour_logprobs.tolist() == pytest.approx([0, 0, 0, -0.1, 0, 0, 0, -0.1, -0.2, 0, 0, 0, -0.1])
    assert batch.scores.tolist() == [1.0, 0.0, 0.5]
    assert batch.temperatures.tolist() == pytest.approx([0.7] * 3)
    assert totals_of(batch) == totals_of(batch.select([2, 0, 1]))
    assert (totals_of(batch).tokens, totals_of(batch).sequences) == (4, 3)


def test_turns_of_an_episode_are_of_one_rollout_however_the_step_is_divided():
    episodes = group(1, [1.0, 1.0, 0.0], lengths=[3, 1, 2])
    episodes.samples[1].index = 0
    episodes.samples[2].index = 1
    batch = token_batch([episodes, group(2, [0.5])], 1.0)
    assert batch.rollout_tokens.tolist() == [4, 4, 2, 1]
    assert (totals_of(batch).sequences, totals_of(batch).rollouts) == (4, 3)
    first, second = batch.select([0]), batch.select([1, 2, 3])
    assert [totals_of(part).rollouts for part in (first, second)] == [3 / 4, 1 / 4 + 1 + 1]
    assert totals_of(TokenBatch.joined([first, second])) == totals_of(batch)


def test_a_rollout_of_several_samples_is_compared_once_and_they_share_its_advantage():
    """Rollouts earn 1 (two samples), 0 and 0: as with one sample each, the mean is a third, not a half."""
    several = group(1, [1.0, 1.0, 0.0, 0.0], lengths=[2, 1, 3, 1])
    for sample, index in zip(several.samples, (0, 0, 1, 2), strict=True):
        sample.index = index
    wish = config(adv_estimator="dr_grpo")
    batch = with_advantages(token_batch([several], 1.0), [several], wish)
    found = [part[0] for part in responses(batch, batch.advantages)]
    assert found == pytest.approx([2 / 3, 2 / 3, -1 / 3, -1 / 3])


def test_max_len_mask_leaves_out_what_was_cut_off():
    one = group(1, [1.0, 0.0, 1.0], finish=["stop", "length", "length"])
    assert totals_of(token_batch([one], 1.0, RLVRAdvantages(config()).trains)).sequences == 3
    batch = token_batch([one], 1.0, RLVRAdvantages(config(max_len_mask=True)).trains)
    assert responses(batch, batch.loss_mask) == [[True], [False] * 2, [False] * 3]
    assert responses(batch, batch.behaviour_logprobs)[1] == [0.0, 0.0]
    assert (totals_of(batch).tokens, totals_of(batch).sequences) == (1, 1)
    assert batch.scores.tolist() == [1.0, 0.0, 1.0], "the reward of a masked sample still counts in its group's mean"


@pytest.mark.parametrize(
    ("rewards", "is_kept"),
    [([0.0, 0.0], False), ([1.0, 1.0], False), ([0.0, 1.0], True), ([0.2, 0.2], False), ([0.9, 0.9], False)],
)
def test_difficulty_mask_keeps_groups_strictly_between_the_thresholds(rewards, is_kept):
    wish = config(difficulty_mask=True, difficulty_low_threshold=0.2, difficulty_high_threshold=0.9)
    assert bool(token_batch([group(1, rewards)], 1.0, RLVRAdvantages(wish).trains).loss_mask.any()) is is_kept
    assert token_batch([group(1, rewards)], 1.0, RLVRAdvantages(config()).trains).loss_mask.any()


def test_long_wrong_responses_are_left_out_of_the_loss():
    wish = config(error_max_len_clip=True, error_max_len_threshold=2)
    batch = token_batch([group(1, [1.0, 0.0, 0.0, 0.5], lengths=[3, 2, 1, 2])], 1.0, RLVRAdvantages(wish).trains)
    assert [bool(mask) for mask in batch.sums_per_sample(batch.loss_mask.long())] == [True, False, True, False]


def test_masked_tokens_have_no_advantage():
    groups = [group(1, [1.0, 0.0], finish=["stop", "length"])]
    wish = config(max_len_mask=True)
    batch = with_advantages(token_batch(groups, 1.0, RLVRAdvantages(wish).trains), groups, wish)
    assert responses(batch, batch.advantages) == [[pytest.approx(0.7071, abs=1e-3)], [0.0, 0.0]]
    assert batch.advantages[~batch.loss_mask].abs().sum() == 0


def test_grpo_advantages_stand_on_every_token_of_a_sample():
    """(r - mean) / std over the group, unbiased std: rewards 1, 0, 0 have mean 1/3 and std 0.5774."""
    groups = [group(1, [1.0, 0.0, 0.0]), group(2, [5.0, 5.0])]
    batch = with_advantages(token_batch(groups, 1.0, RLVRAdvantages(config()).trains), groups, config())
    first, *others, same, same_too = responses(batch, batch.advantages)
    assert first == pytest.approx([1.1547], abs=1e-3)
    assert [value for values in others for value in values] == pytest.approx([-0.5774] * 5, abs=1e-3)
    assert same + same_too == pytest.approx([0.0] * 3, abs=1e-6)


def test_each_domain_is_normalised_on_its_own():
    """Batch-wise normalisation: a second domain with rewards around 100 changes nothing for the first, and is treated alike."""
    wish = config(adv_estimator="reinforce", norm_mean_type="batch", norm_std_type="batch")
    mine = [group(1, [1.0, 0.0], lengths=[1, 1]), group(2, [0.0, 0.0], lengths=[1, 1])]
    foreign = [group(3, [110.0, 100.0], domain="b", lengths=[1, 1]), group(4, [100.0, 100.0], domain="b", lengths=[1, 1])]
    alone = with_advantages(token_batch(mine, 1.0, RLVRAdvantages(wish).trains), mine, wish)
    mixed_groups = [mine[0], foreign[0], mine[1], foreign[1]]
    mixed = with_advantages(token_batch(mixed_groups, 1.0, RLVRAdvantages(wish).trains), mixed_groups, wish)
    expected = [value for values in responses(alone, alone.advantages) for value in values]
    got = [value for values in responses(mixed, mixed.advantages) for value in values]
    assert got[0:2] + got[4:6] == pytest.approx(expected)
    assert got[2:4] + got[6:8] == pytest.approx(expected, abs=1e-4), "ten times the scale and another level: the same advantages"
    assert expected[0] > 0 > expected[1]


def test_advantages_are_whitened_over_all_trained_tokens_then_clipped():
    groups = [group(1, [1.0, 0.0, 0.0, 0.0]), group(2, [1.0, 1.0, 0.0])]
    batch = with_advantages(token_batch(groups, 1.0), groups, config(whiten_advantages=True))
    trained = batch.advantages[batch.loss_mask]
    assert float(trained.mean()) == pytest.approx(0, abs=1e-5)
    assert float(trained.std(correction=0)) == pytest.approx(1, abs=0.1)
    clipped = with_advantages(
        token_batch(groups, 1.0, RLVRAdvantages(config(advantage_clip=0.3)).trains), groups, config(advantage_clip=0.3)
    )
    assert float(clipped.advantages.abs().max()) == pytest.approx(0.3)


def random_batch(lengths, seed=0):
    rng = random.Random(seed)
    groups = [group(i, [rng.random()], lengths=[length]) for i, length in enumerate(lengths)]
    return token_batch(groups, 1.0, RLVRAdvantages(config()).trains)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=24), ranks=st.integers(1, 5))
def test_what_ranks_compute_on_their_shards_comes_back_in_order(lengths, ranks):
    """Every token has a number of its own; each rank returns the numbers of its share."""
    batch = random_batch(lengths)
    numbers = torch.arange(batch.num_tokens, dtype=torch.float32)
    parts = shards(batch.with_(behaviour_logprobs=numbers), ranks)
    assert len(parts) == ranks
    assert sum(len(part) for part in parts) == len(batch)
    assert torch.equal(gather([part.behaviour_logprobs for part in parts], batch, shares(batch, ranks)), numbers)


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 24),
    count=st.integers(1, 24),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_an_epoch_covers_every_sample_once_in_nearly_equal_steps(samples, count, epochs, seed):
    """The number of optimiser steps is the one asked for, however many samples there are (a step has at least one)."""
    batch = random_batch([1] * samples)
    names = batch.tokens.reshape(samples, -1)[:, -1].tolist()
    batches = optimiser_batches(batch, count, epochs, seed)
    per_epoch = min(count, samples)
    assert len(batches) == per_epoch * epochs
    for epoch in range(epochs):
        mine = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert max(map(len, mine)) - min(map(len, mine)) <= 1
        assert sorted(part.tokens[i * 4 + 3].item() for part in mine for i in range(len(part))) == sorted(names)


def test_the_cut_into_optimiser_steps_is_a_function_of_the_seed_and_differs_by_epoch():
    batch = random_batch([1] * 16)
    cut = [part.tokens.tolist() for part in optimiser_batches(batch, 4, 2, seed=1)]
    assert cut == [part.tokens.tolist() for part in optimiser_batches(batch, 4, 2, seed=1)]
    assert cut != [part.tokens.tolist() for part in optimiser_batches(batch, 4, 2, seed=2)]
    assert cut[:4] != cut[4:]


def test_rollout_metrics_describe_the_rollouts():
    metrics = rollout_metrics([group(1, [1.0, 0.0, 0.5], finish=["stop", "length", "stop"])])
    assert (metrics["critic/score/mean"], metrics["critic/score/max"], metrics["critic/score/min"]) == (0.5, 1.0, 0.0)
    assert (metrics["tokens/response_length/mean"], metrics["tokens/response_length/max"]) == (2.0, 3)
    assert metrics["tokens/response_length/clip"] == pytest.approx(1 / 3)
    assert metrics["rewards/mean"] == 0.5, "critic/score is ROLL's name for it"


def test_rewards_are_told_by_domain():
    easy, hard = group(2, [1.0, 1.0], domain="easy"), group(3, [0.0, 1.0], domain="hard")
    metrics = rollout_metrics([easy, hard, group(4, [0.0, 0.0], domain="hard")])
    assert (metrics["rewards/easy/mean"], metrics["rewards/hard/mean"]) == (1.0, 0.25)


def test_fresh_tokens_are_those_of_the_version_that_is_trained_with_the_engine_that_sampled_them():
    one = group(1, [1.0, 0.0])
    first, second = one.samples
    first.versions = [VersionSpan(0, 1, 4, engine=1), VersionSpan(1, len(first.response_ids), 5, engine=2)]
    second.versions = [VersionSpan(0, len(second.response_ids), 4)]
    batch = token_batch([one], 1.0, version=5)
    told = len(first.prompt.input_ids)
    assert batch.fresh_from.tolist() == [0] * (told + 1) + [3] * (len(first.response_ids) - 1) + [0] * int(batch.lengths[1])


def test_only_the_first_optimiser_step_starts_from_the_weights_that_sampled():
    batch = token_batch([group(i, [1.0, 0.0]) for i in range(4)], 1.0, version=0)
    assert [part.fresh_from is not None for part in optimiser_batches(batch, 2, 2, seed=0)] == [True, False, False, False]
    assert [part.fresh_from is not None for part in optimiser_batches(batch, 1, 2, seed=0)] == [True, False]


@pytest.mark.parametrize(("best", "kept"), [(None, [True, False, True]), (1, [True, False, False]), (2, [True, False, True])])
def test_raft_trains_what_it_keeps_with_advantage_one_and_nothing_else(best, kept):
    """Of equal rewards the first counts as the better one; the loss is the mean over the kept tokens."""
    made = RLVRAdvantages(config(adv_estimator="raft", raft_best=best))
    one = group(1, [1.0, 0.0, 1.0])
    batch, _ = made(token_batch([one], 1.0, made.trains), [one])
    trained = batch.sums_per_sample(batch.loss_mask.long()) > 0
    assert trained.tolist() == kept
    assert (batch.advantages == batch.loss_mask).all()
    spec = LossSpec(pg_variant="vanilla", aggregation="token-mean")
    log_probs = -torch.rand(batch.num_tokens, generator=torch.Generator().manual_seed(0))
    padded, totals = batch.padded(), totals_of(batch)
    table = torch.zeros_like(padded.behaviour_logprobs)
    table[padded.attention_mask] = log_probs
    loss, _ = compute_loss(table, None, padded, spec, totals.tokens, totals.sequences)
    assert loss.item() == pytest.approx(-log_probs[batch.loss_mask].mean().item(), rel=1e-6)
