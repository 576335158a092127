"""Runs on rows of files, in this process: their losses, gradients, accounts and resumption."""

import asyncio
import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from rows_world import config, make_world, settings
from torch.nn.functional import logsigmoid
from train_specs import fsdp2_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.rows import DPOKeysConfig
from roll.core.data.sample import SampleGroup
from roll.core.pipeline.roles import loss_spec
from roll.core.trainer.batch import shards, token_batch, totals_of
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.plan.rows_config import DPOConfig, SFTConfig
from roll.plan.rules.loading import load_config
from roll.platform.local_backend import LocalBackend
from roll.prepare.rows_run import RowsRun, prepare
from roll.prepare.training_flow import pipeline_for
from roll.strategies.model_folder import load_model
from roll.topologies.rows.from_rows import complete
from roll.topologies.rows.row_losses import pair_losses
from roll.topologies.teaching.lessons import Lessons

ROWS = 12
SHARES = {"none of it": [0.0, 1.0], "half of it": 0.5, "all of it": 1.0}
"""The weight of the divergence from a teacher in the first step."""
LOSSES = {
    "sft": {},
    **{name: {"distillation": {"kd_objective": "forward_kl", "logits_topk": 26}} for name in SHARES},
    "sigmoid": {"dpo": {"beta": 0.5, "label_smoothing": 0.1}},
    "ipo": {"dpo": {"loss": "ipo", "beta": 0.3}},
    "simpo": {"dpo": {"loss": "simpo", "beta": 2.0, "margin": 0.5}},
}
SIZES = {
    "sigmoid": lambda own, reference: (own - reference).sum(),
    "ipo": lambda own, reference: (own - reference).mean(),
    "simpo": lambda own, reference: own.mean(),
}
"""How much likelier an answer is made."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("rows"))


def changes_of(kind, world):
    changes = dict(LOSSES[kind])
    if kind in ("sigmoid", "ipo"):
        changes["reference"] = {"device_mapping": "0", "model_args": {"model_name_or_path": str(world / "other")}}
    return changes | (taught_by(world / "other", SHARES[kind]) if kind in SHARES else {})


def taught_by(folder, share):
    return {"teachers": {"big": {"device_mapping": "0", "opd_kl_coef": share, "model_args": {"model_name_or_path": str(folder)}}}}


@pytest.fixture(scope="module", params=LOSSES)
def weighed(request, world, tmp_path_factory):
    """A batch before and after its tokens got their weights."""
    made = config(world, tmp_path_factory.mktemp("out"), **changes_of(request.param, world))
    prepared = prepare(made, LocalBackend().devices(1, None), one_process=True)
    groups = [complete(SampleGroup(i, 0, prepared.source.next())) for i in range(ROWS)]
    batch = token_batch(groups, 1.0)
    if made.uses_reference:
        batch = batch.with_(reference_logprobs=strategy(world / "other").log_probs(batch))
    if isinstance(made, DPOConfig):
        batch = batch.with_(proximal_logprobs=strategy(world / "model").log_probs(batch))
    if made.teachers:
        batch = taught(made, groups, batch, world)
    ready, _ = RowsRun.advantages(made)(batch, groups)
    return SimpleNamespace(config=made, given=batch, ready=ready, loss=loss_spec(made, prepared.derived), world=world)


def taught(made, groups, batch, world):
    async def ask(method, asked, top):
        return [list(range(len(asked)))], [strategy(world / "other").top_log_probs(asked, top)]

    step = SimpleNamespace(lease=SimpleNamespace(groups=groups), batch=batch, number=0)
    asyncio.run(Lessons(made)(step, "teachers.big", ask, lambda group, sample: True))
    return step.batch


def strategy(folder, **options):
    return make_train_strategy(RankContext(), fsdp2_spec(folder, max_grad_norm=1e9, **options))


def gradient(folder, parts, loss: LossSpec, totals, **options):
    trained = strategy(folder, **options)
    for part in parts:
        list(trained._gradients(part, trained._policy_loss(loss, totals)))
    return {name: each.grad.double() for name, each in trained._model.named_parameters()}


def distance(one, other):
    assert one.keys() == other.keys()
    apart = sum((one[name] - other[name]).square().sum() for name in one)
    return float((apart / sum(each.square().sum() for each in other.values())).sqrt())


def plain_gradient(world, batch, made):
    """A row at a time, in float64, by the formula."""
    model, reference = (load_model(world / name, torch.float64, "eager") for name in ("model", "other"))

    def distributions(net, start, stop):
        return net(input_ids=batch.tokens[start:stop][None]).logits[0, :-1].log_softmax(-1)[batch.loss_mask[start:stop][1:]]

    def log_probs(net, start, stop):
        own = batch.tokens[start:stop][1:][batch.loss_mask[start:stop][1:]]
        return distributions(net, start, stop).gather(1, own[:, None])[:, 0]

    places = list(pairwise(batch.offsets.tolist()))
    rows = [(log_probs(model, *place), log_probs(reference, *place).detach()) for place in places]
    if made.teachers:
        share = float(batch.teacher_weights[0])
        policy, teacher = (torch.cat([distributions(net, *place) for place in places]) for net in (model, reference))
        divergence = (teacher.detach().exp() * (teacher.detach() - policy)).sum(1).mean()
        loss = share * divergence - (1 - share) * torch.cat([own for own, _ in rows]).mean()
    elif isinstance(made, DPOConfig):
        loss = plain_pair_loss([SIZES[made.dpo.loss](*row) for row in rows], made.dpo)
    else:
        loss = -torch.cat([own for own, _ in rows]).mean()
    loss.backward()
    return {name: each.grad for name, each in model.named_parameters()}


def plain_pair_loss(sizes, keys):
    h = torch.stack([better - worse for better, worse in zip(sizes[0::2], sizes[1::2], strict=True)])
    if keys.loss == "ipo":
        return (h - 1 / (2 * keys.beta)).square().mean()
    z, wrong = keys.beta * h - keys.margin, keys.label_smoothing
    return (-(1 - wrong) * logsigmoid(z) - wrong * logsigmoid(-z)).mean()


def test_the_gradient_is_that_of_the_formula_in_plain_torch(weighed):
    ours = gradient(weighed.world / "model", [weighed.ready], weighed.loss, totals_of(weighed.ready))
    assert distance(ours, plain_gradient(weighed.world, weighed.given, weighed.config)) <= 5e-6


def test_two_ranks_and_packed_rows_have_the_gradient_of_rows_one_by_one(weighed):
    """Whatever shares a rank or a micro-batch, also where the answers of a pair do not; relative to its length."""
    ready, totals, model = weighed.ready, totals_of(weighed.ready), weighed.world / "model"
    one_by_one = gradient(model, [ready], weighed.loss, totals, max_tokens_per_microbatch=1)
    packed = gradient(model, [ready], weighed.loss, totals)
    ranks = gradient(model, shards(ready, 2), weighed.loss, totals)
    assert len(shards(ready, 2)[0]) not in (0, len(ready))
    assert max(distance(packed, one_by_one), distance(ranks, one_by_one)) <= 1e-6


def test_a_pair_loss_rewards_the_better_answer_and_ipo_has_an_end():
    strengths = torch.tensor([1.0, 0.0, 0.0, 1.0])
    usual, wrong = pair_losses(strengths, DPOKeysConfig(beta=1.0)).tolist()
    assert (usual, wrong) == (pytest.approx(0.31326, abs=1e-5), pytest.approx(1.31326, abs=1e-5))
    assert pair_losses(torch.tensor([5.0, 0.0]), DPOKeysConfig(loss="ipo", beta=0.1)).item() == 0


def run(world, out, **changes):
    summary = pipeline_for(config(world, out, **changes), local=True).run()
    folder = out / "run"
    rows, groups = ([json.loads(line) for line in (folder / name).read_text().splitlines()] for name in FILES)
    return SimpleNamespace(summary=summary, rows=rows, groups=groups, folder=folder)


FILES = ("metrics.jsonl", "groups.jsonl")


def curve(made, name):
    return {row["step"]: row[name] for row in made.rows if name in row}


def test_sft_learns_and_every_row_is_accounted_for(world, tmp_path):
    from roll.cli.verify import main as verify

    made = run(world, tmp_path)
    assert (made.summary["status"], made.summary["steps"]) == ("finished", 6)
    assert made.summary["groups"]["trained"] == 48
    losses = curve(made, "val/loss")
    assert sorted(losses) == [0, 3, 6] and losses[0] > losses[3] > losses[6]
    assert curve(made, "val/score/mean")[6] == -losses[6]
    assert curve(made, "actor/pg_loss")[1] > curve(made, "actor/pg_loss")[6]
    assert not [name for row in made.rows for name in row if name.startswith(("rewards/", "critic/", "actor/ratio"))]
    epochs = [row["prompt_uid"].split("/")[1] for row in made.groups]
    assert (epochs.count("0"), epochs.count("1")) == (24, 24)
    assert verify([str(made.folder)]) == 0


def test_the_loss_of_the_first_step_is_the_mean_over_its_trained_tokens(world, tmp_path):
    made = run(world, tmp_path, max_steps=1)
    prepared = prepare(config(world, tmp_path / "again"), LocalBackend().devices(1, None), one_process=True)
    batch = token_batch([complete(SampleGroup(i, 0, prepared.source.next())) for i in range(8)], 1.0)
    log_probs = strategy(world / "model").log_probs(batch)
    assert curve(made, "actor/pg_loss")[1] == pytest.approx(-float(log_probs[batch.loss_mask].mean()), rel=1e-5)


@pytest.mark.parametrize("kind", ["sft", "half of it", "sigmoid"])
def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(world, tmp_path, kind):
    changes = changes_of(kind, world) | {"deterministic": True}
    whole = run(world, tmp_path / "whole", **changes)
    run(world, tmp_path / "halves", **changes, max_steps=3)
    halves = run(world, tmp_path / "halves", **changes, resume_from_checkpoint=True)
    assert halves.summary["resumed_from_step"] == 3
    name = "pairs/loss" if kind == "sigmoid" else "actor/total_loss"
    assert curve(halves, name) == curve(whole, name)
    assert curve(halves, "val/loss")[6] == curve(whole, "val/loss")[6]
    assert [row["prompt_uid"] for row in halves.groups] == [row["prompt_uid"] for row in whole.groups]


def test_a_student_learns_what_its_teacher_would_say_of_the_rows(world, tmp_path):
    from roll.cli.export import main as export
    from roll.cli.verify import main as verify

    actor = settings(world, tmp_path)["actor_train"]
    actor["training_args"]["learning_rate"] = 0.01
    changes = LOSSES["all of it"] | taught_by(world / "other", 1.0) | {"actor_train": actor}
    made = run(world, tmp_path, **changes, max_steps=20, eval_steps=20)
    losses = curve(made, "actor/divergence")
    assert losses[20] < 0.25 * losses[1]
    assert curve(made, "actor/total_loss") == pytest.approx(losses, rel=1e-4), "no cross-entropy at a share of 1"
    assert set(curve(made, "teacher/token_share").values()) == set(curve(made, "teacher/weight").values()) == {1.0}
    assert verify([str(made.folder)]) == 0
    assert export(["--checkpoint", str(made.folder), "--output", str(tmp_path / "student")]) == 0
    before, after = (agreement(world, folder) for folder in (world / "model", tmp_path / "student"))
    assert after > 0.75 > 0.3 > before


def agreement(world, folder):
    """Share of the answers' tokens at which the teacher's most probable token is the student's, too."""
    prepared = prepare(config(world, folder / "unused"), LocalBackend().devices(1, None), one_process=True)
    batch = token_batch([complete(SampleGroup(i, 0, prepared.source.next())) for i in range(24)], 1.0)
    one, other = (strategy(each).top_log_probs(batch, 1)[1] for each in (world / "other", folder))
    return float((one == other).double().mean())


def test_dpo_learns_to_prefer_and_keeps_its_best_step(world, tmp_path):
    made = run(world, tmp_path, **changes_of("sigmoid", world), keep_best={})
    assert curve(made, "val/loss")[6] < curve(made, "val/loss")[0]
    assert curve(made, "val_correct/all/mean")[6] > 0.8 and curve(made, "val/margin")[6] > 0
    assert (made.folder / "checkpoints" / "best").exists()


def test_adapters_are_trained_and_exported_merged(world, tmp_path):
    from roll.cli.export import main as export

    actor = settings(world, tmp_path)["actor_train"] | {"model_args": {"lora_target": "all-linear", "lora_rank": 4}}
    made = run(world, tmp_path, actor_train=actor)
    assert curve(made, "val/loss")[6] < curve(made, "val/loss")[0]
    assert export(["--checkpoint", str(made.folder), "--output", str(tmp_path / "exported")]) == 0
    before, after = (load_model(each, torch.float32, "eager").state_dict() for each in (world / "model", tmp_path / "exported"))
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed and all("proj" in name for name in changed)


def test_sets_are_mixed_by_weight(world, tmp_path):
    (tmp_path / "few.jsonl").write_text("".join((world / "train.jsonl").read_text().splitlines(keepends=True)[:5]))
    data = {"file_name": [str(world / "train.jsonl"), str(tmp_path / "few.jsonl")]}
    data["domain_interleave_probs"] = {"train": 3.0, "few": 1.0}
    made = run(world, tmp_path / "out", actor_train=settings(world, tmp_path)["actor_train"] | {"data_args": data})
    names = [row["prompt_uid"].split("/")[0] for row in made.groups]
    assert (names.count("train"), names.count("few")) == (36, 12)


def test_epochs_decide_the_number_of_steps(world, tmp_path):
    without = {key: value for key, value in settings(world, tmp_path).items() if key != "max_steps"}
    made = load_config(SFTConfig, without | {"total_epochs": 1.5})
    assert pipeline_for(made, local=True).run()["steps"] == 4, "1.5 x 24 rows in batches of 8"


def test_what_watches_a_run_watches_rows_too_and_what_replays_one_records_nothing(world, tmp_path):
    told = tmp_path / "told.json"
    watching = {"metrics_address": ":0", "on_event": {"finished": ["tee", str(told)]}}
    made = run(world, tmp_path, max_steps=1, rollout_log_per_step="all", **watching)
    assert json.loads(told.read_text())["event"] == "finished"
    assert not (made.folder / "batches.jsonl").exists(), "roll replay has no use for rows, which the seed decides"
