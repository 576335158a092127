"""The contract of policy losses: properties that every registered variant has, the registry, a user's own function.

A new variant is under all of them by being registered. Values worked by hand are in test_pg_variants.py."""

import math

import pytest
import torch

from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import LossInputs, policy_loss, policy_losses, traits_of
from roll.core.configs.losses import PolicyLossArgs
from roll.prepare.own_code import try_policy_loss

get_policy_loss()
VARIANTS = policy_losses.names
DOUBLE = torch.float64
ADVANTAGES = torch.tensor([[1.0, 0.5, 2.0], [-2.0, -1.0, -0.5]], dtype=DOUBLE)
SCORES = torch.tensor([1.0, 0.0])
EVERYTHING = torch.ones(2, 3, dtype=torch.bool)

# On policy the gradient of every variant is that of REINFORCE, −A, but for what its formula adds.
ON_POLICY = {"opmd": -ADVANTAGES / 2, "asymre": -(ADVANTAGES + 0.1)}


class Frozen:
    """Makes stop-gradients constants of a point: the first evaluation records every `detach`, the others repeat its values."""

    def __init__(self, monkeypatch):
        self.recorded, self.position, self.replay = [], 0, False
        detach = torch.Tensor.detach
        frozen = self

        def fake(tensor):
            if frozen.replay:
                frozen.position += 1
                return frozen.recorded[frozen.position - 1]
            frozen.recorded.append(detach(tensor).clone())
            return frozen.recorded[-1]

        monkeypatch.setattr(torch.Tensor, "detach", fake)

    def again(self):
        self.replay, self.position = True, 0


def random_point(seed):
    """Ratios between 0.5 and 2 with both signs of advantage, in both sequences."""
    generator = torch.Generator().manual_seed(seed)
    ratio = torch.empty(2, 3, dtype=DOUBLE).uniform_(0.5, 2.0, generator=generator)
    logprobs = -torch.rand(2, 3, dtype=DOUBLE, generator=generator) - 0.1
    advantages = torch.randn(2, 3, dtype=DOUBLE, generator=generator)
    return logprobs, logprobs - ratio.log(), advantages


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("args", [{}, {"dual_clip_c": 1.5, "cispo_use_unified_mask": True, "topr_ratio_level": "token"}])
@pytest.mark.parametrize("seed", [3, 4])
def test_gradient_matches_finite_differences(variant, args, seed, monkeypatch):
    """Central differences of step 1e-6 in float64, stop-gradients held. The points are away from the kinks of clips."""
    at, anchor, advantages = random_point(seed)
    knobs, step = PolicyLossArgs(**args), 1e-6
    frozen = Frozen(monkeypatch)

    def total(logprobs):
        return get_policy_loss(variant)(LossInputs(logprobs, anchor, advantages, EVERYTHING, SCORES), knobs)[0].sum()

    leaf = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(leaf), leaf)
    numeric = torch.zeros_like(at)
    for row in range(2):
        for column in range(3):
            values = []
            for sign in (1, -1):
                moved = at.clone()
                moved[row, column] += sign * step
                frozen.again()
                values.append(total(moved.requires_grad_()).item())
            numeric[row, column] = (values[0] - values[1]) / (2 * step)
    monkeypatch.undo()
    torch.testing.assert_close(gradient, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_on_policy_every_variant_has_the_gradient_of_reinforce(variant):
    logprobs = torch.full((2, 3), -1.0, dtype=DOUBLE, requires_grad=True)
    loss, _ = get_policy_loss(variant)(LossInputs(logprobs, logprobs, ADVANTAGES, EVERYTHING, SCORES), PolicyLossArgs())
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(gradient, ON_POLICY.get(variant, -ADVANTAGES), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("log_ratio", [1e4, -1e4])
def test_extreme_ratios_stay_finite(variant, log_ratio):
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    values = LossInputs(logprobs, logprobs.detach() - log_ratio, ADVANTAGES.float(), EVERYTHING, SCORES)
    loss, sums = get_policy_loss(variant)(values, PolicyLossArgs())
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(logprobs.grad).all()
    assert all(torch.isfinite(value) for value in sums.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_sequence_is_not_changed_by_its_neighbours(variant):
    """No statistic of a micro-batch: the loss and gradient of a row are the same alone and beside others, and with padding."""
    at, anchor, advantages = random_point(5)
    mask = torch.tensor([[True, True, False], [True, False, True]])

    def evaluate(rows, width):
        pad = (0, width - 3)
        logprobs = torch.nn.functional.pad(at[rows], pad, value=math.nan).requires_grad_()
        fields = [torch.nn.functional.pad(field[rows], pad, value=math.nan) for field in (anchor, advantages)]
        wide = torch.nn.functional.pad(mask[rows], pad)
        loss, _ = get_policy_loss(variant)(LossInputs(logprobs, *fields, wide, SCORES[rows]), PolicyLossArgs())
        loss = torch.where(wide, loss, 0.0)
        return loss[:, :3], torch.autograd.grad(loss.sum(), logprobs)[0][:, :3]

    together = evaluate([0, 1], 3)
    for row in (0, 1):
        for got, whole in zip(evaluate([row], 7), together, strict=True):
            torch.testing.assert_close(got[0], whole[row], rtol=1e-12, atol=1e-14)


def test_the_default_variant_is_ppo():
    assert get_policy_loss(None) is get_policy_loss() is get_policy_loss("ppo")


def test_unknown_variant_names_the_nearest():
    with pytest.raises(ValueError, match="unknown pg_variant 'cipso'; did you mean cispo"):
        get_policy_loss("cipso")


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered twice"):
        policy_losses("ppo")(lambda inputs, args: (inputs.logprobs, {}))


@pytest.fixture
def users(tmp_path, monkeypatch):
    """Writes a module of the user's, importable by its name."""

    def write(name, body):
        (tmp_path / f"{name}.py").write_text(body)
        monkeypatch.syspath_prepend(tmp_path)

    return write


def test_dotted_name_is_a_users_function(users):
    users("my_losses", "def doubled(inputs, args):\n    return -2 * inputs.advantages * inputs.logprobs, {}\n")
    function = try_policy_loss("my_losses.doubled", PolicyLossArgs())
    assert function(LossInputs(*[torch.ones(1, 1)] * 3, torch.ones(1, 1, dtype=torch.bool), torch.ones(1)), None)[0].item() == -2
    assert not traits_of(function).needs_proximal


@pytest.mark.parametrize("name", ["no_such_package.loss", "math.no_such_loss", "math.pi", ".loss"])
def test_bad_dotted_name_is_one_clear_error(name):
    with pytest.raises(ValueError, match="cannot load pg_variant"):
        get_policy_loss(name)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def loss(inputs, args:\n", "cannot load"),
        ("raise RuntimeError('no licence')\n", "cannot load .* no licence"),
        ("def loss(inputs):\n    return inputs.logprobs, {}\n", "TypeError"),
        ("def loss(inputs, args):\n    return inputs.logprobs.sum(), {}\n", "per-token loss"),
        ("def loss(inputs, args):\n    return inputs.advantages, {}\n", "with gradient"),
        ("def loss(inputs, args):\n    return inputs.logprobs, {'share': 0.5}\n", "fails on a small batch"),
        ("def loss(inputs, args):\n    return inputs.logprobs\n", "fails on a small batch"),
        ("def loss(inputs, args):\n    return inputs.logprobs * float('nan'), {}\n", r"is not finite on a small batch: \[nan"),
        (
            "def loss(inputs, args):\n    return (inputs.logprobs - inputs.logprobs.detach()).abs() ** 0.5, {}\n",
            "is not finite",
        ),
    ],
)
def test_a_users_mistake_is_found_before_training(users, body, message, request):
    name = f"bad_{abs(hash(request.node.name))}"
    users(name, body)
    with pytest.raises(ValueError, match=message):
        try_policy_loss(f"{name}.loss", PolicyLossArgs())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_passes_the_trial(variant):
    assert try_policy_loss(variant, PolicyLossArgs()) is get_policy_loss(variant)


def test_traits_are_declared_by_a_decorator():
    @policy_loss(needs_proximal=True)
    def mine(inputs, args):
        return inputs.logprobs, {}

    assert traits_of(mine).needs_proximal
    assert traits_of(mine).anchor == "step"


@pytest.mark.parametrize(
    "args",
    [
        {"pg_clip_low": -0.1},
        {"dual_clip_c": 1.0},
        {"tis_lower_bound": 2.0},
        {"tis_lower_bound": -1.0},
        {"kimi15_tau": math.nan},
        {"asymre_baseline_shift": math.nan},
        {"sapo_tau_pos": 0.0},
        {"topr_ratio_level": "batch"},
    ],
)
def test_senseless_knobs_are_refused(args):
    with pytest.raises(ValueError, match=next(iter(args))):
        PolicyLossArgs(**args)


def test_mismatched_shapes_are_refused():
    logprobs = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="advantages"):
        LossInputs(logprobs, logprobs, ADVANTAGES[:1], EVERYTHING, SCORES)


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
