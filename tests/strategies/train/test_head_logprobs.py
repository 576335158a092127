"""Log-probs and entropies from hidden states against a head whose logits are whole: values, gradients, and what is alive."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from alive import Alive
from torch._dynamo.utils import counters

from roll.core.data.kept_tokens import KeptSets, KeptTokens
from roll.plan.memory import HEAD_LOGITS
from roll.strategies.train import logprobs as head
from roll.strategies.train.logprobs import head_logprobs, row_logprobs

ROWS, HIDDEN, VOCABULARY = 13, 24, 101
"""Of cases in which the vocabulary is cut into parts of 16, the last of them shorter."""


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(head, "head_columns", lambda rows, accelerator: 16)


def case(dtype, bias=True):
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    leaves = [leaf(ROWS, HIDDEN), leaf(VOCABULARY, HIDDEN), *([leaf(VOCABULARY)] if bias else [])]
    temperature = torch.tensor([1.0, 0.7, 0.0, 2.0])[torch.arange(ROWS) % 4]
    return leaves, torch.randint(VOCABULARY, (ROWS,), generator=generator), temperature


def whole(leaves, targets, temperature):
    """By definition, from whole logits."""
    hidden, weight, *bias = leaves
    scale = torch.where(temperature == 0, 1.0, temperature)
    logits = torch.nn.functional.linear(hidden, weight, *bias)
    log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)) / scale[:, None], -1)
    return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def graded(values, leaves, of_logprob, of_entropy):
    weights = torch.linspace(0.5, 2.0, ROWS).to(values[0].dtype)
    return torch.autograd.grad((weights * (of_logprob * values[0] + of_entropy * values[1])).sum(), leaves)


@pytest.mark.parametrize(("of_logprob", "of_entropy"), [(1.0, 0.0), (0.0, 1.0), (0.3, -2.0)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_exactly_those_of_whole_logits(of_logprob, of_entropy, bias):
    leaves, targets, temperature = case(torch.float64, bias)
    got = head_logprobs(*leaves[:2], leaves[2] if bias else None, targets, temperature, "differentiable")
    expected = whole(leaves, targets, temperature)
    for value, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
    wanted = graded(expected, leaves, of_logprob, of_entropy)
    for gradient, exact in zip(graded(got, leaves, of_logprob, of_entropy), wanted, strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-10, atol=1e-12)


def kept_sets(targets: torch.Tensor) -> KeptSets:
    """The target and up to 30 others of each row; every third row has the whole vocabulary."""
    generator = torch.Generator().manual_seed(1)
    sets = []
    for row, target in enumerate(targets.tolist()):
        others = torch.randperm(VOCABULARY, generator=generator)[: 3 * row].tolist()
        sets.append(np.array(sorted({target, *others}) if row % 3 else [], dtype=np.int32))
    return KeptSets.of([KeptTokens.of(sets)])


@pytest.mark.parametrize(("of_logprob", "of_entropy"), [(1.0, 0.0), (0.0, 1.0), (0.3, -2.0)])
def test_over_kept_sets_values_and_gradients_are_those_of_a_softmax_over_each_set(of_logprob, of_entropy):
    leaves, targets, temperature = case(torch.float64)
    kept = kept_sets(targets)
    hidden, weight, bias = leaves
    scale = torch.where(temperature == 0, 1.0, temperature)
    logprobs, entropies = [], []
    for row, ids in enumerate(kept.ids.split(kept.counts.tolist())):
        ids = ids if len(ids) else torch.arange(VOCABULARY)
        log_p = ((weight[ids] @ hidden[row] + bias[ids]) / scale[row]).log_softmax(0)
        logprobs.append(log_p[ids == targets[row]].squeeze())
        entropies.append(-(log_p.exp() * log_p).sum())
    expected = torch.stack(logprobs), torch.stack(entropies)
    wanted = graded(expected, leaves, of_logprob, of_entropy)
    logits = torch.nn.functional.linear(*leaves)
    for got in (
        head_logprobs(*leaves, targets, temperature, "differentiable", kept),
        row_logprobs(logits, targets, temperature, "none", kept),
    ):
        torch.testing.assert_close(got[0].double(), expected[0], rtol=1e-6, atol=1e-6)
    got = head_logprobs(*leaves, targets, temperature, "differentiable", kept)
    for value, right in zip(got, expected, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)
    for gradient, exact in zip(graded(got, leaves, of_logprob, of_entropy), wanted, strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-10, atol=1e-12)


def test_gradients_pass_the_check_by_differences():
    leaves, targets, temperature = case(torch.float64)
    assert torch.autograd.gradcheck(lambda *x: head_logprobs(*x, targets, temperature, "differentiable"), leaves, fast_mode=True)


def test_in_float32_it_differs_from_whole_logits_by_the_order_of_additions():
    leaves, targets, temperature = case(torch.float32)
    got = head_logprobs(*leaves, targets, temperature, "differentiable")
    expected = whole(leaves, targets, temperature)
    for value, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=2e-6, atol=2e-6)
    for gradient, exact in zip(graded(got, leaves, 0.3, -2.0), graded(expected, leaves, 0.3, -2.0), strict=True):
        torch.testing.assert_close(gradient, exact, rtol=2e-6, atol=1e-5 * float(exact.abs().max()))


def test_in_bfloat16_gradients_are_as_exact_as_those_of_whole_logits():
    """The weights' gradient is rounded once, as that of whole logits is; parts of the states' are added in float32."""
    leaves, targets, temperature = case(torch.bfloat16, bias=False)
    got = graded(head_logprobs(*leaves, None, targets, temperature, "differentiable"), leaves, 1.0, 0.5)
    wanted = graded(whole(leaves, targets, temperature), leaves, 1.0, 0.5)
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = graded(whole(exact_leaves, targets, temperature), exact_leaves, 1.0, 0.5)
    for mine, theirs, truth, worse in zip(got, wanted, exact, (1.2, 1.02), strict=True):
        errors = [float((gradient.double() - truth).norm() / truth.norm()) for gradient in (mine, theirs)]
        assert errors[0] < worse * errors[1] < 0.02


def test_an_entropy_that_is_watched_has_no_gradient():
    leaves, targets, temperature = case(torch.float32)
    logprobs, entropy = head_logprobs(*leaves, targets, temperature, "detached")
    assert logprobs.requires_grad and not entropy.requires_grad
    torch.testing.assert_close(entropy, whole(leaves, targets, temperature)[1])
    assert head_logprobs(*leaves, targets, temperature)[1] is None


def test_impossible_tokens_and_no_rows():
    logits = torch.full((1, 40), -torch.inf)
    logits[0, [0, 20]] = 0.0
    bias = logits[0].clone().requires_grad_()
    nothing, weight = torch.zeros(1, 3), torch.zeros(40, 3)
    logprobs, entropy = head_logprobs(nothing, weight, bias, torch.tensor([0]), torch.ones(1), "differentiable")
    (logprobs + entropy).sum().backward()
    torch.testing.assert_close(entropy, torch.log(torch.tensor([2.0])))
    torch.testing.assert_close(bias.grad, torch.zeros(40).index_put((torch.tensor([0, 20]),), torch.tensor([0.5, -0.5])))
    none, weight = torch.zeros(0, 3, requires_grad=True), torch.ones(40, 3, requires_grad=True)
    logprobs, _ = head_logprobs(none, weight, None, torch.zeros(0, dtype=torch.int64), torch.ones(0))
    logprobs.sum().backward()
    assert logprobs.shape == (0,) and none.grad.shape == (0, 3) and not weight.grad.any()


def test_the_parts_do_not_depend_on_the_rows():
    """So the numbers of a sample do not depend on how a batch is cut into micro-batches."""
    leaves, targets, temperature = case(torch.float64)
    together = head_logprobs(*leaves, targets, temperature, "detached")
    alone = [
        head_logprobs(leaves[0][i : i + 1], *leaves[1:], targets[i : i + 1], temperature[i : i + 1], "detached")
        for i in range(ROWS)
    ]
    for index, values in enumerate(zip(*alone, strict=True)):
        torch.testing.assert_close(together[index], torch.cat(values), rtol=1e-13, atol=1e-13)


class Ranks:
    """Two ranks that divide a vocabulary, one after the other in one process: each reduction is told what the other said."""

    def __init__(self, monkeypatch):
        self.said: list[torch.Tensor] = []
        self.others: list[torch.Tensor] = []
        monkeypatch.setattr(dist, "all_reduce", self._reduce)

    def _reduce(self, values, operation=dist.ReduceOp.SUM, group=None):
        self.said.append(values.clone())
        if self.others:
            other = self.others.pop(0)
            values.copy_(torch.maximum(values, other) if operation == dist.ReduceOp.MAX else values + other)


def test_ranks_that_divide_the_vocabulary_agree_with_one(monkeypatch):
    leaves, targets, temperature = case(torch.float64, bias=False)
    hidden, weight = leaves
    expected = whole(leaves, targets, temperature)
    wanted = graded(expected, leaves, 0.3, -2.0)
    borders = [(0, 60), (60, VOCABULARY)]

    def run(rank, ranks):
        own = weight.detach()[slice(*borders[rank])]
        padded = torch.cat([own, torch.full((3, HIDDEN), 9.0)]).requires_grad_()  # rows that fill up are no tokens
        mine = hidden.detach().clone().requires_grad_()
        values = head_logprobs(
            mine, padded, None, targets, temperature, "differentiable",
            columns=len(own), first_column=borders[rank][0], group=object(),
        )  # fmt: skip
        return values, graded(values, [mine, padded], 0.3, -2.0)

    ranks = Ranks(monkeypatch)
    rounds: list[list[torch.Tensor]] = [[], []]
    # Each reduction needs the other rank's contribution to the ones before: four reductions, settled one after the other.
    for settled in range(5):
        heard = [list(said[:settled]) for said in rounds]
        results = []
        for rank in range(2):
            ranks.said, ranks.others = [], heard[1 - rank]
            results.append(run(rank, ranks))
            rounds[rank] = ranks.said
    for rank, (values, (of_hidden, of_weight)) in enumerate(results):
        for value, exact in zip(values, expected, strict=True):
            torch.testing.assert_close(value, exact, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(of_hidden, wanted[0], rtol=1e-10, atol=1e-12)
        assert not of_weight[-3:].any()
        torch.testing.assert_close(of_weight[:-3], wanted[1][slice(*borders[rank])], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_logits_are_never_alive(monkeypatch, dtype):
    """What whole logits cost is measured beside, so that the measure is known to see them."""
    monkeypatch.undo()
    rows, hidden_size, vocabulary = 256, 32, 40_000
    hidden, weight = (
        torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in ((rows, hidden_size), (vocabulary, hidden_size))
    )
    targets, temperature = torch.randint(vocabulary, (rows,)), torch.ones(rows)
    peaks = {}
    for name, logprobs in (
        ("parts", lambda: head_logprobs(hidden, weight, None, targets, temperature, "differentiable")),
        ("whole", lambda: whole([hidden, weight], targets, temperature)),
    ):
        with Alive() as alive:
            values = logprobs()
            torch.autograd.grad(values[0].sum() + values[1].sum(), [hidden])
            del values
        peaks[name] = alive.peak
    assert peaks["whole"] > 12 * rows * vocabulary
    assert peaks["parts"] < 11 * HEAD_LOGITS[False] + 16 * rows * hidden_size + weight.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_it_says_what_it_says_eagerly_and_is_compiled_a_few_times(dtype):
    """Float32: 1e-6. bfloat16: both round the same products once, and the gradient of a logit may fall on the other side."""
    graphs = counters["stats"]["unique_graphs"]
    generator = torch.Generator().manual_seed(3)
    for rows in (ROWS, 40, 7, 29, 2, 64):
        hidden, weight = (torch.randn(n, HIDDEN, generator=generator).to(dtype).requires_grad_() for n in (rows, VOCABULARY))
        targets, temperature = torch.randint(VOCABULARY, (rows,), generator=generator), torch.full((rows,), 0.7)
        of = torch.randn(2, rows, generator=generator)
        for mode in ("none", "differentiable")[dtype == torch.bfloat16 :]:
            found = []
            for fast in (False, True):
                values = head_logprobs(hidden, weight, None, targets, temperature, mode, kept_sets(targets), fast=fast)
                loss = (of[0] * values[0]).sum() + ((of[1] * values[1]).sum() if mode == "differentiable" else 0)
                said = values[0] if mode == "none" else torch.stack(values)
                found.append([said.detach(), *torch.autograd.grad(loss, [hidden, weight])])
            for eager, fast in zip(*found, strict=True):
                scale = max(1.0, float(eager.abs().max()))
                torch.testing.assert_close(fast, eager, rtol=0, atol=(1e-6 if eager.dtype == torch.float32 else 1e-2) * scale)
    assert 0 < counters["stats"]["unique_graphs"] - graphs <= 8
