"""Divergences from a teacher as a loss: the gradient of plain torch in float64, however samples are packed and divided.

The policy's gradient is of weights in float64; the teacher says its probabilities in float32.
"""

import copy
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import numbered_tokenizer, tiny_qwen2
from train_specs import fsdp2_spec, train_spec
from transformers import AutoModelForCausalLM

from roll.core.algorithms.distillation import divergence
from roll.core.algorithms.loss import LossSpec
from roll.core.data.kept_tokens import KeptSets
from roll.core.data.taught import TopTokens
from roll.core.trainer.batch import shards, totals_of
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.platform.ports import free_port

VOCABULARY = 37
ALONE = {"max_tokens_per_microbatch": 1, "max_tokens_per_microbatch_infer": 1}
TOGETHER = {"max_tokens_per_microbatch": 4096, "max_tokens_per_microbatch_infer": 4096}
NO_STEP = {"learning_rate": 1e-3, "max_grad_norm": 1e9, "total_optimizer_steps": 10, "dtype": "fp32"}
BETAS = {"forward": 0.0, "js": 0.3, "reverse": 1.0}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A larger model, with two rows more than the policy has tokens."""
    folder = tmp_path_factory.mktemp("teacher")
    tiny_qwen2(VOCABULARY + 2, seed=5, hidden_size=32, num_attention_heads=4, initializer_range=0.3).save_pretrained(folder)
    numbered_tokenizer(VOCABULARY).save_pretrained(folder)
    return folder


@pytest.fixture
def batch(rank_program):
    """Seven samples; samples 1 and 3 begin as sample 0 does."""
    made = rank_program.make_batch(3)
    tokens, offsets = made.tokens.clone(), made.offsets.tolist()
    for other in (1, 3):
        tokens[offsets[other] : offsets[other] + 4] = tokens[:4]
    weights = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.0, 1.5, 1.0])
    return made.with_(tokens=tokens, advantages=torch.zeros(made.num_tokens), teacher_weights=weights)


def distributions(folder, batch, kept=None):
    """A model in float64, and [M, V] log-probs in the place of each trained token, row by row."""
    model, found = AutoModelForCausalLM.from_pretrained(folder).double(), []
    masks = batch.loss_mask.split(batch.lengths.tolist())
    for row, mask, temperature in zip(batch.rows, masks, batch.temperatures, strict=True):
        logits = model(torch.tensor(row)[None]).logits[0, :-1] / temperature.double()
        found.append(logits[mask[1:]])
    logits = torch.cat(found)
    if kept is not None:
        logits = logits.masked_fill(kept[batch.loss_mask].cut(0, logits.shape[1]), -torch.inf)
    return model, logits.log_softmax(-1)


def told(batch, folder, top, packed):
    frozen = make_train_strategy(RankContext(), train_spec("fsdp2_infer", folder, dtype="fp32", **packed))
    logprobs, ids, most = frozen.top_log_probs(batch, top)
    return batch.with_(
        teacher_logprobs=torch.zeros(batch.num_tokens).masked_scatter(batch.loss_mask, logprobs),
        teacher_top=TopTokens(batch.loss_mask, ids.long(), most),
    )


def gradients(strategy, batch, loss):
    kept = {}
    strategy._model.double()

    def keep():
        kept.update({name: p.grad.clone() for name, p in strategy._model.named_parameters()})
        return 1.0

    strategy._step = keep
    metrics = strategy.train_step(batch, loss, totals_of(batch))
    return kept, metrics


def distance(some, other):
    length = math.sqrt(sum(float(each.square().sum()) for each in other.values()))
    return math.sqrt(sum(float((some[name] - other[name]).square().sum()) for name in other)) / length


def between(pi, p, beta):
    """[M] of probabilities, by the definition."""
    m = {0: pi, 1: p}.get(beta, beta * p + (1 - beta) * pi)

    def kl(one, other):
        return torch.where(one > 0, one * (one.clamp(min=1e-300).log() - other.clamp(min=1e-300).log()), 0.0).sum(1)

    return kl(p, m) if beta == 0 else kl(pi, m) if beta == 1 else beta * kl(p, m) + (1 - beta) * kl(pi, m)


def wanted(policy, teacher, beta, batch):
    """The loss in float64, from whole distributions [M, V]."""
    each = between(policy.exp(), teacher.detach().exp()[:, : policy.shape[1]], beta)
    weights = batch.teacher_weights[batch.sample_ids][batch.loss_mask]
    return (each * weights).sum() / len(each)


@pytest.mark.parametrize("packed", [ALONE, TOGETHER], ids=["alone", "together"])
@pytest.mark.parametrize("beta", BETAS.values(), ids=BETAS)
def test_the_gradient_of_the_whole_vocabulary_is_that_of_plain_torch(model_path, tmp_path, batch, beta, packed):
    """From 37 tokens on the rest has the probability of a rounding on both sides: 1e-5 of the length."""
    folder = tmp_path / "same"
    tiny_qwen2(VOCABULARY, seed=5, hidden_size=32, num_attention_heads=4, initializer_range=0.3).save_pretrained(folder)
    numbered_tokenizer(VOCABULARY).save_pretrained(folder)
    loss = LossSpec(pg_variant="reinforce", aggregation="token-mean", divergence=beta)
    lesson = told(batch, folder, 64, packed)
    student = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **packed))
    found, metrics = gradients(student, lesson, loss)
    plain, policy = distributions(model_path, batch)
    value = wanted(policy, distributions(folder, batch)[1], beta, batch)
    value.backward()
    assert distance(found, {name: p.grad for name, p in plain.named_parameters()}) < 1e-5
    assert metrics["actor/total_loss"] == pytest.approx(value.item(), rel=1e-5)


def coarse(policy, teacher, top, beta):
    """[M] float64: the k tokens that are most probable to the teacher, and one for all others."""
    places = teacher.topk(top, 1).indices
    places, own = places.clamp(max=policy.shape[1] - 1), places < policy.shape[1]
    sides = []
    for each in (policy, teacher.detach()):
        chosen = torch.where(own, each.gather(1, places).exp(), 0.0)
        sides.append(torch.cat([chosen, (1 - chosen.sum(1, keepdim=True)).clamp(min=1e-7)], 1))
    return between(*sides, beta)


@pytest.mark.parametrize("packed", [ALONE, TOGETHER], ids=["alone", "together"])
@pytest.mark.parametrize("top", [1, 8])
@pytest.mark.parametrize("beta", BETAS.values(), ids=BETAS)
def test_the_gradient_of_the_most_probable_and_the_rest_is_that_of_plain_torch(model_path, teacher, batch, beta, top, packed):
    loss = LossSpec(pg_variant="reinforce", aggregation="token-mean", divergence=beta)
    student = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **packed))
    found, metrics = gradients(student, told(batch, teacher, top, packed), loss)
    plain, policy = distributions(model_path, batch)
    each = coarse(policy, distributions(teacher, batch)[1], top, beta)
    weights = batch.teacher_weights[batch.sample_ids][batch.loss_mask]
    ((each * weights).sum() / len(each)).backward()
    assert distance(found, {name: p.grad for name, p in plain.named_parameters()}) < 1e-5
    assert metrics["actor/divergence"] == pytest.approx(each.mean().item(), rel=1e-5)


@pytest.mark.parametrize("beta", BETAS.values(), ids=BETAS)
def test_over_kept_sets_both_are_what_the_sampler_drew_from(model_path, teacher, batch, beta):
    """Of 5 tokens, fewer than the 8 that are asked for: the divergence of both distributions over the set, and no rest."""
    generator = torch.Generator().manual_seed(0)
    sets, counts = [], []
    for token, trained in zip(batch.tokens.tolist(), batch.loss_mask.tolist(), strict=True):
        others = [each for each in torch.randperm(VOCABULARY, generator=generator).tolist() if each != token][:4]
        sets += [torch.tensor([token, *others])] if trained else []
        counts.append(5 if trained else 0)
    kept = KeptSets(torch.tensor(counts), torch.cat(sets))
    batch = batch.with_(kept=kept)
    loss = LossSpec(pg_variant="reinforce", aggregation="token-mean", divergence=beta)
    student = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **TOGETHER))
    found, _ = gradients(student, told(batch, teacher, 8, TOGETHER), loss)
    plain, policy = distributions(model_path, batch, kept)
    value = wanted(policy, distributions(teacher, batch, kept)[1], beta, batch)
    value.backward()
    assert distance(found, {name: p.grad for name, p in plain.named_parameters()}) < 1e-5


def test_samples_without_a_teacher_have_no_divergence(model_path, teacher, batch):
    """The gradient of the others alone, by the totals of all."""
    loss = LossSpec(pg_variant="reinforce", aggregation="token-mean", divergence=0.3)
    lesson = told(batch, teacher, 8, TOGETHER)
    top, has = lesson.teacher_top, (lesson.sample_ids % 2 == 0) & lesson.loss_mask
    rows = has[lesson.loss_mask]
    partly = lesson.with_(teacher_top=TopTokens(has, top.ids[rows], top.logprobs[rows]))
    weights = torch.where(torch.arange(len(batch)) % 2 == 0, batch.teacher_weights, 0.0)
    made = [make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **TOGETHER)) for _ in range(2)]
    (one, _), (other, _) = gradients(made[0], partly, loss), gradients(made[1], lesson.with_(teacher_weights=weights), loss)
    assert distance(one, other) < 1e-12


def test_two_ranks_of_a_teacher_say_what_one_says(teacher, batch):
    whole = told(batch, teacher, 8, TOGETHER)
    for part, lesson in zip(shards(whole, 2), shards(batch, 2), strict=True):
        again = told(lesson, teacher, 8, TOGETHER)
        assert torch.equal(part.teacher_top.ids, again.teacher_top.ids)
        torch.testing.assert_close(part.teacher_top.logprobs, again.teacher_top.logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", ["fsdp2", "zero3"])
def test_two_ranks_of_the_policy_train_as_one(programs, model_path, teacher, batch, rank_program, tmp_path, layout):
    loss = LossSpec(pg_variant="ppo", aggregation="seq-mean-token-mean", divergence=0.3)
    lesson = told(batch, teacher, 8, TOGETHER)
    torch.save(dataclasses.asdict(lesson) | {"teacher_top": dataclasses.asdict(lesson.teacher_top)}, tmp_path / "batch.pt")
    (tmp_path / "loss.json").write_text(json.dumps({"pg_variant": "ppo", "aggregation": loss.aggregation, "divergence": 0.3}))
    one = make_train_strategy(RankContext(), fsdp2_spec(model_path, **rank_program.OPTIONS))
    metrics = one.train_step(lesson, loss, totals_of(lesson))
    expected = rank_program.exported(one)
    program, port = Path(__file__).with_name("divergence_program.py"), free_port()
    programs.run(program, *((model_path, tmp_path, rank, port, layout) for rank in range(2)))
    for rank in range(2):
        said = json.loads((tmp_path / f"metrics-{rank}.json").read_text())
        for name in ("actor/divergence", "actor/total_loss", "actor_train/grad_norm"):
            assert said[name] == pytest.approx(metrics[name], rel=1e-5), name
    got = load_file(tmp_path / "tensors-0.safetensors") | load_file(tmp_path / "tensors-1.safetensors")
    for name, tensor in expected.items():
        if "k_proj.bias" not in name:  # its gradient is rounding alone
            torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-5 * float(tensor.abs().max()), msg=name)


def test_a_head_that_is_not_plain_says_the_same(model_path, teacher, batch):
    """Logits that are whole, where the head's are cut into parts."""
    loss = LossSpec(pg_variant="reinforce", aggregation="token-mean", divergence=0.3)
    made = [make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **TOGETHER)) for _ in range(2)]
    frozen = make_train_strategy(RankContext(), train_spec("fsdp2_infer", teacher, dtype="fp32", **TOGETHER))
    parts = frozen.top_log_probs(batch, 8)
    for strategy in (made[1], frozen):
        head = strategy._scorer._head._head
        strategy._scorer._head = None
        del head.forward
    whole = frozen.top_log_probs(batch, 8)
    assert torch.equal(parts[1], whole[1])
    torch.testing.assert_close(parts[2], whole[2], rtol=0, atol=2e-6)
    lesson = batch.with_(teacher_top=TopTokens(batch.loss_mask, parts[1].long(), parts[2]))
    (one, _), (other, _) = (gradients(each, copy.deepcopy(lesson), loss) for each in made)
    assert distance(one, other) < 1e-6, "whole logits are of float32"


def test_a_confident_teacher_does_not_make_the_divergence_negative():
    """Its rest is less than a rounding, and the policy has half of its probability there."""
    teacher = torch.tensor([[math.log1p(-1e-9), math.log(1e-10)]])
    policy = torch.tensor([[math.log(0.4), math.log(0.1)]], requires_grad=True)
    value = divergence(policy, teacher, 1.0)
    expected = 0.4 * math.log(0.4) + 0.1 * math.log(0.1 / 1e-10) + 0.5 * math.log(0.5 / 1e-7)
    assert value.item() == pytest.approx(expected, rel=1e-4)
    (gradient,) = torch.autograd.grad(value.sum(), policy)
    assert gradient.isfinite().all() and gradient[0, 0] < 0


@pytest.mark.parametrize("beta", BETAS.values(), ids=BETAS)
def test_equal_distributions_diverge_by_nothing_and_no_answer_neither(beta):
    same = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)).log_softmax(-1)[:, :4]
    assert divergence(same, same, beta).abs().max() < 1e-6
    nothing = torch.full((3, 4), -math.inf)
    policy = same.clone().requires_grad_()
    value = divergence(policy, nothing, beta)
    assert value.tolist() == [0, 0, 0]
    assert torch.autograd.grad(value.sum(), policy)[0].tolist() == np.zeros((3, 4)).tolist()
