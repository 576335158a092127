"""Logits in float32 of bfloat16 weights: as exact as if the weights were float32, in the head alone and in each back end."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from alive import Alive
from tiny_models import numbered_tokenizer, tiny_qwen2
from train_specs import train_spec
from transformers import Gemma2Config, Gemma2ForCausalLM

from roll.core.data.kept_tokens import KeptSets, KeptTokens
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.plan.memory import HEAD_LOGITS
from roll.strategies.train import logprobs as head
from roll.strategies.train import scorer
from roll.strategies.train.head_output import check_plain_head
from roll.strategies.train.logprobs import head_logprobs
from roll.strategies.train.top_tokens import head_top

ROWS, HIDDEN, VOCABULARY = 64, 256, 1000
EXACT = 1e-5
"""Nats: sums of 256 products in float32, of logits up to 20. Rounded to bfloat16 such a logit is off by up to 0.06."""


@pytest.fixture
def narrow(monkeypatch):
    """Parts of 128 entries, the last of them shorter."""
    monkeypatch.setattr(head, "head_columns", lambda rows, accelerator: 128)


def case(dtype=torch.bfloat16):
    """Hidden states, weights, bias; targets; temperatures; kept sets with the targets."""
    generator = torch.Generator().manual_seed(0)
    sizes, scales = ((ROWS, HIDDEN), (VOCABULARY, HIDDEN), (VOCABULARY,)), (1.0, 0.3, 1.0)
    made = [torch.randn(*size, generator=generator) * scale for size, scale in zip(sizes, scales, strict=True)]
    leaves = [leaf.to(dtype).requires_grad_() for leaf in made]
    targets = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    others = [torch.randperm(VOCABULARY, generator=generator)[:50].tolist() for _ in range(ROWS)]
    sets = [np.array(sorted({int(t), *o}), np.int32) for t, o in zip(targets, others, strict=True)]
    return leaves, targets, torch.tensor([1.0, 0.7, 0.0, 2.0])[torch.arange(ROWS) % 4], KeptSets.of([KeptTokens.of(sets)])


def exact_log_p(leaves, temperature, kept=None):
    """[R, V] by definition, in float64, of the numbers that the leaves have."""
    hidden, weight, *bias = (leaf.double() for leaf in leaves)
    logits = torch.nn.functional.linear(hidden, weight, *bias) / torch.where(temperature == 0, 1.0, temperature)[:, None]
    if kept is not None:
        logits = logits.masked_fill(kept.cut(0, VOCABULARY), -torch.inf)
    return logits.log_softmax(-1)


def of(log_p, targets):
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p.clamp(min=-1e30)).sum(-1)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("with_sets", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_log_probs_and_entropies_are_exact_where_rounded_logits_are_off_by_a_hundredth(bias, with_sets):
    leaves, targets, temperature, kept = case()
    given, sets = leaves if bias else leaves[:2], kept if with_sets else None
    expected = of(exact_log_p(given, temperature, sets), targets)
    errors = {}
    for fp32 in (False, True):
        arguments = (*given[:2], given[2] if bias else None, targets, temperature, "detached", sets)
        got = head_logprobs(*arguments, fp32=fp32)
        assert all(value.dtype == torch.float32 for value in got)
        errors[fp32] = [float((value - right).detach().abs().max()) for value, right in zip(got, expected, strict=True)]
    assert max(errors[True]) < EXACT
    assert errors[False][0] > 1e-2


@pytest.mark.usefixtures("narrow")
def test_the_most_probable_tokens_are_those_of_exact_logits():
    leaves, _, temperature, kept = case()
    for sets in (None, kept):
        best, ids = exact_log_p(leaves, temperature, sets).topk(8, 1)
        found, logprobs = head_top(*leaves, temperature, 8, sets, True)
        assert torch.equal(found, ids)
        assert float((logprobs.double() - best).abs().max()) < EXACT
        rounded = head_top(*leaves, temperature, 8, sets)[1]
        assert float((rounded.double() - best).abs().max()) > 1e-2


@pytest.mark.usefixtures("narrow")
def test_gradients_are_those_of_exact_logits_as_their_products_in_bfloat16_round_them():
    """Against float64, of the same weights: 1 % of their length. The gradient of a logit is rounded to bfloat16 (0.2 %), and so
    is the result; what the rounding of logits adds is gone."""
    leaves, targets, temperature, _ = case()

    def graded(values, of_leaves):
        weights = torch.linspace(0.5, 2.0, ROWS).to(values[0].dtype)
        return torch.autograd.grad((weights * (values[0] - 0.5 * values[1])).sum(), of_leaves)

    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = graded(of(exact_log_p(exact_leaves, temperature), targets), exact_leaves)
    errors = {}
    for fp32 in (False, True):
        got = graded(head_logprobs(*leaves, targets, temperature, "differentiable", fp32=fp32), leaves)
        assert [gradient.dtype for gradient in got] == [torch.bfloat16] * 3
        errors[fp32] = [float((mine.double() - right).norm() / right.norm()) for mine, right in zip(got, exact, strict=True)]
    assert max(errors[True]) < 0.01
    assert all(mine < rounded for mine, rounded in zip(errors[True], errors[False], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_changes_nothing_of_wider_weights(dtype):
    leaves, targets, temperature, kept = case(dtype)
    arguments = (*leaves[:2], None, targets, temperature, "differentiable", kept)
    plain, wide = head_logprobs(*arguments), head_logprobs(*arguments, fp32=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, wide, strict=True))
    gradients = [torch.autograd.grad(values[0].sum() + values[1].sum(), leaves[:2]) for values in (plain, wide)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_neither_whole_logits_nor_the_weights_in_float32_are_ever_alive():
    rows, hidden_size, vocabulary = 256, 32, 40_000
    hidden, weight = torch.randn(rows, hidden_size).bfloat16().requires_grad_(), torch.randn(vocabulary, hidden_size).bfloat16()
    targets = torch.randint(vocabulary, (rows,))
    with Alive() as alive:
        values = head_logprobs(hidden, weight, None, targets, torch.ones(rows), "differentiable", fp32=True)
        torch.autograd.grad(values[0].sum() + values[1].sum(), [hidden])
    assert alive.peak < 9 * HEAD_LOGITS[False] + 16 * rows * hidden_size
    assert not {(rows, vocabulary)} & alive.shapes


TRAINERS = ["fsdp2_train", "fsdp2_infer", "deepspeed_train", "megatron_train"]
PACKAGES = {"deepspeed_train": "deepspeed", "megatron_train": "megatron.core"}


@pytest.fixture
def seen(monkeypatch):
    """The arguments and results of the head, of each call."""
    calls = []

    def recorded(*given, **named):
        found = head_logprobs(*given, **named)
        kept = [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in given]  # a step moves the weights
        calls.append((kept, found[0].detach().clone()))
        return found

    monkeypatch.setattr(scorer, "head_logprobs", recorded)
    if importlib.util.find_spec("megatron"):
        from roll.strategies.train.megatron import model

        monkeypatch.setattr(model, "head_logprobs", recorded)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("strategy", TRAINERS)
def test_each_back_end_says_exact_log_probs_of_its_hidden_states(tmp_path, rank_program, seen, strategy):
    """The weights are the layers' own, rounded; logits of this model are up to 30."""
    if strategy in PACKAGES:
        pytest.importorskip(PACKAGES[strategy], reason="needs requirements/*.txt")
    model = tiny_qwen2(37, initializer_range=0.5)
    model.model.embed_tokens.weight.data *= 6.0
    model.save_pretrained(tmp_path)
    numbered_tokenizer(37).save_pretrained(tmp_path)
    batch, errors = rank_program.make_batch(0), {}
    for head_dtype in (None, "fp32"):
        options = {**rank_program.OPTIONS, "dtype": "bf16", "head_dtype": head_dtype}
        trainer = make_train_strategy(RankContext(), train_spec(strategy, tmp_path, **options))
        seen.clear()
        trainer.log_probs(batch)
        if strategy.endswith("_train"):
            trainer.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
        worst = []
        for (hidden, weight, bias, targets, temperature, *_), logprobs in seen:
            assert weight.dtype == hidden.dtype == torch.bfloat16 and bias is None
            expected = exact_log_p((hidden, weight[:37]), temperature).gather(1, targets[:, None])[:, 0]
            worst.append(float((logprobs.double() - expected).abs().max()) if len(targets) else 0.0)
        errors[head_dtype] = max(worst)
        trainer.close()
    assert errors["fp32"] < EXACT and errors[None] > 1e-2


def gemma(folder: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    Gemma2ForCausalLM(Gemma2Config(vocab_size=37, num_key_value_heads=1, **sizes)).save_pretrained(folder)
    numbered_tokenizer(37).save_pretrained(folder)


def test_a_model_that_changes_its_logits_is_refused_by_its_folder(tmp_path, rank_program):
    gemma(tmp_path / "gemma")
    with pytest.raises(ValueError, match=r"changes its logits after the output layer \(final_logit_softcapping in its config"):
        check_plain_head(tmp_path / "gemma")
    with pytest.raises(ValueError, match=r"head_dtype: fp32 needs logits that are a linear layer's alone"):
        options = {**rank_program.OPTIONS, "dtype": "bf16", "head_dtype": "fp32"}
        make_train_strategy(RankContext(), train_spec("fsdp2_train", tmp_path / "gemma", **options))
    tiny_qwen2(37).save_pretrained(tmp_path / "plain")
    check_plain_head(tmp_path / "plain")
