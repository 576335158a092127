"""A teacher behind an endpoint: a local server that answers as vLLM's does, with the log-probs of a model."""

import asyncio

import pytest
import torch
from prompt_logprobs_server import PromptLogprobsServer
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.core.data.token_batch import TokenBatch
from roll.core.errors import ServiceFailed
from roll.topologies.teaching.endpoint import Endpoint, try_endpoint

SYMBOLS = ["<pad>", "<eos>", *"0123456789+-=abcdefghijklmnopqrst"]


@pytest.fixture(scope="module")
def model():
    return tiny_qwen2(len(SYMBOLS), seed=3, initializer_range=0.3).eval()


@pytest.fixture
def server(model):
    made = PromptLogprobsServer(model, SYMBOLS)
    yield made
    made.close()


def batch():
    rows = [[5, 6, 7, 8, 9], [5, 6, 20], [11, 12, 13, 14]]
    masks = [[False, False, True, False, True], [False, False, True], [False, True, True, True]]
    count = sum(map(len, rows))
    return TokenBatch(
        lengths=torch.tensor([len(row) for row in rows]),
        scores=torch.zeros(3),
        temperatures=torch.ones(3),
        tokens=torch.tensor([each for row in rows for each in row]),
        loss_mask=torch.tensor([each for mask in masks for each in mask]),
        behaviour_logprobs=torch.zeros(count),
        advantages=torch.zeros(count),
    )


def ask(server, top, limit_s=10.0):
    return asyncio.run(Endpoint("teachers.big", server.url, limit_s).answers(batch(), top))


@pytest.mark.parametrize("top", [0, 4])
def test_the_answers_are_those_of_the_model(server, model, top):
    asked = batch()
    masks = asked.loss_mask.split(asked.lengths.tolist())
    for row, mask, answer in zip(asked.rows, masks, ask(server, top), strict=True):
        tokens = torch.tensor(row)
        with torch.no_grad():
            scores = model(tokens[None]).logits[0, :-1].log_softmax(-1)[mask[1:]]
        own = scores.gather(1, tokens[mask][:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(answer.logprobs), own, rtol=0, atol=1e-5)
        best = scores.topk(top, 1)
        assert answer.ids.tolist() == best.indices.tolist() and answer.top.shape == (int(mask.sum()), top)
        torch.testing.assert_close(torch.tensor(answer.top), best.values, rtol=0, atol=1e-5)
    assert {each["model"] for each in server.requests} == {"big"}


def test_a_server_that_is_busy_is_asked_again(server):
    server.statuses = [503, 429, 200]
    assert len(ask(server, 2)) == 3 and len(server.requests) == 5


def test_one_that_hangs_is_waited_for_until_the_limit(server):
    server.sleep_s = 5.0
    with pytest.raises(ServiceFailed, match=r"teachers\.big: .*/completions gave no answer in 0\.3 s \(rpc_timeout\)"):
        ask(server, 2, limit_s=0.3)


def test_one_that_is_not_there_is_waited_for_until_the_limit(server):
    server.close()
    with pytest.raises(ServiceFailed, match=r"/models gave no answer in 0\.5 s .*ConnectError"):
        ask(server, 2, limit_s=0.5)


def test_one_that_says_no_log_probs_is_one_error_at_once(server):
    server.without = True
    with pytest.raises(ServiceFailed, match="returns no prompt_logprobs"):
        ask(server, 2)


def test_a_refusal_is_told_in_its_own_words(server):
    server.statuses = [400] * 3
    with pytest.raises(ServiceFailed, match=r"refuses: status 400.*max_logprobs is 20"):
        ask(server, 64)


def test_the_trial_compares_tokens_of_the_whole_vocabulary(server):
    tokenizer = symbol_tokenizer(SYMBOLS)
    try_endpoint("teachers.big", server.url, 4, tokenizer)
    assert len(server.requests[0]["prompt"]) == 12
    server.symbols = [*SYMBOLS[:20], "X", *SYMBOLS[21:]]
    with pytest.raises(ValueError, match="token 20 is 'X' to it, 'f' to the policy"):
        try_endpoint("teachers.big", server.url, 4, tokenizer)
