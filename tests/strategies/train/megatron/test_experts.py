"""The experts of a layer as grouped products; that whole steps are those of other back ends is tested in every layout."""

import pytest
import torch
from train_specs import train_spec

from roll.core.workers.train_interface import RankContext

pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")
from roll.strategies.train.megatron import model as experts
from roll.strategies.train.megatron.strategy import MegatronStrategy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("counts", [[5, 0, 7, 1], [0, 0, 0, 13], [0, 0, 0, 0]], ids=str)
def test_a_grouped_product_and_its_gradients_are_those_of_each_expert(counts, dtype):
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(16, 24, generator=draw).to(dtype).requires_grad_() for _ in counts]
    x = torch.randn(sum(counts), 24, generator=draw).to(dtype).requires_grad_()
    grad = torch.randn(sum(counts), 16, generator=draw).to(dtype)
    ends = torch.tensor(counts).cumsum(0).int()
    got = experts.GroupedProduct.apply(x, ends, *weights)
    expected = torch.cat([rows @ w.T for rows, w in zip(x.split(counts), weights, strict=True)])
    close = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 0.1}
    torch.testing.assert_close(got, expected, **close)
    for a, b in zip(
        torch.autograd.grad(got, (x, *weights), grad), torch.autograd.grad(expected, (x, *weights), grad), strict=True
    ):
        torch.testing.assert_close(a, b, **close)


def test_no_copy_of_the_weights_is_kept_for_the_gradient():
    weights = [torch.randn(16, 24).requires_grad_() for _ in range(4)]
    x, kept = torch.randn(8, 24).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        experts.GroupedProduct.apply(x, torch.tensor([2, 4, 6, 8]).int(), *weights)
    own = {tensor.data_ptr() for tensor in (x, *weights)}
    assert sum(tensor.numel() for tensor in kept if tensor.data_ptr() not in own) == 4  # `ends`


@pytest.mark.slow
@pytest.mark.parametrize(("model", "grouped"), [("qwen3_moe", True), ("qwen3_moe_of_three", False)])
def test_each_of_two_layers_takes_two_products_unless_its_matrices_are_no_size_for_them(
    megatron_models, rank_program, monkeypatch, model, grouped
):
    calls, product = [], experts.grouped_mm
    monkeypatch.setattr(experts, "grouped_mm", lambda *args, **options: calls.append(args) or product(*args, **options))
    strategy = MegatronStrategy(RankContext(), train_spec("megatron_train", megatron_models / model, **rank_program.OPTIONS))
    strategy.log_probs(rank_program.make_batch(0))
    strategy.close()
    assert bool(calls) is grouped and len(calls) % 4 == 0
