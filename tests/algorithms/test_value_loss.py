"""The critic's loss: golden values, its gradient, what may not matter, and that it adds up."""

import pytest
import torch

from roll.core.algorithms.loss_metrics import reduce_metrics
from roll.core.algorithms.value_loss import ValueLossSpec, value_loss

TRUE = torch.tensor([[True, True, False, True]])


def loss_of(values, old, returns, mask=TRUE, clip=None, tokens=None):
    return value_loss(values, old, returns, mask, ValueLossSpec(clip=clip), tokens or int(mask.sum()))


def test_golden_values():
    values = torch.tensor([[1.0, 3.0, 9.0, 0.0]])
    old = torch.tensor([[0.0, 3.5, 9.0, 2.0]])
    returns = torch.tensor([[0.0, 5.0, -9.0, 0.0]])
    # Errors 1, −2, 0; without a clip ½·(1 + 4 + 0) / 3.
    assert float(loss_of(values, old, returns)[0]) == pytest.approx(2.5 / 3)
    # Clip 0.25: V_c = 0.25, 3.25, 1.75, errors 0.25, −1.75, 1.75. The larger ones: 1, 4 and 1.75² = 3.0625.
    loss, metrics = loss_of(values, old, returns, clip=0.25)
    assert float(loss) == pytest.approx(0.5 * (1 + 4 + 3.0625) / 3)
    told = reduce_metrics([metrics])
    assert told["critic/value_clipfrac"] == pytest.approx(1 / 3)
    assert told["critic/values/mean"] == pytest.approx(4 / 3)
    assert told["critic/returns/mean"] == pytest.approx(5 / 3)
    # Var(error) over Var(return), n-fold: errors −1, 2, 0 have 5 − 1/3, returns 0, 5, 0 have 25 − 25/3.
    assert told["critic/explained_variance"] == pytest.approx(1 - (5 - 1 / 3) / (25 - 25 / 3))


@pytest.mark.parametrize("clip", [None, 0.3])
def test_gradient_is_that_of_finite_differences(clip):
    generator = torch.Generator().manual_seed(1)
    values, old, returns = (torch.randn(3, 5, dtype=torch.float64, generator=generator) for _ in range(3))
    mask = torch.rand(3, 5, generator=generator) < 0.7
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: loss_of(v, old, returns, mask, clip)[0], (values,), eps=1e-6, atol=1e-7)


def test_a_value_that_the_clip_keeps_from_the_return_is_not_moved():
    """PPO's clip: having gone further than the clip towards the return, a value gets no more gradient."""
    values = torch.tensor([[1.0]], requires_grad=True)
    loss_of(values, torch.tensor([[0.0]]), torch.tensor([[2.0]]), torch.tensor([[True]]), clip=0.5)[0].backward()
    assert float(values.grad) == 0.0
    away = torch.tensor([[-1.0]], requires_grad=True)
    loss_of(away, torch.tensor([[0.0]]), torch.tensor([[2.0]]), torch.tensor([[True]]), clip=0.5)[0].backward()
    assert float(away.grad) == -3.0


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
def test_masked_entries_change_nothing(junk):
    generator = torch.Generator().manual_seed(2)
    fields = [torch.randn(2, 6, generator=generator) for _ in range(3)]
    mask = torch.tensor([[False, True, True, False, True, False], [False] * 6])
    results = []
    for filled in (fields, [field.masked_fill(~mask, junk) for field in fields]):
        values = filled[0].clone().requires_grad_()
        loss, metrics = loss_of(values, filled[1], filled[2], mask, clip=0.2)
        loss.backward()
        results.append((float(loss.detach()), values.grad, reduce_metrics([metrics])))
    assert results[0][0] == results[1][0] and results[0][2] == results[1][2]
    assert torch.equal(results[0][1], results[1][1])


def test_micro_batches_add_up_to_the_batch():
    generator = torch.Generator().manual_seed(3)
    values, old, returns = (torch.randn(4, 5, generator=generator) for _ in range(3))
    mask = torch.rand(4, 5, generator=generator) < 0.6
    whole, metrics = loss_of(values, old, returns, mask, clip=0.2)
    tokens = int(mask.sum())
    parts = [loss_of(values[i], old[i], returns[i], mask[i], 0.2, tokens) for i in (slice(0, 1), slice(1, 4))]
    assert float(sum(loss for loss, _ in parts)) == pytest.approx(float(whole))
    assert reduce_metrics([part for _, part in parts]) == pytest.approx(reduce_metrics([metrics]))


def test_equal_returns_have_no_explained_variance():
    constant = torch.full((1, 4), 0.3)
    assert "critic/explained_variance" not in reduce_metrics([loss_of(torch.rand(1, 4), constant, constant)[1]])


def test_no_token_is_a_loss_of_zero():
    values = torch.ones(1, 2, requires_grad=True)
    loss, _ = value_loss(values, values.detach(), values.detach(), torch.zeros(1, 2).bool(), ValueLossSpec(clip=0.1), 0)
    loss.backward()
    assert float(loss.detach()) == 0.0 and values.grad.abs().sum() == 0
