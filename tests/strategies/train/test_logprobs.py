import pytest
import torch

from roll.strategies.train.logprobs import row_logprobs

K, V = 9, 11


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(K, V, generator=generator, requires_grad=True)
    return logits, torch.randint(V, (K,), generator=generator), torch.tensor([1.0, 0.7, 0.0]).repeat_interleave(3)


def by_definition(logits, targets, temperatures):
    """One token at a time."""
    logprobs, entropy = torch.zeros(K), torch.zeros(K)
    for row in range(K):
        p = torch.softmax(logits[row].double() / (float(temperatures[row]) or 1.0), -1)
        logprobs[row] = p[targets[row]].log()
        entropy[row] = -(p * p.log()).sum()
    return logprobs, entropy


@pytest.mark.parametrize("mode", ["detached", "differentiable"])
def test_matches_the_definition(case, mode):
    logprobs, entropy = row_logprobs(*case, entropy=mode)
    expected, expected_entropy = by_definition(*case)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=1e-6)
    assert entropy.requires_grad == (mode == "differentiable")


def test_entropy_with_impossible_tokens():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    _, entropy = row_logprobs(logits, torch.tensor([1]), torch.ones(1), entropy="detached")
    torch.testing.assert_close(entropy, torch.log(torch.tensor([2.0])))
