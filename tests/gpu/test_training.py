"""FSDP2, Megatron and DeepSpeed on one GPU.

Tolerances: bf16 keeps 8 significant bits, so log-probs are compared in the mean (0.02); those of other weights differ by about
1. In float32 GPU and CPU differ by the order of additions (1e-4), which two steps enlarge: of FSDP2 on a CPU from 3e-6 to 1.2e-4
where weights are moved by half a rounding (1e-3 here).
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from train_specs import train_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.strategies.train import hf_train
from roll.strategies.train.checkpoint_files import Snapshot
from roll.strategies.train.logprobs import head_logprobs

BF16_MEAN = 2e-2
FP32, AFTER_STEPS = 1e-4, 1e-3
VOCABULARY = 256
SUPERVISED = LossSpec(pg_variant="vanilla")
"""With advantages of 1 and weight 1: minus the mean log-prob."""
# pytest keeps this order. DeepSpeed comes last: it leaves a process group behind that Megatron does not share.
BACKENDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fsdp2": ("torch", "fsdp2_train", {}),
    "megatron": ("megatron", "megatron_train", {}),
    "deepspeed-zero1": ("deepspeed", "deepspeed_train", {"zero": {"stage": 1}}),
    "deepspeed-zero3": ("deepspeed", "deepspeed_train", {"zero": {"stage": 3}}),
}
OFFLOADED = {"fsdp2": 14, "megatron": 14, "deepspeed-zero1": 8, "deepspeed-zero3": 8}
"""Bytes a parameter that `offload` frees in bf16 training after a step, at least. fsdp2,
megatron: bf16 weights, float32 masters, moments (and Megatron's gradient sums); deepspeed: the moments, as documented."""

Make = Callable[..., Any]


@pytest.fixture(scope="module", params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    package = BACKENDS[request.param][0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return str(request.param)


@pytest.fixture
def make(backend: str, device: str, model_path: str, train_lab: SimpleNamespace) -> Iterator[Make]:
    """Strategies of the back end in bf16, closed at the end."""
    made = []

    def build(on: str = device, name: str = BACKENDS[backend][1], folder: str = model_path, **options: Any) -> Any:
        own = BACKENDS[backend][2] if name == BACKENDS[backend][1] else {}
        chosen = {**train_lab.OPTIONS, "dtype": "bf16", "max_tokens_per_microbatch": 64, **own, **options}
        made.append(make_train_strategy(RankContext(device=on), train_spec(name, folder, **chosen)))
        return made[-1]

    yield build
    for strategy in made:
        strategy.close()


@pytest.fixture(scope="module")
def batch(train_lab: SimpleNamespace) -> TokenBatch:
    return train_lab.make_batch(0, samples=24, vocab=VOCABULARY)


def supervised(batch: TokenBatch, strategy: Any) -> TokenBatch:
    return batch.with_(advantages=batch.loss_mask.float(), behaviour_logprobs=strategy.log_probs(batch))


def mean_difference(one: torch.Tensor, other: torch.Tensor, batch: TokenBatch) -> float:
    return float((one - other)[batch.loss_mask].abs().mean())


def reference_logprobs(infer_lab: SimpleNamespace, batch: TokenBatch, seed: int = 0) -> torch.Tensor:
    """[N], float32 on the CPU."""
    model = infer_lab.make_model(seed)
    expected = torch.zeros(batch.num_tokens)
    bounds = zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), batch.temperatures.tolist(), strict=True)
    for start, stop, temperature in bounds:
        tokens = batch.tokens[start:stop].tolist()
        expected[start + 1 : stop] = infer_lab.true_logprobs(model, tokens[:1], tokens[1:], temperature)
    return expected * batch.loss_mask


def saved_state(strategy: Any, folder: Any) -> dict[str, torch.Tensor]:
    return written(strategy, strategy.snapshot(), folder)


def written(strategy: Any, snapshot: Snapshot, folder: Any) -> dict[str, torch.Tensor]:
    strategy.write(snapshot, folder)
    return {**load_file(folder / "model" / "model.safetensors"), **load_file(folder / "optimizer.safetensors")}


def test_bf16_log_probs_are_near_those_of_float32(make: Make, batch: TokenBatch, infer_lab: SimpleNamespace) -> None:
    got = make().log_probs(batch)
    assert 0 < mean_difference(got, reference_logprobs(infer_lab, batch), batch) <= BF16_MEAN
    assert mean_difference(got, reference_logprobs(infer_lab, batch, seed=1), batch) > 0.5
    assert not got[~batch.loss_mask].any()


def test_float32_on_the_gpu_is_that_of_the_cpu(make: Make, batch: TokenBatch, train_lab: SimpleNamespace) -> None:
    there, here = make(dtype="fp32"), make("cpu", "fsdp2_train", dtype="fp32")
    torch.testing.assert_close(there.log_probs(batch), here.log_probs(batch), rtol=0, atol=FP32)
    for _ in range(2):
        got, expected = (s.train_step(batch, train_lab.LOSS, train_lab.totals(batch)) for s in (there, here))
        assert got == pytest.approx(expected, rel=FP32, abs=1e-5)
    assert got["actor_train/grad_norm"] > 0
    torch.testing.assert_close(there.log_probs(batch), here.log_probs(batch), rtol=0, atol=AFTER_STEPS)


def test_samples_that_begin_alike(make: Make, batch: TokenBatch, train_lab: SimpleNamespace, infer_lab: SimpleNamespace) -> None:
    """Their common prefix is computed once (FSDP2, DeepSpeed), behind masks that accelerators have kernels of their own for."""
    rows = batch.tokens.split(batch.lengths.tolist())
    batch = batch.with_(tokens=torch.cat([torch.cat([rows[0][:3], row[3:]]) for row in rows]))
    assert 0 < mean_difference(make().log_probs(batch), reference_logprobs(infer_lab, batch), batch) <= BF16_MEAN
    there, here = make(dtype="fp32"), make("cpu", "fsdp2_train", dtype="fp32")
    got, expected = (s.train_step(batch, train_lab.LOSS, train_lab.totals(batch)) for s in (there, here))
    assert got == pytest.approx(expected, rel=FP32, abs=1e-5)


def test_one_call_of_the_kernel_for_rows_is_what_many_are(
    make: Make, backend: str, batch: TokenBatch, train_lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without a common prefix, whose keys are copied."""
    if backend == "megatron":
        pytest.skip("pads its rows")
    rows = batch.tokens.split(batch.lengths.tolist())
    alike = batch.with_(tokens=torch.cat([torch.cat([rows[0][:3], row[3:]]) for row in rows]))
    packed = make()
    monkeypatch.setattr(hf_train, "packs", lambda device, dtype, config: False)
    masked = make()
    for each in (batch, alike):
        assert 0 < mean_difference(packed.log_probs(each), masked.log_probs(each), each) <= BF16_MEAN
        one, many = (s.train_step(each, train_lab.LOSS, train_lab.totals(each)) for s in (packed, masked))
        assert one["actor_train/grad_norm"] == pytest.approx(many["actor_train/grad_norm"], rel=BF16_MEAN)


def test_training_lowers_the_supervised_loss(make: Make, batch: TokenBatch, train_lab: SimpleNamespace) -> None:
    strategy = make(learning_rate=1e-3, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0)
    batch = supervised(batch, strategy)
    losses = []
    for _ in range(6):
        losses.append(-float(strategy.log_probs(batch)[batch.loss_mask].mean()))
        metrics = strategy.train_step(batch, SUPERVISED, train_lab.totals(batch))
        assert math.isfinite(metrics["actor_train/grad_norm"]) and metrics["actor_train/skipped_steps"] == 0
    assert all(after < before for before, after in itertools.pairwise(losses)), losses
    assert losses[-1] < losses[0] - 1


def test_a_step_that_is_not_finite_is_skipped(
    make: Make, batch: TokenBatch, train_lab: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    strategy, loss, totals = make(), train_lab.LOSS, train_lab.totals(batch)
    strategy.train_step(batch, loss, totals)
    before = saved_state(strategy, tmp_path_factory.mktemp("before"))
    advantages = batch.advantages.clone()
    advantages[batch.loss_mask.nonzero()[0]] = torch.nan
    assert strategy.train_step(batch.with_(advantages=advantages), loss, totals)["actor_train/skipped_steps"] == 1
    after = saved_state(strategy, tmp_path_factory.mktemp("after"))
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    metrics = strategy.train_step(batch, loss, totals)
    assert math.isfinite(metrics["actor_train/grad_norm"]) and metrics["actor_train/skipped_steps"] == 1
    moved = saved_state(strategy, tmp_path_factory.mktemp("moved"))
    assert any(not torch.equal(moved[name], before[name]) for name in before)


def test_offload_frees_the_memory_and_reload_brings_all_back(
    make: Make,
    backend: str,
    batch: TokenBatch,
    train_lab: SimpleNamespace,
    infer_lab: SimpleNamespace,
    large_model_path: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of a model whose moments are larger than what the allocator gives back: 20 MiB at once, where segments grow
    (expandable_segments), as they do in a run. ZeRO-3's of a model of 4 million parameters are 15 MiB each."""
    strategy = make(folder=large_model_path)
    strategy.train_step(batch, train_lab.LOSS, train_lab.totals(batch))
    snapshot = strategy.snapshot()
    state = written(strategy, snapshot, tmp_path_factory.mktemp("before"))
    expected = strategy.log_probs(batch)
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    strategy.offload()
    freed, returned = allocated - torch.cuda.memory_allocated(), reserved - torch.cuda.memory_reserved()
    least = OFFLOADED[backend] * infer_lab.make_model(width=512).num_parameters()
    assert freed >= 0.98 * least
    assert returned >= 0.5 * least  # to the driver, for an engine in another process; blocks that are not quite empty stay
    late = written(strategy, snapshot, tmp_path_factory.mktemp("meanwhile"))
    assert late.keys() == state.keys() and all(torch.equal(late[name], state[name]) for name in state)

    strategy.reload()
    assert torch.cuda.memory_allocated() >= allocated - freed + 0.98 * least
    assert torch.equal(strategy.log_probs(batch), expected)
    again = saved_state(strategy, tmp_path_factory.mktemp("after"))
    assert again.keys() == state.keys() and all(torch.equal(again[name], state[name]) for name in state)
    metrics = strategy.train_step(batch, train_lab.LOSS, train_lab.totals(batch))
    assert math.isfinite(metrics["actor_train/grad_norm"]) and metrics["actor_train/skipped_steps"] == 0


def test_grouped_products_of_experts_alone(device: str) -> None:
    pytest.importorskip("megatron.core")
    from roll.strategies.train.megatron.model import GroupedProduct

    counts = [300, 0, 17, 195]
    weights = [torch.randn(256, 128, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in counts]
    x = torch.randn(sum(counts), 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    grouped = GroupedProduct.apply(x, torch.tensor(counts).cumsum(0).to(device, torch.int32), *weights)
    apart = torch.cat([rows @ w.T for rows, w in zip(x.split(counts), weights, strict=True)])
    grad = torch.randn_like(apart)
    got, expected = ([out, *torch.autograd.grad(out, (x, *weights), grad)] for out in (grouped, apart))
    for one, other in zip(got, expected, strict=True):
        assert float((one - other).norm()) <= 1e-2 * float(other.norm())


def test_a_compiled_head_of_a_large_vocabulary_alone(device: str) -> None:
    """In bf16, against the definition in float64 of the same rounded logits: values to 1e-3, gradients to 1 %."""
    rows, hidden_size, vocabulary = 3000, 64, 151_936
    hidden, weight = (
        (torch.randn(*shape, device=device) * scale).bfloat16().requires_grad_()
        for shape, scale in (((rows, hidden_size), 1.0), ((vocabulary, hidden_size), 0.3))
    )
    targets = torch.randint(vocabulary, (rows,), device=device)
    temperature = torch.full((rows,), 0.8, device=device)
    got = head_logprobs(hidden, weight, None, targets, temperature, "differentiable", fast=True)
    gradients = torch.autograd.grad(got[0].sum() + 0.5 * got[1].sum(), (hidden, weight))
    sums = [torch.zeros(leaf.shape, dtype=torch.float64, device=device) for leaf in (hidden, weight)]
    for start in range(0, rows, 500):
        part = slice(start, start + 500)
        leaves = [hidden.detach()[part].clone().requires_grad_(), weight.detach().clone().requires_grad_()]
        log_p = ((leaves[0] @ leaves[1].t()).double() / 0.8).log_softmax(1)
        said = log_p.gather(1, targets[part, None])[:, 0], -(log_p.exp() * log_p).sum(1)
        for one, other in zip(got, said, strict=True):
            torch.testing.assert_close(one[part].double(), other, rtol=0, atol=1e-3)
        of_hidden, of_weight = torch.autograd.grad(said[0].sum() + 0.5 * said[1].sum(), leaves)
        sums[0][part] = of_hidden.double()
        sums[1] += of_weight.double()
    for mine, exact in zip(gradients, sums, strict=True):
        assert float((mine.double() - exact).norm()) <= 1e-2 * float(exact.norm())


def test_a_compiled_head_with_logits_in_float32_alone(device: str) -> None:
    """Against float64 of the same bf16 weights: 1e-4 nats, of logits up to 20, and gradients to 1 %."""
    rows, hidden_size, vocabulary = 500, 1024, 32_000
    hidden, weight = (
        (torch.randn(*shape, device=device) * scale).bfloat16().requires_grad_()
        for shape, scale in (((rows, hidden_size), 1.0), ((vocabulary, hidden_size), 0.15))
    )
    targets, temperature = torch.randint(vocabulary, (rows,), device=device), torch.full((rows,), 0.8, device=device)
    got = head_logprobs(hidden, weight, None, targets, temperature, "differentiable", fast=True, fp32=True)
    gradients = torch.autograd.grad(got[0].sum() + 0.5 * got[1].sum(), (hidden, weight))
    leaves = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight)]
    log_p = (leaves[0] @ leaves[1].t() / 0.8).log_softmax(1)
    said = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)
    for one, other in zip(got, said, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-4)
    for mine, exact in zip(gradients, torch.autograd.grad(said[0].sum() + 0.5 * said[1].sum(), leaves), strict=True):
        assert float((mine.double() - exact).norm()) <= 1e-2 * float(exact.norm())
