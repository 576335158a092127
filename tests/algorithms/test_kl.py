"""KL estimators: golden values, unbiasedness over an exact expectation, gradients, masked entries."""

import math

import pytest
import torch

from roll.core.algorithms.kl import ESTIMATORS, KLController, approx_kl

POLICY = torch.tensor([math.log(0.5), math.log(0.2)], dtype=torch.float64)
REFERENCE = torch.tensor([math.log(0.25), math.log(0.4)], dtype=torch.float64)
LN2 = math.log(2)


@pytest.mark.parametrize(
    ("estimator", "right"),
    [
        ("k1", [LN2, -LN2]),
        ("k2", [LN2**2 / 2, LN2**2 / 2]),
        ("abs", [LN2, LN2]),
        ("k3", [0.5 - 1 + LN2, 2 - 1 - LN2]),
    ],
)
def test_golden_values(estimator, right):
    torch.testing.assert_close(approx_kl(POLICY, REFERENCE, estimator), torch.tensor(right, dtype=torch.float64))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_expectation_under_the_policy_is_the_kl_divergence(estimator):
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 11, dtype=torch.float64, generator=generator).log_softmax(-1)
    expected = (policy.exp() * approx_kl(policy, reference, estimator)).sum()
    torch.testing.assert_close(expected, (policy.exp() * (policy - reference)).sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_gradient_matches_finite_differences(estimator):
    policy = POLICY.clone().requires_grad_()
    reference = REFERENCE.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p, r: approx_kl(p, r, estimator), (policy, reference))


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_a_plus_keeps_the_value_and_takes_the_gradient_of_k2(estimator):
    """The gradient of k2 in log π is log π − log reference."""
    policy = POLICY.clone().requires_grad_()
    values = approx_kl(policy, REFERENCE, f"{estimator}+")
    values.sum().backward()
    assert torch.equal(values.detach(), approx_kl(POLICY, REFERENCE, estimator))
    torch.testing.assert_close(policy.grad, POLICY - REFERENCE)


@pytest.mark.parametrize("estimator", sorted([*ESTIMATORS, *(f"{name}+" for name in ESTIMATORS)]))
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), float("-inf")])
def test_masked_junk_adds_neither_value_nor_gradient(estimator, junk):
    policy = torch.tensor([-1.0, junk], dtype=torch.float64).requires_grad_()
    reference = torch.tensor([-1.5, junk], dtype=torch.float64)
    values = approx_kl(policy, reference, estimator, torch.tensor([True, False]))
    values.sum().backward()
    assert values[1] == 0
    assert policy.grad[1] == 0
    assert torch.isfinite(policy.grad).all()


def test_k3_stays_finite_for_hopeless_tokens():
    policy = torch.tensor([-1e4, 0.0], requires_grad=True)
    values = approx_kl(policy, torch.tensor([0.0, -1e4]), "k3")
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert values[1] == 1e4 - 1
    assert policy.grad.tolist() == [0, 1], "what the reference finds hopeless is pulled down"


def test_a_clamp_takes_the_gradient_of_what_it_limits_and_a_plus_keeps_it():
    """d = 8: k3 is e^8 − 9 = 2972, and its gradient 1 − e^8 = −2980; d = 2: e² − 3 = 4.39, gradient 1 − e²."""
    policy = torch.tensor([-9.0, -3.0], dtype=torch.float64, requires_grad=True)
    reference = torch.full((2,), -1.0, dtype=torch.float64)
    for estimator, pulls in (("k3", [0, 1 - math.e**2]), ("k3+", [-8, -2])):
        values = approx_kl(policy, reference, estimator, clamp=10.0)
        assert values.tolist() == pytest.approx([10, math.e**2 - 3])
        (gradient,) = torch.autograd.grad(values.sum(), policy)
        assert gradient.tolist() == pytest.approx(pulls)


def test_k3_keeps_its_precision_near_zero():
    """exp(d) - 1 - d in float32 would round to 0 or below it; the right value is d**2 / 2."""
    values = approx_kl(torch.zeros(1), torch.tensor([1e-3]), "k3")
    torch.testing.assert_close(values, torch.tensor([5e-7]), rtol=1e-2, atol=0)


def test_unknown_estimator_names_the_nearest():
    with pytest.raises(ValueError, match="unknown KL estimator 'k33'; did you mean k3"):
        approx_kl(POLICY, REFERENCE, "k33")


def test_the_controller_moves_by_at_most_a_fifth_towards_its_target():
    """β ← β·(1 + clip(KL/target − 1, ±0.2)·n/horizon): 0.5·(1 + 0.1·0.5), then clipped up, then clipped down."""
    controller = KLController(0.5, target=0.1, horizon=20)
    controller.update(0.11, samples=10)
    assert controller.coefficient == pytest.approx(0.525)
    controller.update(9.0, samples=10)
    assert controller.coefficient == pytest.approx(0.525 * 1.1)
    controller.update(-1.0, samples=20)
    assert controller.coefficient == pytest.approx(0.525 * 1.1 * 0.8)


def test_the_controller_stays_positive_however_large_the_batch():
    controller = KLController(0.5, target=0.1, horizon=1)
    for _ in range(50):
        controller.update(-1.0, samples=1000)
    assert controller.coefficient == pytest.approx(0.5 * 0.8**50)


def test_without_a_target_the_coefficient_stays():
    controller = KLController(0.3)
    controller.update(100.0, samples=10000)
    assert controller.coefficient == 0.3


def test_full_divergences_cannot_be_had_from_sampled_tokens():
    with pytest.raises(ValueError, match="unknown KL estimator 'full'"):
        approx_kl(POLICY, REFERENCE, "full")
