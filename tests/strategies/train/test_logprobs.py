import pytest
import torch

from roll.strategies.train.logprobs import predictor_columns, token_logprobs

B, T, V = 3, 7, 11


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(B, T, V, generator=generator, requires_grad=True)
    tokens = torch.randint(V, (B, T), generator=generator)
    mask = torch.rand(B, T, generator=generator) < 0.5
    mask[:, :2] = False
    return logits, tokens, torch.tensor([1.0, 0.7, 0.0]), mask


def by_definition(logits, tokens, temperature):
    """One token at a time."""
    logprobs, entropy = torch.zeros(B, T), torch.zeros(B, T)
    for b in range(B):
        for t in range(1, T):
            scale = float(temperature[b]) or 1.0
            p = torch.softmax(logits[b, t - 1].double() / scale, -1)
            logprobs[b, t] = p[tokens[b, t]].log()
            entropy[b, t] = -(p * p.log()).sum()
    return logprobs, entropy


def test_matches_the_definition(case):
    logits, tokens, temperature, mask = case
    logprobs, entropy = token_logprobs(logits, tokens, temperature, entropy="detached")
    expected, expected_entropy = by_definition(logits, tokens, temperature)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=1e-6)
    assert (logprobs[:, 0] == 0).all()
    masked, masked_entropy = token_logprobs(logits, tokens, temperature, mask, entropy="differentiable")
    torch.testing.assert_close(masked, expected * mask, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(masked_entropy, expected_entropy * mask, rtol=1e-5, atol=1e-6)
    assert not entropy.requires_grad and masked_entropy.requires_grad


def test_columns_hold_all_that_is_asked(case):
    logits, tokens, temperature, mask = case
    mask[:, 3] = False
    columns = predictor_columns(mask)
    assert 2 not in columns and 0 not in columns
    all_columns, _ = token_logprobs(logits, tokens, temperature, mask)
    held, _ = token_logprobs(logits[:, columns], tokens, temperature, mask, columns)
    assert torch.equal(held, all_columns)


def test_unmasked_logits_of_any_value_change_nothing(case):
    logits, tokens, temperature, mask = case
    poisoned = logits.detach().clone()
    poisoned[:, :-1][~mask[:, 1:]] = torch.nan
    poisoned[:, -1] = torch.inf
    poisoned.requires_grad_()
    logprobs, entropy = token_logprobs(poisoned, tokens, temperature, mask, entropy="differentiable")
    (logprobs + entropy).sum().backward()
    expected, expected_entropy = token_logprobs(logits, tokens, temperature, mask, entropy="differentiable")
    (expected + expected_entropy).sum().backward()
    assert torch.equal(logprobs, expected)
    assert torch.equal(poisoned.grad, logits.grad)


def test_entropy_with_impossible_tokens():
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]])
    _, entropy = token_logprobs(logits, torch.tensor([[0, 1]]), torch.ones(1), entropy="detached")
    torch.testing.assert_close(entropy, torch.tensor([[0.0, 2.0]]).mul(0.5 * torch.log(torch.tensor(2.0))))


def test_nothing_masked_still_has_a_graph(case):
    logits, tokens, temperature, mask = case
    nothing = torch.zeros_like(mask)
    columns = predictor_columns(nothing)
    logprobs, _ = token_logprobs(logits[:, columns], tokens, temperature, nothing, columns, "detached")
    logprobs.sum().backward()
    assert not logprobs.any() and not logits.grad.any()
