"""Claims about estimators, checked as exact sums over every sequence of a small world. Tolerances are those of float64 sums."""

import math
import sys
from pathlib import Path

import pytest
import torch

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)
from exact_world import World, baseline_expectation, estimate

from roll.core.algorithms.kl import approx_kl
from roll.core.algorithms.loss import LossSpec
from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import policy_losses
from roll.core.algorithms.returns import discounted_returns, gae, on_last_token
from roll.core.algorithms.sequence_advantages import remax
from roll.core.configs.losses import PolicyLossArgs

get_policy_loss()  # registers the built-in ones
EXACT = {"rtol": 0, "atol": 1e-8}
LAGS = (0, 1, 2, 4, 8)
WORLD = World()
POLICIES = WORLD.ascent(WORLD.policy(seed=1), max(LAGS), rate=1.0)
NOW = POLICIES[-1]


def summed(variant, **args):
    return LossSpec(pg_variant=variant, args=PolicyLossArgs(**args), aggregation="seq-mean-token-sum")


def centred(world, behaviour):
    return world.rewards - world.probabilities(behaviour) @ world.rewards


def relative_bias(found, truth):
    return float((found - truth).norm() / truth.norm())


def cosine(found, truth):
    return float(torch.nn.functional.cosine_similarity(found, truth, dim=0))


# -- the world itself ---------------------------------------------------------------------------------------------------


def test_the_world_is_what_it_says():
    """1 + 2 + 2·2·3 sequences: ended at once, after one token, or of three tokens."""
    assert len(WORLD.sequences) == 15
    assert len(WORLD.prefixes) == 1 + 2 + 4
    assert 0 < WORLD.rewards.sum() < 15
    for policy in POLICIES:
        assert WORLD.probabilities(policy).sum().item() == pytest.approx(1, abs=1e-12)
    earned = [float(WORLD.probabilities(policy) @ WORLD.rewards) for policy in POLICIES]
    assert earned == sorted(earned) and earned[-1] > earned[0] + 0.1, "eight steps must move the policy"


def test_the_policy_gradient_theorem_holds():
    """Σ π R ∇log π, for any baseline, is the derivative of Σ π R."""
    for baseline in (0.0, 0.7, -3.0):
        expected = (WORLD.probabilities(NOW) * (WORLD.rewards - baseline)) @ WORLD.scores(NOW)
        torch.testing.assert_close(expected, WORLD.true_gradient(NOW), **EXACT)


# -- old data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", LAGS)
def test_weighted_by_the_whole_sequence_old_data_give_the_true_gradient(lag):
    behaviour = POLICIES[-1 - lag]
    weight = WORLD.probabilities(NOW) / WORLD.probabilities(behaviour)
    found = estimate(WORLD, summed("vanilla"), NOW, behaviour, weight * centred(WORLD, behaviour))
    torch.testing.assert_close(found.mean, WORLD.true_gradient(NOW), **EXACT)


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize(
    ("variant", "args"),
    [
        ("tis", {"tis_upper_bound": math.inf}),
        ("cispo", {"cispo_epsilon_low": math.inf, "cispo_epsilon_high": math.inf}),
        ("ppo", {"pg_clip_low": math.inf, "pg_clip_high": math.inf}),
        ("gspo", {"gspo_clip_low": math.inf, "gspo_clip_high": math.inf}),
    ],
)
def test_unclipped_ratios_are_exact_where_a_sequence_is_one_token(variant, args, lag):
    world = World(vocabulary=5, length=1, binary=False)
    policies = world.ascent(world.policy(seed=2), lag, rate=2.0)
    found = estimate(world, summed(variant, **args), policies[-1], policies[0], centred(world, policies[0]))
    torch.testing.assert_close(found.mean, world.true_gradient(policies[-1]), **EXACT)


def test_unclipped_token_ratios_are_biased_where_a_sequence_is_several_tokens():
    """A token's ratio corrects for that token: not for the prefixes before it, not for what follows it. Less biased than none."""
    behaviour, truth = POLICIES[-1 - 8], WORLD.true_gradient(NOW)
    token = estimate(WORLD, summed("tis", tis_upper_bound=math.inf), NOW, behaviour, centred(WORLD, behaviour))
    none = estimate(WORLD, summed("vanilla"), NOW, behaviour, centred(WORLD, behaviour))
    assert 0.05 < relative_bias(token.mean, truth) < relative_bias(none.mean, truth)


def test_reinforce_on_old_data_is_biased_by_this_much():
    """Two sequences, π = (p, 1 − p), behaviour (q, 1 − q). In the logit of the first, ∇log π is 1 − p and −p, so

    E = q·A₀·(1 − p) − (1 − q)·A₁·p,  truth p·(1 − p)·(R₀ − R₁)."""
    world = World(vocabulary=2, length=1, binary=False)
    now, before = world.policy(seed=3), world.policy(seed=4)
    p, q = float(world.probabilities(now)[0]), float(world.probabilities(before)[0])
    first, second = world.rewards.tolist()
    found = estimate(world, summed("vanilla"), now, before, world.rewards).mean[0].item()
    assert found == pytest.approx(q * first * (1 - p) - (1 - q) * second * p, abs=1e-12)
    assert world.true_gradient(now)[0].item() == pytest.approx(p * (1 - p) * (first - second), abs=1e-12)


def test_the_bias_of_reinforce_grows_with_the_age_of_its_data():
    truth = WORLD.true_gradient(NOW)
    biases = []
    for lag in LAGS:
        behaviour = POLICIES[-1 - lag]
        biases.append(relative_bias(estimate(WORLD, summed("vanilla"), NOW, behaviour, centred(WORLD, behaviour)).mean, truth))
    assert biases[0] < 1e-8
    assert biases == sorted(biases)
    assert biases[-1] > 0.1


def test_the_exact_weight_pays_in_variance_what_truncation_pays_in_bias():
    behaviour = POLICIES[0]
    weight = WORLD.probabilities(NOW) / WORLD.probabilities(behaviour)
    exact = estimate(WORLD, summed("vanilla"), NOW, behaviour, weight * centred(WORLD, behaviour))
    truncated = estimate(WORLD, summed("tis"), NOW, behaviour, centred(WORLD, behaviour))
    truth = WORLD.true_gradient(NOW)
    assert truncated.variance < exact.variance
    assert relative_bias(truncated.mean, truth) > 0.05


@pytest.mark.parametrize("variant", policy_losses.names)
def test_on_policy_every_variant_follows_the_true_gradient(variant):
    found = estimate(WORLD, summed(variant), NOW, NOW, centred(WORLD, NOW))
    assert cosine(found.mean, WORLD.true_gradient(NOW)) == pytest.approx(1, abs=1e-8)


# -- baselines: the exact mean over all groups ---------------------------------------------------------------------------

REAL = World(binary=False)
POLICY = REAL.policy(seed=5)


def over_groups(estimator, size):
    return baseline_expectation(REAL, POLICY, estimator, size)


@pytest.mark.parametrize("size", [2, 3])
def test_leave_one_out_is_unbiased(size):
    torch.testing.assert_close(over_groups("rloo", size), REAL.true_gradient(POLICY), **EXACT)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("estimator", ["dr_grpo", "reinforce_plus_plus_baseline", "gpg"])
def test_a_group_mean_that_includes_the_sample_shrinks_the_gradient_and_nothing_else(estimator, size):
    """E[(R − mean)·∇log π] = (1 − 1/n)·∇J: the same direction, so a learning rate makes up for it."""
    if estimator == "gpg":
        # Each group is a batch of its own here in meaning, but one call sees them all: α counts the groups of equal sequences.
        numbers = torch.cartesian_prod(*[torch.arange(15)] * size)
        teaching = (REAL.rewards[numbers].std(dim=1) > 0).double().mean().item()
        torch.testing.assert_close(over_groups("gpg", size) * teaching, over_groups("dr_grpo", size), **EXACT)
    else:
        torch.testing.assert_close(over_groups(estimator, size), (1 - 1 / size) * REAL.true_gradient(POLICY), **EXACT)


def test_the_division_by_the_standard_deviation_turns_the_gradient():
    truth = REAL.true_gradient(POLICY)
    assert cosine(over_groups("dr_grpo", 3), truth) == pytest.approx(1, abs=1e-10)
    assert cosine(over_groups("grpo", 3), truth) < 0.999


def test_the_length_weighted_baseline_is_biased_through_the_sample_itself():
    """The sample's own length weighs in its baseline, so unlike a group mean it does not just shrink the gradient."""
    assert cosine(over_groups("opo", 2), REAL.true_gradient(POLICY)) < 0.9999


def test_a_baseline_that_does_not_see_the_sample_is_unbiased():
    """ReMax: the reward of the greedy sequence. Also no baseline at all."""
    greedy = REAL.rewards[REAL.probabilities(POLICY).argmax()]
    for advantages in (remax(REAL.rewards, greedy.expand(15)), REAL.rewards):
        found = REAL.group_expectation(POLICY, 2, lambda numbers, a=advantages: a[numbers])
        torch.testing.assert_close(found, REAL.true_gradient(POLICY), **EXACT)


# -- along the tokens ---------------------------------------------------------------------------------------------------


def from_token_advantages(advantages):
    """[P · V] E[Σ_t A_t·∇log π(token t)], exactly."""

    def surrogate(leaf):
        return (REAL.probabilities(POLICY)[:, None] * advantages * REAL.logprobs(leaf)).sum()

    return REAL.gradient(surrogate, POLICY)


def test_token_level_kl_in_the_reward_is_the_gradient_of_the_penalised_objective():
    """Return-to-go of R − β·(ℓ − ℓ_ref) gives the derivative of E[R] − β·KL(π ‖ reference)."""
    reference, beta = REAL.policy(seed=6), 0.3

    def objective(leaf):
        log_ratio = (REAL.logprobs(leaf) - REAL.logprobs(reference)).sum(1)
        return REAL.probabilities(leaf) @ (REAL.rewards - beta * log_ratio)

    kl = approx_kl(REAL.logprobs(POLICY), REAL.logprobs(reference), "k1", REAL.mask)
    returns = discounted_returns(on_last_token(REAL.rewards, REAL.mask) - beta * kl, REAL.mask, gamma=1.0)
    torch.testing.assert_close(from_token_advantages(returns), REAL.gradient(objective, POLICY), **EXACT)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_gae_with_the_true_values_is_unbiased_for_any_lambda(lam):
    rewards = on_last_token(REAL.rewards, REAL.mask)
    advantages, returns = gae(rewards, REAL.values(POLICY), REAL.mask, gamma=1.0, lam=lam)
    torch.testing.assert_close(from_token_advantages(advantages), REAL.true_gradient(POLICY), **EXACT)
    mean_return = (REAL.probabilities(POLICY) * returns[:, 0]).sum()
    torch.testing.assert_close(mean_return, REAL.probabilities(POLICY) @ REAL.rewards, **EXACT)


# -- the KL loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+"])
def test_the_gradient_of_a_kl_loss_on_samples_of_the_policy(estimator):
    """k2 and every + form: that of KL(π ‖ reference). k1: none at all.
    k3: that of KL(reference ‖ π). abs: that of Σ |π − reference|."""
    world = World(vocabulary=5, length=1)
    policy, reference = world.policy(seed=7), world.logprobs(world.policy(seed=8))

    def loss(leaf):
        weights = world.probabilities(policy)[:, None]
        return (weights * approx_kl(world.logprobs(leaf), reference, estimator, world.mask)).sum()

    def forward(leaf):
        logprobs = world.logprobs(leaf)
        return (logprobs.exp() * (logprobs - reference)).sum()

    def backward(leaf):
        return (reference.exp() * (reference - world.logprobs(leaf))).sum()

    def variation(leaf):
        return (world.logprobs(leaf).exp() - reference.exp()).abs().sum()

    right = {"k1": lambda leaf: 0 * leaf.sum(), "k3": backward, "abs": variation}.get(estimator, forward)
    torch.testing.assert_close(world.gradient(loss, policy), world.gradient(right, policy), **EXACT)
