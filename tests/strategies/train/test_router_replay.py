"""Training with experts that are given has the log-probs and gradients of a plain model with these experts, sample by sample."""

import dataclasses

import pytest
import torch
from tiny_models import numbered_tokenizer, tiny_mixture
from train_specs import train_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.strategies.routers import Routers
from roll.strategies.train.layout import _without_samples

VOCABULARY, LAYERS, EXPERTS, EACH = 37, 3, 8, 2
LOSS = LossSpec(pg_variant="vanilla", aggregation="token-mean")
OPTIONS = {"dtype": "fp32", "learning_rate": 1e-3, "max_grad_norm": 1e9, "total_optimizer_steps": 10}
TOGETHER = {"max_tokens_per_microbatch": 4096, "max_tokens_per_microbatch_infer": 4096}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    tiny_mixture(VOCABULARY).save_pretrained(path)
    numbered_tokenizer(VOCABULARY).save_pretrained(path)
    return path


def batch_of(seed=0, samples=4):
    """Two prompts of 6 tokens and two responses to each. The experts of the first prompt are the same in both of its samples; of
    the second one they differ from the fourth token on. What a sample ends with was never computed."""
    draw = torch.Generator().manual_seed(seed)
    prompts = torch.randint(2, VOCABULARY, (2, 6), generator=draw)
    rows, routes = [], []
    for i in range(samples):
        response = torch.randint(2, VOCABULARY, (3 + 2 * i,), generator=draw)
        rows.append(torch.cat([prompts[i // 2], response]))
        experts = torch.rand(len(rows[-1]), LAYERS, EXPERTS, generator=draw).argsort(-1)[..., :EACH].to(torch.uint8)
        if i % 2:
            shared = 6 if i == 1 else 3
            experts[:shared] = routes[-1][:shared]
        experts[-1] = 255
        routes.append(experts)
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.cat([torch.arange(len(row)) >= 6 for row in rows])
    values = torch.randn(int(lengths.sum()), generator=draw) * mask
    return TokenBatch(
        lengths=lengths,
        scores=torch.zeros(samples),
        temperatures=torch.ones(samples),
        tokens=torch.cat(rows),
        loss_mask=mask,
        behaviour_logprobs=(values - 3) * mask,
        advantages=values,
        routes=torch.cat(routes),
    )


def make(folder, strategy="fsdp2_train", **options):
    if strategy == "deepspeed_train":
        pytest.importorskip("deepspeed", reason="needs requirements/deepspeed.txt")
    return make_train_strategy(RankContext(), train_spec(strategy, folder, **{**OPTIONS, **TOGETHER, **options}))


def plain_logprobs(model, batch):
    """[N], each sample by itself through transformers' own model."""
    routers, out = Routers(model), []
    for tokens, routes in zip(
        batch.tokens.split(batch.lengths.tolist()), batch.routes.split(batch.lengths.tolist()), strict=True
    ):
        routers.replay(routes)
        log_p = model(tokens[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        out.append(torch.cat([log_p.new_zeros(1), log_p.gather(1, tokens[1:, None])[:, 0]]))
    return torch.cat(out) * batch.loss_mask


@pytest.mark.parametrize(
    "options",
    [{}, {"strategy": "deepspeed_train", "zero": {"stage": 2}}, {"strategy": "deepspeed_train", "zero": {"stage": 3}}],
    ids=["fsdp2", "zero2", "zero3"],
)
def test_log_probs_are_those_of_single_samples_with_these_experts(folder, options):
    batch = batch_of()
    strategy = make(folder, **options)
    replayed = strategy.log_probs(batch)
    own = strategy.log_probs(batch.with_(routes=None))
    strategy.close()
    with torch.no_grad():
        expected = plain_logprobs(tiny_mixture(VOCABULARY), batch)
    torch.testing.assert_close(replayed, expected, rtol=1e-5, atol=1e-5)
    assert (own - expected).abs().max() > 0.01


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}, {"attn_implementation": "eager"}])
def test_gradients_are_those_of_single_samples_with_these_experts(folder, options):
    """Also where activations are computed again in the backward pass, and where each sample has a padded row of its own."""
    batch = batch_of()
    strategy, kept = make(folder, **options), {}

    def keep():
        kept.update({name: p.grad.clone() for name, p in strategy._model.named_parameters()})
        strategy._optimizer.zero_grad()
        return 1.0

    strategy._step = keep
    said = strategy.train_step(batch, LOSS, BatchTotals(int(batch.loss_mask.sum()), len(batch)))
    model = tiny_mixture(VOCABULARY)
    logprobs = plain_logprobs(model, batch)
    (-(logprobs * batch.advantages).sum() / batch.loss_mask.sum()).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(kept[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
    gates = [p.grad for name, p in model.named_parameters() if "gate.weight" in name]
    assert len(gates) == LAYERS and all(gate.abs().max() > 1e-4 for gate in gates)
    # Of 8 experts, two at random and the two best are all the same for 1 of 28 tokens: most are changed.
    assert 0.5 < said["actor/router_replay_changed"] < 1


def test_a_prefix_is_computed_once_as_far_as_its_experts_are_the_same(folder):
    batch = batch_of()
    scorer = make(folder)._scorer
    (order,) = scorer.plan(batch, 4096)
    assert scorer.layout(batch.select(order).padded()).tokens.numel() == batch.num_tokens - 6 - 3
    alone = scorer.plan(batch, 1)
    assert sorted(alone) == [[0], [1], [2], [3]]


def test_two_runs_of_a_step_are_the_same_and_micro_batches_change_nothing(folder):
    batch = batch_of()
    one, two, cut = make(folder), make(folder), make(folder, max_tokens_per_microbatch=1, max_tokens_per_microbatch_infer=1)
    totals = BatchTotals(int(batch.loss_mask.sum()), len(batch))
    for strategy in (one, two, cut):
        strategy.train_step(batch, LOSS, totals)
    assert torch.equal(one.log_probs(batch), two.log_probs(batch))
    torch.testing.assert_close(one.log_probs(batch), cut.log_probs(batch), rtol=1e-4, atol=1e-4)


def test_a_micro_batch_that_only_keeps_step_says_no_expert():
    empty = _without_samples(batch_of())
    assert empty.routes is not None and empty.routes.shape == (1, 1, LAYERS, EACH) and (empty.routes == 255).all()


def test_experts_of_another_model_are_refused(folder):
    batch = batch_of()
    with pytest.raises(ValueError, match=r"experts of \[2, 2\] layers and experts a token"):
        make(folder).log_probs(dataclasses.replace(batch, routes=batch.routes[:, :2]))
