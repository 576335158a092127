"""Each built-in policy loss against values worked by hand, its bounds on each side, and its equals at the limits."""

import math
from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll.core.algorithms.pg_variants import get_policy_loss, second_moment_mask
from roll.core.algorithms.policy_loss import LossInputs, policy_losses
from roll.core.configs.losses import PolicyLossArgs

get_policy_loss()
DOUBLE = torch.float64

# Two sequences, all log-probs -1, ratios 1.5, 1, 0.5. The first was right (A = 1), the second wrong (A = -2).
RATIO = torch.tensor([1.5, 1.0, 0.5], dtype=DOUBLE).repeat(2, 1)
LOGPROBS = torch.full((2, 3), -1.0, dtype=DOUBLE)
ADVANTAGES = torch.tensor([[1.0], [-2.0]], dtype=DOUBLE).expand(2, 3)
SCORES = torch.tensor([1.0, 0.0])
EVERYTHING = torch.ones(2, 3, dtype=torch.bool)


def inputs(logprobs=LOGPROBS, ratio=RATIO, advantages=ADVANTAGES, scores=SCORES, mask=EVERYTHING):
    return LossInputs(logprobs, logprobs.detach() - ratio.log(), advantages, mask, scores)


def gradient(variant, ratio, advantages=ADVANTAGES, scores=SCORES, **args):
    logprobs = LOGPROBS.clone().requires_grad_()
    loss, _ = get_policy_loss(variant)(inputs(logprobs, ratio, advantages, scores), PolicyLossArgs(**args))
    return torch.autograd.grad(loss.sum(), logprobs)[0]


def sigmoid(x):
    return 1 / (1 + exp(-x))


L2 = [log(1.5) ** 2, 0.0, log(0.5) ** 2]
MEAN = 0.75 ** (1 / 3)  # geometric mean of the ratios
PPO = ({"clipfrac": 2, "clipfrac_low": 1, "clipfrac_high": 1}, [[-1.2, -1, -0.5], [3, 2, 1.6]])
# VESPO with the ratio of the sequence W = 0.75: W^k e^(λ(1-W)), (k, λ) = (2, 3) for A >= 0 and (3, 2) for A < 0.
RISE, FALL = 0.75**2 * exp(0.75), 0.75**3 * exp(0.5)
# GMPO: log-ratios clipped at 0.4 above for A > 0, at -0.4 below for A < 0, then averaged.
GOOD, BAD = exp((0.4 + log(0.5)) / 3), exp((log(1.5) - 0.4) / 3)

GOLDEN = [
    ("vanilla", {}, [[1, 1, 1], [-2, -2, -2]], {}),
    ("reinforce", {}, [[1, 1, 1], [-2, -2, -2]], {}),
    ("gpg", {}, [[1, 1, 1], [-2, -2, -2]], {}),
    ("opmd", {}, [[0.5] * 3, [-1] * 3], {}),
    ("opmd", {"opmd_tau": 3.0}, [[0.25] * 3, [-0.5] * 3], {}),
    ("asymre", {}, [[1.1] * 3, [-1.9] * 3], {}),
    ("ppo", {}, PPO[1], PPO[0]),
    ("ppo", {"pg_clip_low": 0.4, "pg_clip_high": 0.6}, [[-1.5, -1, -0.5], [3, 2, 1.2]], {"clipfrac": 1, "clipfrac_low": 1}),
    ("ppo", {"dual_clip_c": 1.4}, [[-1.2, -1, -0.5], [2.8, 2, 1.6]], {"clipfrac": 3, "clipfrac_dual": 1}),
    ("decoupled_ppo", {}, PPO[1], PPO[0]),
    # s = 0.75^(1/3) = 0.909 is below 1 - 3e-4: clipped where A < 0 only.
    ("gspo", {}, [[-MEAN] * 3, [2 * 0.9997] * 3], {"clipfrac": 3, "clipfrac_low": 3, "clipfrac_high": 0}),
    ("gspo", {"gspo_clip_low": 0.2}, [[-MEAN] * 3, [2 * MEAN] * 3], {"clipfrac": 0}),
    ("gmpo", {}, [[-GOOD] * 3, [2 * BAD] * 3], {"clipfrac": 2, "clipfrac_low": 1, "clipfrac_high": 1}),
    (
        "sapo",
        {},
        [[-4 * sigmoid(0.5), -2, -4 * sigmoid(-0.5)], [8 / 1.05 * sigmoid(1.05 * x) for x in (0.5, 0, -0.5)]],
        {},
    ),
    ("tis", {}, [[1, 1, 0.5], [-2, -2, -1]], {"clipfrac": 2, "clipfrac_high": 2, "clipfrac_low": 0}),
    ("tis", {"tis_lower_bound": 0.8, "tis_upper_bound": 1.2}, [[1.2, 1, 0.8], [-2.4, -2, -1.6]], {"clipfrac": 4}),
    # The sequence ratio is 1.5 * 1 * 0.5 = 0.75, on every token of the wrong response and on none of the right one.
    ("topr", {}, [[1, 1, 1], [-1.5, -1.5, -1.5]], {"clipfrac": 0, "topr_positive_share": 3, "topr_weight_mean": 5.25}),
    ("topr", {"topr_positive_weight": 2.0, "topr_negative_weight": 3.0}, [[2, 2, 2], [-4.5, -4.5, -4.5]], {}),
    ("topr", {"topr_ratio_level": "token"}, [[1, 1, 1], [-2, -2, -1]], {"clipfrac": 1}),
    ("cispo", {}, [[1.1, 1, 0.9], [-2.2, -2, -1.8]], {"clipfrac": 4, "clipfrac_low": 2, "clipfrac_high": 2}),
    ("cispo", {"cispo_use_unified_mask": True}, [[0, 1, 0.9], [-2.2, -2, 0]], {"cispo_masked_share": 2}),
    ("vespo", {}, [[RISE] * 3, [-2 * FALL] * 3], {"vespo_weight_mean": 3 * RISE + 3 * FALL}),
    ("vespo", {"vespo_k_pos": 1.0, "vespo_lambda_pos": 0.0}, [[0.75] * 3, [-2 * FALL] * 3], {}),
    # p = e^-1 = 0.368, p_a = p / r = 0.245, 0.368, 0.736: the last token has fallen by 0.368, the first risen by 0.123.
    ("dppo_tv", {}, [[1.5, 1, 0.5], [-3, -2, 0]], {"clipfrac": 1}),
    ("dppo_tv", {"dppo_tv_delta_high": 0.1, "dppo_tv_delta_low": 0.4}, [[0, 1, 0.5], [-3, -2, -1]], {"clipfrac": 1}),
    ("dppo_tv", {"dppo_ratio_cap": 1.2}, [[1.2, 1, 0.5], [-2.4, -2, 0]], {}),
    # Binary KL: first token 0.245 ln(1/1.5) + 0.755 ln(0.755/0.632) = 0.034, last 0.736 ln 2 + 0.264 ln(0.264/0.632) = 0.280.
    ("dppo_kl", {}, [[1.5, 1, 0.5], [-3, -2, 0]], {"clipfrac": 1}),
    ("dppo_kl", {"dppo_kl_delta_high": 0.034, "dppo_kl_delta_low": 0.29}, [[0, 1, 0.5], [-3, -2, -1]], {"clipfrac": 1}),
    ("dppo_kl", {"dppo_kl_delta_high": 0.035, "dppo_kl_delta_low": 0.27}, [[1.5, 1, 0.5], [-3, -2, 0]], {"clipfrac": 1}),
    ("m2po", {}, [[-1.5, -1, -0.5], [3, 2, 1]], {}),  # its mask is made of the whole batch, below
    ("kimi15", {}, [[1 + 0.05 * x for x in L2], [-2 + 0.05 * x for x in L2]], {"kimi15_penalty": 0.1 * sum(L2)}),
]


@pytest.mark.parametrize(("variant", "args", "right", "metrics"), GOLDEN)
def test_golden_values(variant, args, right, metrics):
    loss, sums = get_policy_loss(variant)(inputs(), PolicyLossArgs(**args))
    torch.testing.assert_close(loss, torch.tensor(right, dtype=DOUBLE), rtol=1e-12, atol=1e-12)
    for name, value in metrics.items():
        assert sums[name].item() == pytest.approx(value, rel=1e-12), name


def test_every_variant_has_a_golden_value():
    assert {variant for variant, *_ in GOLDEN} == set(policy_losses.names)


# -- weights and bounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["tis", "topr", "cispo", "vespo", "dppo_tv", "dppo_kl"])
def test_weights_carry_no_gradient(variant):
    """The gradient by ℓ is the loss divided by ℓ (here −1): that of a weight times ℓ with the weight held."""
    loss, _ = get_policy_loss(variant)(inputs(), PolicyLossArgs())
    torch.testing.assert_close(gradient(variant, RATIO), -loss)


# Bounds of the ratio below and above, asymmetric, of a single token whose anchor probability is 0.4.
P_ANCHOR = 0.4


def binary_kl(ratio):
    p = P_ANCHOR * ratio
    return P_ANCHOR * log(P_ANCHOR / p) + (1 - P_ANCHOR) * log((1 - P_ANCHOR) / (1 - p))


BOUNDED = {
    "ppo": ({"pg_clip_low": 0.1, "pg_clip_high": 0.5}, 0.9, 1.5),
    "decoupled_ppo": ({"pg_clip_low": 0.1, "pg_clip_high": 0.5}, 0.9, 1.5),
    "gspo": ({"gspo_clip_low": 0.1, "gspo_clip_high": 0.5}, 0.9, 1.5),
    "gmpo": ({"gmpo_clip_low": -log(0.9), "gmpo_clip_high": log(1.5)}, 0.9, 1.5),
    "cispo": ({"cispo_epsilon_low": 0.1, "cispo_epsilon_high": 0.5, "cispo_use_unified_mask": True}, 0.9, 1.5),
    "dppo_tv": ({"dppo_tv_delta_low": 0.1 * P_ANCHOR, "dppo_tv_delta_high": 0.5 * P_ANCHOR}, 0.9, 1.5),
    "dppo_kl": ({"dppo_kl_delta_low": binary_kl(0.9), "dppo_kl_delta_high": binary_kl(1.5)}, 0.9, 1.5),
}


@pytest.mark.parametrize("variant", BOUNDED)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("side", ["low", "high"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_token_beyond_a_bound_is_not_pushed_further_and_is_let_back(variant, sign, side, inside):
    args, low, high = BOUNDED[variant]
    ratio = {("low", True): low + 0.01, ("low", False): low - 0.01, ("high", True): high - 0.01, ("high", False): high + 0.01}
    logprobs = torch.tensor([[log(P_ANCHOR * ratio[side, inside])]], dtype=DOUBLE, requires_grad=True)
    anchor, advantages = torch.full((1, 1), log(P_ANCHOR), dtype=DOUBLE), torch.full((1, 1), sign, dtype=DOUBLE)
    values = LossInputs(logprobs, anchor, advantages, EVERYTHING[:1, :1], SCORES[:1])
    loss, _ = get_policy_loss(variant)(values, PolicyLossArgs(**args))
    pushed = torch.autograd.grad(loss.sum(), logprobs)[0].item()
    further = (side == "high") == (sign > 0)
    assert (pushed == 0) == (further and not inside)
    assert pushed * sign <= 0


@pytest.mark.parametrize("variant", ["ppo", "gspo"])
def test_dual_clip_stops_the_gradient_of_runaway_negatives(variant):
    ratio = torch.full_like(RATIO, 5.0)
    assert gradient(variant, ratio, dual_clip_c=3.0)[1].tolist() == [0.0] * 3
    loss, sums = get_policy_loss(variant)(inputs(ratio=ratio), PolicyLossArgs(dual_clip_c=3.0))
    assert loss[1].tolist() == [6.0] * 3
    assert sums["clipfrac_dual"] == 3
    assert gradient(variant, ratio)[1].tolist() == pytest.approx([10.0] * 3)


def test_topr_truncates_the_sequence_ratio_at_one():
    """A wrong response that the policy now likes *more* is pushed down with weight 1, not 8."""
    loss, sums = get_policy_loss("topr")(inputs(ratio=torch.full((2, 3), 2.0, dtype=DOUBLE)), PolicyLossArgs())
    assert loss[1].tolist() == [-2.0] * 3
    assert sums["clipfrac"].item() == 3


def test_topr_splits_by_score_not_by_advantage():
    """With advantages swapped in sign, the tapered sequence is still the one with score 0."""
    loss, _ = get_policy_loss("topr")(inputs(advantages=-ADVANTAGES), PolicyLossArgs())
    assert loss[0].tolist() == [-1.0] * 3
    assert loss[1].tolist() == pytest.approx([1.5] * 3)


@pytest.mark.parametrize(("variant", "of_sequence"), [("topr", 0.5), ("vespo", 0.5**3 * exp(1.0)), ("gspo", 0.5**0.5)])
def test_ratios_of_a_sequence_count_its_trained_tokens_only(variant, of_sequence):
    """Ratios 0.5 and 1 on trained tokens, 1.5 on a masked one."""
    mask = torch.tensor([[True, True, False]] * 2)
    args = PolicyLossArgs(gspo_clip_low=1.0)
    loss, _ = get_policy_loss(variant)(inputs(ratio=RATIO.flip(1), mask=mask), args)
    sign = 1 if variant == "gspo" else -1
    assert loss[1, :2].tolist() == pytest.approx([sign * 2 * of_sequence] * 2)


def test_gspo_has_the_gradient_of_the_sequence_objective():
    """For one advantage a sequence, the mean over its tokens has the gradient of −A·exp(mean log r) by autograd."""
    logprobs = LOGPROBS.clone().requires_grad_()
    values = inputs(logprobs)
    right = -(ADVANTAGES[:, 0] * values.log_ratio.mean(1).exp()).sum()
    loss, _ = get_policy_loss("gspo")(values, PolicyLossArgs(gspo_clip_low=1.0, gspo_clip_high=1.0))
    got = torch.autograd.grad(loss.mean(1).sum(), logprobs, retain_graph=True)[0]
    torch.testing.assert_close(got, torch.autograd.grad(right, logprobs)[0], rtol=1e-12, atol=0)


def test_gmpo_has_the_gradient_of_the_sequence_objective():
    """The first token of the right response and the last of the wrong one are clipped: they get none."""
    right = torch.tensor([[0, -GOOD / 3, -GOOD / 3], [2 * BAD / 3, 2 * BAD / 3, 0]], dtype=DOUBLE)
    torch.testing.assert_close(gradient("gmpo", RATIO) / 3, right, rtol=1e-12, atol=0)


def test_sapo_fades_on_both_sides():
    """The weight 4σ(1−σ)·r of the gradient at r = 1.5, 1, 0.5."""
    weights = [4 * sigmoid(r - 1) * (1 - sigmoid(r - 1)) * r for r in (1.5, 1.0, 0.5)]
    assert gradient("sapo", RATIO)[0].tolist() == pytest.approx([-w for w in weights])
    assert abs(gradient("sapo", torch.full_like(RATIO, 20.0))).max() < 1e-6


def test_vespo_fades_for_responses_left_behind_and_for_runaway_ones():
    for ratio in (0.1, 3.0):
        assert abs(gradient("vespo", torch.full_like(RATIO, ratio))).max() < 1e-3


def test_kimi15_pulls_towards_the_anchor():
    torch.testing.assert_close(gradient("kimi15", RATIO, kimi15_tau=0.3), -ADVANTAGES + 0.3 * RATIO.log())


# -- equivalences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "args"),
    [
        ("cispo", {"cispo_epsilon_low": math.inf, "cispo_epsilon_high": math.inf}),
        ("tis", {"tis_upper_bound": math.inf}),
        ("ppo", {"pg_clip_low": math.inf, "pg_clip_high": math.inf}),
        ("dppo_tv", {"dppo_tv_delta_low": 1.0, "dppo_tv_delta_high": 1.0, "dppo_ratio_cap": math.inf}),
        ("dppo_kl", {"dppo_kl_delta_low": math.inf, "dppo_kl_delta_high": math.inf, "dppo_ratio_cap": math.inf}),
        ("m2po", {}),
    ],
)
def test_without_bounds_the_gradient_is_that_of_importance_sampling(variant, args):
    torch.testing.assert_close(gradient(variant, RATIO, **args), -RATIO * ADVANTAGES, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("variant", "args"),
    [
        ("gspo", {"gspo_clip_low": 1.0, "gspo_clip_high": math.inf}),
        ("gmpo", {"gmpo_clip_low": math.inf, "gmpo_clip_high": math.inf}),
        ("vespo", {f"vespo_{knob}_{sign}": float(knob == "k") for knob in ("k", "lambda") for sign in ("pos", "neg")}),
    ],
)
def test_of_one_token_a_sequence_ratio_is_that_of_the_token(variant, args):
    logprobs = torch.full((6, 1), -1.0, dtype=DOUBLE, requires_grad=True)
    ratio, advantages = RATIO.reshape(6, 1), ADVANTAGES.reshape(6, 1)
    values = LossInputs(logprobs, logprobs.detach() - ratio.log(), advantages, EVERYTHING.reshape(6, 1), torch.zeros(6))
    loss, _ = get_policy_loss(variant)(values, PolicyLossArgs(**args))
    got = torch.autograd.grad(loss.sum(), logprobs)[0]
    torch.testing.assert_close(got, -ratio * advantages, rtol=1e-12, atol=1e-12)


def test_ppo_gives_no_gradient_to_clipped_tokens():
    right = -RATIO * ADVANTAGES
    right[0, 0] = right[1, 2] = 0.0
    torch.testing.assert_close(gradient("ppo", RATIO), right)


# -- M2PO's mask --------------------------------------------------------------------------------------------------------


def test_m2po_leaves_out_the_largest_until_the_second_moment_fits():
    """(log r)² of the tokens that PPO could clip (r > 1 with A > 0, r < 1 with A < 0): 0.01, 0.09, 0.16, 0.36. Their means from
    the smallest up are 0.01, 0.05, 0.087, 0.155. The others (r of 3 with A < 0, a masked token) are left alone."""
    log_ratio = torch.tensor([0.1, -0.3, 0.4, -0.6, 1.1, 5.0], dtype=DOUBLE)
    advantages = torch.tensor([1.0, -1, 2, -2, -1, 1])
    mask = torch.tensor([True, True, True, True, True, False])

    def kept(threshold):
        return second_moment_mask(log_ratio, advantages, mask, threshold)[:5].tolist()

    assert kept(0.2) == [True] * 5
    assert kept(0.1) == [True, True, True, False, True]
    assert kept(0.05 + 1e-9) == [True, True, False, False, True]
    assert kept(0.005) == [False, False, False, False, True]


@given(st.lists(st.tuples(st.floats(-2, 2), st.sampled_from([-1.0, 0.0, 1.0]), st.booleans()), max_size=12), st.floats(0.01, 1))
def test_m2po_keeps_the_largest_set_that_fits(tokens, threshold):
    """Algorithm 1 of the paper, literally: while the mean is too large, drop the largest (equal ones go together)."""
    log_ratio, advantages = (torch.tensor([t[i] for t in tokens], dtype=DOUBLE) for i in (0, 1))
    mask = torch.tensor([t[2] for t in tokens], dtype=torch.bool)
    region = {i for i, (x, a, m) in enumerate(tokens) if m and x * a > 0}
    left = set(region)
    while left and sum(sorted(tokens[i][0] ** 2 for i in left)) / len(left) > threshold:
        largest = max(tokens[i][0] ** 2 for i in left)
        left -= {i for i in left if tokens[i][0] ** 2 == largest}
    keep = second_moment_mask(log_ratio, advantages, mask, threshold)
    assert keep.shape == mask.shape
    assert {i for i in region if keep[i]} == left
    assert all(keep[i] for i in range(len(tokens)) if i not in region)
