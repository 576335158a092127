"""Policy-loss variants: values worked by hand, gradients, on-policy equivalences, the registry."""

import math

import pytest
import torch

from roll.algorithms.policy_loss import LossInputs, PolicyLossArgs, get_policy_loss, policy_loss

VARIANTS = ["vanilla", "ppo", "tis", "topr", "cispo", "kimi15"]

# Two sequences, all log-probs -1, ratios 1.5, 1, 0.5. The first was right (A = 1), the second wrong (A = -2).
RATIO = torch.tensor([1.5, 1.0, 0.5], dtype=torch.float64).repeat(2, 1)
LOGPROBS = torch.full((2, 3), -1.0, dtype=torch.float64)
ADVANTAGES = torch.tensor([[1.0], [-2.0]], dtype=torch.float64).expand(2, 3)
SCORES = torch.tensor([1.0, 0.0])
EVERYTHING = torch.ones(2, 3, dtype=torch.bool)
L2 = [math.log(1.5) ** 2, 0.0, math.log(0.5) ** 2]


def inputs(logprobs=LOGPROBS, ratio=RATIO, advantages=ADVANTAGES, scores=SCORES, mask=EVERYTHING):
    return LossInputs(logprobs, logprobs.detach() - ratio.log(), advantages, mask, scores)


def gradient(variant, ratio, advantages=ADVANTAGES, scores=SCORES, **args):
    logprobs = LOGPROBS.clone().requires_grad_()
    loss, _ = get_policy_loss(variant)(inputs(logprobs, ratio, advantages, scores), PolicyLossArgs(**args))
    return torch.autograd.grad(loss.sum(), logprobs)[0]


@pytest.mark.parametrize(
    ("variant", "args", "right", "metrics"),
    [
        ("vanilla", {}, [[1, 1, 1], [-2, -2, -2]], {}),
        ("ppo", {}, [[-1.2, -1, -0.5], [3, 2, 1.6]], {"clipfrac": 2, "clipfrac_low": 1, "clipfrac_high": 1}),
        ("ppo", {"pg_clip_low": 0.4, "pg_clip_high": 0.6}, [[-1.5, -1, -0.5], [3, 2, 1.2]], {"clipfrac": 1, "clipfrac_low": 1}),
        ("ppo", {"dual_clip_c": 1.4}, [[-1.2, -1, -0.5], [2.8, 2, 1.6]], {"clipfrac": 3, "clipfrac_dual": 1}),
        ("tis", {}, [[1, 1, 0.5], [-2, -2, -1]], {"clipfrac": 2, "clipfrac_high": 2, "clipfrac_low": 0}),
        ("tis", {"tis_lower_bound": 0.8, "tis_upper_bound": 1.2}, [[1.2, 1, 0.8], [-2.4, -2, -1.6]], {"clipfrac": 4}),
        # The sequence ratio is 1.5 * 1 * 0.5 = 0.75, on every token of the wrong response and on none of the right one.
        ("topr", {}, [[1, 1, 1], [-1.5, -1.5, -1.5]], {"clipfrac": 0, "topr_positive_share": 3, "topr_weight_mean": 5.25}),
        ("topr", {"topr_positive_weight": 2.0, "topr_negative_weight": 3.0}, [[2, 2, 2], [-4.5, -4.5, -4.5]], {}),
        ("cispo", {}, [[1.1, 1, 0.9], [-2.2, -2, -1.8]], {"clipfrac": 4, "clipfrac_low": 2, "clipfrac_high": 2}),
        ("cispo", {"cispo_use_unified_mask": True}, [[0, 1, 0.9], [-2.2, -2, 0]], {"cispo_masked_share": 2}),
        ("kimi15", {}, [[1 + 0.05 * x for x in L2], [-2 + 0.05 * x for x in L2]], {"kimi15_penalty": 0.1 * sum(L2)}),
    ],
)
def test_golden_values(variant, args, right, metrics):
    loss, sums = get_policy_loss(variant)(inputs(), PolicyLossArgs(**args))
    torch.testing.assert_close(loss, torch.tensor(right, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    for name, value in metrics.items():
        assert sums[name].item() == pytest.approx(value, rel=1e-12), name


def test_topr_truncates_the_sequence_ratio_at_one():
    """A wrong response that the policy now likes *more* is pushed down with weight 1, not 8."""
    loss, sums = get_policy_loss("topr")(inputs(ratio=torch.full((2, 3), 2.0, dtype=torch.float64)), PolicyLossArgs())
    assert loss[1].tolist() == [-2.0] * 3
    assert sums["clipfrac"].item() == 3


def test_topr_splits_by_score_not_by_advantage():
    """With advantages swapped in sign, the tapered sequence is still the one with score 0."""
    loss, _ = get_policy_loss("topr")(inputs(advantages=-ADVANTAGES), PolicyLossArgs())
    assert loss[0].tolist() == [-1.0] * 3
    assert loss[1].tolist() == pytest.approx([1.5] * 3)


def test_topr_ratio_counts_trained_tokens_only():
    mask = torch.tensor([[True, True, False]] * 2)
    loss, _ = get_policy_loss("topr")(inputs(ratio=RATIO.flip(1), mask=mask), PolicyLossArgs())
    assert loss[1].tolist() == pytest.approx([-1.0, -1.0, 0.0])  # ratio 0.5 * 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("args", [{}, {"dual_clip_c": 1.5, "cispo_use_unified_mask": True}])
def test_gradient_matches_finite_differences(variant, args):
    """Stop-gradients are held at the point of evaluation, as their formulas say. Points away from the kinks of clips."""
    generator = torch.Generator().manual_seed(3)
    ratio = torch.empty(2, 3, dtype=torch.float64).uniform_(0.5, 2.0, generator=generator)
    at = -torch.rand(2, 3, dtype=torch.float64, generator=generator) - 0.1
    anchor = at - ratio.log()
    frozen = (at - anchor).detach()

    def loss(logprobs):
        values = LossInputs(logprobs, anchor, ADVANTAGES, EVERYTHING, SCORES)
        if variant in ("tis", "topr", "cispo"):
            values.log_ratio = frozen
        return get_policy_loss(variant)(values, PolicyLossArgs(**args))[0]

    assert torch.autograd.gradcheck(loss, (at.requires_grad_(),), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("variant", ["tis", "topr", "cispo"])
def test_weights_carry_no_gradient(variant):
    """The gradient by ℓ is the loss divided by ℓ (here −1): that of a weight times ℓ with the weight held."""
    loss, _ = get_policy_loss(variant)(inputs(), PolicyLossArgs())
    torch.testing.assert_close(gradient(variant, RATIO), -loss)


@pytest.mark.parametrize("variant", VARIANTS)
def test_on_policy_every_variant_has_the_gradient_of_vanilla(variant):
    ones = torch.ones_like(RATIO)
    torch.testing.assert_close(gradient(variant, ones), -ADVANTAGES.clone(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("variant", "args"),
    [
        ("cispo", {"cispo_epsilon_low": math.inf, "cispo_epsilon_high": math.inf}),
        ("tis", {"tis_upper_bound": math.inf}),
        ("ppo", {"pg_clip_low": math.inf, "pg_clip_high": math.inf}),
    ],
)
def test_without_bounds_the_gradient_is_that_of_importance_sampling(variant, args):
    torch.testing.assert_close(gradient(variant, RATIO, **args), -RATIO * ADVANTAGES, rtol=1e-12, atol=1e-12)


def test_ppo_gives_no_gradient_to_clipped_tokens():
    right = -RATIO * ADVANTAGES
    right[0, 0] = right[1, 2] = 0.0
    torch.testing.assert_close(gradient("ppo", RATIO), right)


def test_dual_clip_stops_the_gradient_of_runaway_negatives():
    assert gradient("ppo", torch.full_like(RATIO, 5.0), dual_clip_c=3.0)[1].tolist() == [0.0] * 3


def test_kimi15_pulls_towards_the_anchor():
    torch.testing.assert_close(gradient("kimi15", RATIO, kimi15_tau=0.3), -ADVANTAGES + 0.3 * RATIO.log())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("log_ratio", [1e4, -1e4])
def test_extreme_ratios_stay_finite(variant, log_ratio):
    logprobs = LOGPROBS.float().requires_grad_()
    values = LossInputs(logprobs, logprobs.detach() - log_ratio, ADVANTAGES.float(), EVERYTHING, SCORES)
    loss, sums = get_policy_loss(variant)(values, PolicyLossArgs())
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(logprobs.grad).all()
    assert all(torch.isfinite(value) for value in sums.values())


def test_the_default_variant_is_ppo():
    assert get_policy_loss(None) is get_policy_loss() is get_policy_loss("ppo")


def test_all_variants_are_registered():
    get_policy_loss()
    assert policy_loss.names == sorted(VARIANTS)


def test_unknown_variant_names_the_nearest():
    with pytest.raises(ValueError, match="unknown pg_variant 'cipso'; did you mean 'cispo'"):
        get_policy_loss("cipso")


def test_dotted_name_is_a_users_function(tmp_path, monkeypatch):
    (tmp_path / "my_losses.py").write_text(
        "def doubled(inputs, args):\n    return -2 * inputs.advantages * inputs.logprobs, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loss, _ = get_policy_loss("my_losses.doubled")(inputs(), PolicyLossArgs())
    assert loss.tolist() == [[2.0] * 3, [-4.0] * 3]


@pytest.mark.parametrize("name", ["no_such_package.loss", "math.no_such_loss", "math.pi", ".loss"])
def test_bad_dotted_name_is_one_clear_error(name):
    with pytest.raises(ValueError, match="cannot load pg_variant"):
        get_policy_loss(name)


def test_a_name_is_registered_once():
    get_policy_loss()
    with pytest.raises(ValueError, match="registered twice"):
        policy_loss("ppo")(lambda inputs, args: (inputs.logprobs, {}))


@pytest.mark.parametrize(
    "args",
    [
        {"pg_clip_low": -0.1},
        {"dual_clip_c": 1.0},
        {"tis_lower_bound": 2.0},
        {"tis_lower_bound": -1.0},
        {"kimi15_tau": math.nan},
    ],
)
def test_senseless_knobs_are_refused(args):
    with pytest.raises(ValueError, match=next(iter(args))):
        PolicyLossArgs(**args)


def test_mismatched_shapes_are_refused():
    with pytest.raises(ValueError, match="advantages"):
        LossInputs(LOGPROBS, LOGPROBS, ADVANTAGES[:1], EVERYTHING, SCORES)


def test_a_variant_sees_zeros_where_masked_and_gradient_in_logprobs_only():
    junk = torch.full((1, 2), math.nan)
    fields = [junk.masked_fill(torch.tensor([[True, False]]), -1.0).requires_grad_() for _ in range(3)]
    values = LossInputs(*fields, torch.tensor([[True, False]]), torch.zeros(1))
    for field in (values.logprobs, values.anchor_logprobs, values.advantages):
        assert field.tolist() == [[-1.0, 0.0]]
    assert values.ratio.tolist() == [[1.0, 1.0]]
    assert values.logprobs.requires_grad
    assert not values.anchor_logprobs.requires_grad
    assert not values.advantages.requires_grad
