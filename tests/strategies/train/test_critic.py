"""The critic on the training back ends: what a value is, its gradient, its checkpoints, and one rank against two."""

import json
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from saving import save
from train_specs import fsdp2_spec
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
)

from roll.core.algorithms.returns import gae, on_last_token
from roll.core.algorithms.value_loss import ValueLossSpec, value_loss
from roll.core.data.token_batch import TokenBatch
from roll.core.weights.folder_files import VALUE_HEAD
from roll.core.workers.train_backends import make_critic
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.platform.ports import free_port
from roll.strategies.model_folder import check_weights
from roll.strategies.train.critic import FSDP2Critic
from roll.strategies.train.value_head import load_value_model

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("critic_program.py")


@pytest.fixture(scope="module")
def program():
    return SimpleNamespace(**runpy.run_path(str(PROGRAM)))


@pytest.fixture
def make(model_path, program):
    def build(path=model_path, **options):
        return FSDP2Critic(RankContext(), fsdp2_spec(path, **{**program.OPTIONS, **options}))

    return build


def trained(critic, program, steps=2):
    for step in range(steps):
        batch = program.make_batch(step)
        critic.train_values(batch, program.LOSS, program.totals(batch))
    return critic


def plain_values(folder, batch):
    """[S, T] by the backbone and the head, without any of the strategy's code."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    head = load_file(folder / VALUE_HEAD)
    padded = batch.padded()
    hidden = model.model(padded.tokens, attention_mask=padded.attention_mask.long()).last_hidden_state
    said = (hidden @ head["weight"].T + head["bias"]).squeeze(2)
    return torch.cat([torch.zeros(len(batch), 1), said[:, :-1]], dim=1), padded


def test_an_untrained_critic_says_0(make, program):
    values = make().values(program.make_batch(0))
    assert values.dtype == torch.float32 and values.eq(0).all()


def test_a_value_is_of_the_state_before_the_token(make, program, tmp_path):
    critic, batch = trained(make(), program), program.make_batch(5)
    save(critic, tmp_path)
    expected, padded = plain_values(tmp_path / "model", batch)
    got = critic.values(batch)
    torch.testing.assert_close(got, padded.flatten(expected.detach()) * batch.loss_mask, rtol=1e-5, atol=1e-6)
    changed = batch.tokens.clone()
    last = int(batch.lengths[0]) - 1
    changed[last] = (changed[last] + 1) % 37
    assert critic.values(batch.with_(tokens=changed))[last] == got[last], "the token itself is not part of its state"


def write_with_head(path, folder, named):
    """A folder of the model at `path` whose weights have a trl head, in the model's file or in one of its own."""
    AutoModelForCausalLM.from_pretrained(path).save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    head = {"v_head.summary.weight": torch.randn(1, 16), "v_head.summary.bias": torch.tensor([0.3])}
    kept = load_file(folder / named) if (folder / named).is_file() else {}
    save_file({**kept, **head}, folder / named, metadata={"format": "pt"})
    return head.values()


@pytest.mark.parametrize("named", ["model.safetensors", VALUE_HEAD])
def test_a_value_model_of_trl_is_read(make, program, model_path, tmp_path, named):
    torch.manual_seed(1)
    weight, bias = write_with_head(model_path, tmp_path, named)
    batch = program.make_batch(5)
    padded = batch.padded()
    hidden = AutoModelForCausalLM.from_pretrained(tmp_path).model(padded.tokens, attention_mask=padded.attention_mask.long())
    said = (hidden.last_hidden_state @ weight.T + bias).squeeze(2)
    expected = torch.cat([torch.zeros(len(batch), 1), said[:, :-1]], dim=1)
    check_weights(tmp_path)
    torch.testing.assert_close(
        make(tmp_path).values(batch), padded.flatten(expected.detach()) * batch.loss_mask, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", [Qwen2ForTokenClassification, Qwen2ForSequenceClassification])
def test_a_classifier_of_one_output_is_read(make, program, model_path, tmp_path, kind):
    torch.manual_seed(1)
    model = kind.from_pretrained(model_path, num_labels=1).eval()
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(tmp_path)
    batch = program.make_batch(5)
    padded = batch.padded()
    hidden = model.model(padded.tokens, attention_mask=padded.attention_mask.long()).last_hidden_state
    expected = torch.cat([torch.zeros(len(batch), 1), model.score(hidden).squeeze(2)[:, :-1]], dim=1)
    check_weights(tmp_path)
    got = make(tmp_path).values(batch)
    torch.testing.assert_close(got, padded.flatten(expected.detach()) * batch.loss_mask, rtol=1e-5, atol=1e-6)


def test_a_head_of_two_values_or_another_file_is_refused(make, model_path, tmp_path):
    kind = Qwen2ForTokenClassification
    kind.from_pretrained(model_path, num_labels=2).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"score\.weight in .* is \[2, 16\]: of another model, or not of one value"):
        make(tmp_path)
    save_file({"head": torch.zeros(1)}, tmp_path / VALUE_HEAD)
    with pytest.raises(ValueError, match="has no value head, but head"):
        make(tmp_path)


@pytest.mark.parametrize("budget", [1, 24, 1000])
def test_gradient_is_that_of_one_big_batch(make, program, monkeypatch, tmp_path, budget):
    save(trained(make(), program), tmp_path)
    critic = make(tmp_path / "model", max_tokens_per_microbatch=budget, max_grad_norm=math.inf)
    batch, captured = program.make_batch(0), {}
    names = {id(p): name for name, p in critic._model.named_parameters()}

    def capture(optimizer, *args):
        captured.update({names[id(p)]: p.grad.clone() for group in optimizer.param_groups for p in group["params"]})

    monkeypatch.setattr(torch.optim.AdamW, "step", capture)
    metrics = critic.train_values(batch, program.LOSS, program.totals(batch))
    model, padded = load_value_model(tmp_path / "model", torch.float32, "sdpa").eval(), batch.padded()
    said = model(padded.tokens, attention_mask=padded.attention_mask.long()).logits.squeeze(2)
    values = torch.cat([torch.zeros(len(batch), 1), said[:, :-1]], dim=1)
    mask = padded.loss_mask
    loss, _ = value_loss(values, padded.values, padded.returns, mask, program.LOSS, int(mask.sum()))
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    assert captured.keys() == expected.keys()
    norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    for name, gradient in expected.items():
        torch.testing.assert_close(captured[name], gradient, rtol=1e-5, atol=1e-6 * float(norm), msg=name)
    assert metrics["critic/value_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["critic/grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_it_learns_the_returns(make, program):
    critic = make(learning_rate=1e-2, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=math.inf)
    batch = program.make_batch(0)
    losses = []
    for _ in range(60):
        now = batch.with_(values=critic.values(batch))
        losses.append(critic.train_values(now, program.LOSS, program.totals(batch))["critic/value_loss"])
    assert losses[-1] < 0.1 * losses[0]
    assert (critic.values(batch) - batch.returns).abs().mean() < 0.3 * batch.returns.abs().mean()


RESPONSE, PROMPT, STEPS = 8, 4, 100


@pytest.mark.parametrize(
    ("decided_by", "ceiling"),
    [pytest.param(1, 1.0, id="prompt"), pytest.param(PROMPT + 2, 5 / 8, id="third-response-token")],
)
def test_it_explains_what_can_be_known(make, decided_by, ceiling):
    """The reward is told by one token, which stands out. If it is in the prompt, all states tell; if it is the response's third,
    only the five states after it do. A value that is read one token too early or too late would explain 6 / 8 or 4 / 8.

    Every batch is new, so the metric, which is of the values before the step, is of data that the critic has not learned from."""
    whole = {"max_tokens_per_microbatch": 1000, "max_tokens_per_microbatch_infer": 1000}
    critic = make(learning_rate=1e-2, lr_scheduler_type="constant", warmup_steps=5, weight_decay=0.0, max_grad_norm=1.0, **whole)
    samples, length, generator = 32, PROMPT + RESPONSE, torch.Generator().manual_seed(0)
    explained = []
    for _ in range(STEPS):
        tokens = torch.randint(35, (samples, length), generator=generator)
        won = torch.randint(2, (samples,), generator=generator)
        tokens[:, decided_by] = 35 + won
        mask = (torch.arange(length) >= PROMPT).expand(samples, length)
        flat = torch.zeros(samples * length)
        batch = TokenBatch(
            lengths=torch.full((samples,), length),
            scores=won.float(),
            temperatures=torch.ones(samples),
            tokens=tokens.flatten(),
            loss_mask=mask.flatten(),
            behaviour_logprobs=flat,
            advantages=flat,
        )
        values = critic.values(batch)
        _, returns = gae(on_last_token(batch.scores, mask), values.view(samples, length), mask, gamma=1.0, lam=1.0)
        totals = BatchTotals(int(mask.sum()), samples)
        metrics = critic.train_values(batch.with_(values=values, returns=returns.flatten()), ValueLossSpec(clip=0.5), totals)
        explained.append(metrics["critic/explained_variance"])
    assert sum(explained[-10:]) / 10 == pytest.approx(ceiling, abs=0.06)


def test_masked_tokens_teach_nothing(make, program):
    batch = program.make_batch(0)
    junk = batch.with_(
        values=batch.values.masked_fill(~batch.loss_mask, torch.nan),
        returns=batch.returns.masked_fill(~batch.loss_mask, torch.inf),
    )
    one, other = make(), make()
    assert one.train_values(batch, program.LOSS, program.totals(batch)) == other.train_values(
        junk, program.LOSS, program.totals(batch)
    )
    assert torch.equal(one.values(batch), other.values(batch))


def test_a_gradient_that_is_not_finite_is_skipped(make, program):
    critic, batch = trained(make(), program), program.make_batch(0)
    before = critic.values(batch)
    returns = batch.returns.clone()
    returns[batch.loss_mask.nonzero()[0]] = torch.nan
    metrics = critic.train_values(batch.with_(returns=returns), program.LOSS, program.totals(batch))
    assert metrics["critic/skipped_steps"] == 1.0
    assert torch.equal(critic.values(batch), before)


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_goes_on_bit_by_bit(make, model_path, program, tmp_path, tied):
    path = Path(model_path)
    if not tied:
        path = tmp_path / "untied"
        config = Qwen2Config.from_pretrained(model_path, tie_word_embeddings=False)
        torch.manual_seed(1)
        Qwen2ForCausalLM(config).save_pretrained(path)
        for file in Path(model_path).glob("tokenizer*"):
            (path / file.name).write_bytes(file.read_bytes())
    critic = trained(make(path), program)
    save(critic, tmp_path / "checkpoint")
    names = load_file(tmp_path / "checkpoint" / "model" / "model.safetensors").keys()
    assert not any("lm_head" in name for name in names)
    resumed = make(path, learning_rate=1e-3)
    resumed.load(tmp_path / "checkpoint")
    batch = program.make_batch(7)
    assert torch.equal(resumed.values(batch), critic.values(batch))
    one, other = (c.train_values(batch, program.LOSS, program.totals(batch)) for c in (critic, resumed))
    assert one == other
    assert torch.equal(resumed.values(batch), critic.values(batch))


def test_what_cannot_be_a_critic(make, model_path, program, tmp_path):
    save(trained(make(), program), tmp_path)
    folder = tmp_path / "model"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "final_logit_softcapping": 30.0}))
    with pytest.raises(ValueError, match="final_logit_softcapping"):
        make(folder)
    with pytest.raises(ValueError, match="a critic is trained, and its specification has no optimisation"):
        make_critic(RankContext(), fsdp2_spec(model_path, trainable=False))


@pytest.fixture(scope="module")
def two_ranks(programs, model_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("critic-ranks")
    port = free_port()
    programs.run(PROGRAM, *((model_path, folder, rank, port) for rank in range(2)))
    return folder


def test_two_ranks_are_one(two_ranks, make, program):
    critic, metrics = make(), []
    for step in range(len(program.SHARES)):
        batch = program.make_batch(step)
        metrics.append(critic.train_values(batch, program.LOSS, program.totals(batch)))
    values = critic.values(program.make_batch(9))
    batch = program.make_batch(9)
    restored = make()
    restored.load(two_ranks / "two")
    torch.testing.assert_close(restored.values(batch), values, rtol=1e-4, atol=1e-5)
    for rank, indices in enumerate(program.SHARES[0]):
        told = json.loads((two_ranks / f"metrics-{rank}.json").read_text())
        for got, expected in zip(told, metrics, strict=True):
            assert got == pytest.approx(expected, rel=1e-4, abs=1e-7)
        got = load_file(two_ranks / f"values-{rank}.safetensors")["values"]
        torch.testing.assert_close(got, batch.with_(values=values).select(indices).values, rtol=1e-4, atol=1e-5)


def test_deepspeed_trains_the_same_critic(programs, make, model_path, program, tmp_path):
    """ZeRO-2 on one rank against FSDP2 on one rank; its checkpoint is one that FSDP2 goes on from."""
    programs.run(PROGRAM.with_name("deepspeed_critic_program.py"), (model_path, tmp_path, 2))
    critic, metrics = make(), []
    for step in range(2):
        batch = program.make_batch(step)
        metrics.append(critic.train_values(batch, program.LOSS, program.totals(batch)))
    for got, expected in zip(json.loads((tmp_path / "metrics.json").read_text()), metrics, strict=True):
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-7)
    values = critic.values(program.make_batch(9))
    # DeepSpeed clips by norm + 1e-6.
    torch.testing.assert_close(load_file(tmp_path / "values.safetensors")["values"], values, rtol=1e-4, atol=1e-5)
    restored = make()
    restored.load(tmp_path / "checkpoint")
    torch.testing.assert_close(restored.values(program.make_batch(9)), values, rtol=1e-4, atol=1e-5)
