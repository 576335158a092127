"""From scores and a critic's values to advantages and returns of tokens."""

import pytest
import torch

from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.core.trainer.advantages import RLVRAdvantages
from roll.core.trainer.batch import token_batch

JUNK = float("nan")
VALUES = torch.tensor([JUNK, JUNK, 0.5, 0.25, JUNK, JUNK, 0.5])


def group(finishes=("stop", "stop")):
    """Prompts of two tokens, responses of two and one, rewards 1 and 0; every behaviour log-prob is -1."""
    prompt = Prompt("a/0", [1, 1], "", "a", "a", "")
    samples = [
        Sample(prompt, i, [5] * n, [-1.0] * n, [VersionSpan(0, n, 0)], finish, "", reward)
        for i, (n, reward, finish) in enumerate(zip((2, 1), (1.0, 0.0), finishes, strict=True))
    ]
    return SampleGroup(0, 0, prompt, samples)


def step(config, groups, **fields):
    batch = token_batch(groups, 1.0, RLVRAdvantages(config).trains).with_(values=VALUES, **fields)
    batch, metrics = RLVRAdvantages(config)(batch, groups)
    assert (batch.returns[~batch.loss_mask] == 0).all() and (batch.advantages[~batch.loss_mask] == 0).all()
    parts = [[t[2:].tolist() for t in x.split(batch.lengths.tolist())] for x in (batch.advantages, batch.returns)]
    return *parts, metrics


def test_advantages_and_returns_by_hand_with_junk_where_nothing_is_trained():
    """δ of the first response: 0.5·0.25 − 0.5 = −0.375 and 1 − 0.25 = 0.75; γλ = 0.5·0.8 = 0.4. Of the second: 0 − 0.5."""
    advantages, returns, _ = step(RLVRConfig(adv_estimator="gae", gamma=0.5, lambd=0.8), [group()])
    assert advantages == [pytest.approx([-0.375 + 0.4 * 0.75, 0.75]), pytest.approx([-0.5])]
    assert returns == [pytest.approx([0.5 - 0.075, 1.0]), pytest.approx([0.0])]


def test_the_kl_penalty_is_part_of_the_rewards_and_so_of_the_returns():
    """k1 is 0.5 a token, the weight 0.2: rewards −0.1, 0.9 and −0.1. With λ = 1 a return is the sum of the later rewards."""
    config = RLVRConfig(adv_estimator="gae", lambd=1.0, add_token_level_kl=True, init_kl_coef=0.2)
    advantages, returns, metrics = step(config, [group()], reference_logprobs=torch.full((7,), -1.5))
    assert returns == [pytest.approx([0.8, 0.9]), pytest.approx([-0.1])]
    assert advantages == [pytest.approx([0.3, 0.65]), pytest.approx([-0.6])]
    assert metrics["critic/kl"] == pytest.approx(0.5)


def test_whitening_is_of_advantages_and_leaves_the_returns():
    plain, returns, _ = step(RLVRConfig(adv_estimator="gae"), [group()])
    white, same, _ = step(RLVRConfig(adv_estimator="gae", whiten_advantages=True), [group()])
    assert same == returns
    values = torch.tensor([v for part in plain for v in part])
    expected = (values - values.mean()) / values.std()
    torch.testing.assert_close(torch.tensor([v for part in white for v in part]), expected, rtol=1e-4, atol=1e-5)


def test_a_response_that_is_left_out_has_no_advantage_and_no_return():
    config = RLVRConfig(adv_estimator="gae", max_len_mask=True)
    advantages, returns, _ = step(config, [group(finishes=("length", "stop"))])
    assert advantages == [[0.0, 0.0], [-0.5]] and returns == [[0.0, 0.0], [0.0]]


def test_rewards_are_normalised_as_asked():
    """Over the batch: (R − 0.5) / 0.7071."""
    config = RLVRConfig(adv_estimator="gae", lambd=1.0, norm_mean_type="batch", norm_std_type="batch")
    _, returns, metrics = step(config, [group()])
    assert returns == [pytest.approx([0.70710, 0.70710], abs=1e-4), pytest.approx([-0.70710], abs=1e-4)]
    assert metrics["critic/rewards/max"] == pytest.approx(0.70710, abs=1e-4)


def test_without_values_there_is_an_error():
    config = RLVRConfig(adv_estimator="gae")
    with pytest.raises(ValueError, match="needs the critic's values"):
        RLVRAdvantages(config)(token_batch([group()], 1.0), [group()])
