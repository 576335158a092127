"""Compiled layers and heads say what they say eagerly, are compiled a few times whatever comes, and do not end a run that has no
compiler. Graphs are made and run without code for them, but in the test that names inductor: that takes a minute."""

import functools
import logging
import threading

import pytest
import torch
from tiny_models import numbered_tokenizer, tiny_mixture
from torch._dynamo.utils import counters
from train_specs import train_spec

from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.strategies.train import compiled

COMPILATIONS = 20
"""Of a whole run: five pieces of a layer and of the head, with gradients and without, and where a row has one token."""


@pytest.fixture
def backend(monkeypatch):
    """Chooses what graphs are compiled by. What others have compiled is forgotten, before and after."""
    plain = torch.compile

    def choose(name):
        torch._dynamo.reset()
        compiled.compiled.cache_clear()
        counters.clear()
        monkeypatch.setattr(torch, "compile", functools.partial(plain, backend=name))

    choose("aot_eager")
    yield choose
    torch._dynamo.reset()
    compiled.compiled.cache_clear()


@pytest.fixture(scope="module")
def mixture_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    tiny_mixture(37).save_pretrained(path)
    numbered_tokenizer(37).save_pretrained(path)
    return path


def run(folder, rank_program, batches, name="fsdp2_train", **options):
    """Log-probs of each batch before its step, metrics of the steps, and the weights after them."""
    strategy = make_train_strategy(RankContext(), train_spec(name, folder, **{**rank_program.OPTIONS, **options}))
    said, metrics = [], []
    for batch in batches:
        said.append(strategy.log_probs(batch))
        if name.endswith("_train"):
            metrics.append(strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch)))
    weights = rank_program.exported(strategy)
    strategy.close()
    return said, metrics, weights


def assert_same(got, expected, tolerance):
    for one, other in zip(got[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
    for one, other in zip(got[1], expected[1], strict=True):
        assert one == pytest.approx(other, rel=20 * tolerance, abs=tolerance)
    for name, tensor in expected[2].items():
        if "k_proj.bias" not in name:  # softmax does not see it: its gradient is rounding alone
            torch.testing.assert_close(got[2][name], tensor, rtol=0, atol=10 * tolerance * float(tensor.abs().max()), msg=name)


def routed(batch: TokenBatch) -> TokenBatch:
    draw = torch.Generator().manual_seed(int(batch.num_tokens))
    return batch.with_(routes=torch.rand(batch.num_tokens, 3, 8, generator=draw).argsort(-1)[..., :2].to(torch.uint8))


CASES = {
    "plain": {},
    "recomputed": {"gradient_checkpointing": True},
    "adapters": {"lora_target": "q_proj,v_proj,down_proj", "lora_rank": 3},
    "frozen": {"name": "fsdp2_infer"},
    "padded rows": {"attn_implementation": "eager"},
    "zero1": {"name": "deepspeed_train", "zero": {"stage": 1}},
    "zero3": {"name": "deepspeed_train", "zero": {"stage": 3}},
}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_eager_layers(backend, model_path, rank_program, case):
    """Float32: 3e-6 of log-probs."""
    if "zero" in case:
        pytest.importorskip("deepspeed", reason="needs requirements/deepspeed.txt")
    batches = [rank_program.make_batch(seed) for seed in range(3)]
    expected = run(model_path, rank_program, batches, **CASES[case])
    assert not counters["stats"]
    got = run(model_path, rank_program, batches, compile=True, **CASES[case])
    assert 0 < counters["stats"]["unique_graphs"] <= COMPILATIONS
    assert_same(got, expected, 3e-6)


@pytest.mark.parametrize("recomputed", [False, True])
def test_experts_are_replayed_outside_the_graphs(backend, mixture_path, rank_program, recomputed):
    batches = [routed(rank_program.make_batch(seed)) for seed in range(2)]
    options = {"gradient_checkpointing": recomputed}
    expected = run(mixture_path, rank_program, batches, **options)
    got = run(mixture_path, rank_program, batches, compile=True, **options)
    assert 0 < counters["stats"]["unique_graphs"] <= COMPILATIONS
    assert_same(got, expected, 3e-6)
    assert got[1][0]["actor/router_replay_changed"] > 0


def test_two_hundred_micro_batches_of_any_lengths_compile_no_more_than_a_few(backend, model_path, rank_program):
    strategy = make_train_strategy(
        RankContext(), train_spec("fsdp2_train", model_path, **{**rank_program.OPTIONS, "compile": True})
    )
    ran = 0
    plan = strategy._scorer.plan

    def counted(batch, budget):
        nonlocal ran
        ran += len(plan(batch, budget))
        return plan(batch, budget)

    strategy._scorer.plan = counted
    for seed in range(32):
        batch = rank_program.make_batch(seed, samples=4 + seed % 9)
        strategy.log_probs(batch)
        strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    strategy.close()
    assert ran >= 200
    assert 0 < counters["stats"]["unique_graphs"] <= COMPILATIONS


def test_a_compilation_that_fails_is_told_once_and_the_run_goes_on(backend, model_path, rank_program, monkeypatch, caplog):
    def refuse(graph, inputs):
        raise RuntimeError("no compiler here")

    batches = [rank_program.make_batch(seed) for seed in range(2)]
    expected = run(model_path, rank_program, batches)
    backend(refuse)
    compiled.tell_failure.cache_clear()
    with caplog.at_level(logging.WARNING, compiled.__name__):
        got = run(model_path, rank_program, batches, compile=True)
    told = [record.getMessage() for record in caplog.records if record.name == compiled.__name__]
    assert len(told) == 1 and "no compiler here" in told[0]
    assert_same(got, expected, 1e-7)


def test_what_a_backward_pass_compiles_in_a_thread_of_its_own_is_compiled_alike(backend):
    """As on an accelerator, whose backward passes autograd runs in a thread: for each torch has settings of its own."""
    seen = []

    def settings(graph, inputs):
        import torch._functorch.config

        seen.append((torch._dynamo.config.recompile_limit, torch._functorch.config.force_non_lazy_backward_lowering))
        return graph

    backend(settings)
    function = compiled.Compiled(lambda x, n: x * n)
    function(torch.ones(3), 2)
    thread = threading.Thread(target=function, args=(torch.ones(3, dtype=torch.float64), 2))
    thread.start()
    thread.join()
    assert seen == [(compiled.RECOMPILATIONS, True)] * 2


def test_a_function_runs_as_it_is_while_another_thread_compiles(backend, monkeypatch):
    """Two roles in one process, as with `--local`."""
    function = compiled.Compiled(lambda x: x + 1)
    monkeypatch.setattr("torch.fx._symbolic_trace._is_fx_tracing_flag", True)
    assert torch.equal(function(torch.zeros(2)), torch.ones(2))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_by_inductor_the_numbers_are_those_of_eager_layers(backend, model_path, rank_program):
    """As code that a compiler has made. Float32: 3e-6 of log-probs."""
    batches = [rank_program.make_batch(seed) for seed in range(2)]
    expected = run(model_path, rank_program, batches)
    backend("inductor")
    got = run(model_path, rank_program, batches, compile=True)
    assert 0 < counters["stats"]["unique_graphs"] <= COMPILATIONS
    assert_same(got, expected, 3e-6)
