import pytest
import torch
import torch.distributed as dist

from roll.strategies.train.megatron.logprobs import vocab_parallel_logprobs

R, V = 6, 11


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(R, V, generator=generator)
    return logits, torch.randint(V, (R,), generator=generator), torch.tensor([1.0, 0.7, 0.0, 2.0, 1.0, 0.7])


def by_definition(logits, targets, temperature):
    scale = torch.where(temperature == 0, torch.ones(()), temperature).double()
    log_p = torch.log_softmax(logits.double() / scale[:, None], -1)
    return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize(("of_logprob", "of_entropy"), [(1.0, 0.0), (0.0, 1.0), (0.3, -2.0)])
def test_values_and_gradients_are_those_of_the_definition(group, case, of_logprob, of_entropy):
    logits, targets, temperature = case
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    got = vocab_parallel_logprobs(mine, targets, temperature, 0, group, "differentiable")
    expected = by_definition(theirs, targets, temperature)
    for value, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(0.5, 2.0, R)
    (weights * (of_logprob * got[0] + of_entropy * got[1])).sum().backward()
    (weights * (of_logprob * expected[0] + of_entropy * expected[1])).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_logits_are_left_as_they_are_and_detached_entropy_has_no_gradient(group, case):
    logits, targets, temperature = case
    leaf = logits.clone().requires_grad_()
    logprobs, entropy = vocab_parallel_logprobs(leaf, targets, temperature, 0, group, "detached")
    assert torch.equal(leaf, logits) and logprobs.requires_grad and not entropy.requires_grad
    assert vocab_parallel_logprobs(leaf, targets, temperature, 0, group)[1] is None


def test_impossible_tokens_and_no_rows(group):
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    logprobs, entropy = vocab_parallel_logprobs(logits, torch.tensor([0]), torch.ones(1), 0, group, "differentiable")
    (logprobs + entropy).sum().backward()
    torch.testing.assert_close(entropy, torch.log(torch.tensor([2.0])))
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, -0.5, 0.0]]))
    none = torch.zeros(0, 3, requires_grad=True)
    logprobs, _ = vocab_parallel_logprobs(none, torch.zeros(0, dtype=torch.int64), torch.ones(0), 0, group)
    logprobs.sum().backward()
    assert logprobs.shape == (0,) and none.grad.shape == (0, 3)
