"""DPO on the best and the worst response of each group, as a run makes them."""

import json

import pytest
import tiny_world
import torch
from train_specs import fsdp2_spec

from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.core.pipeline.roles import loss_spec
from roll.core.trainer.batch import token_batch, totals_of
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.plan.rules.loading import load_config
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import RLVRRun, prepare
from roll.prepare.training_flow import pipeline_for
from roll.strategies.model_folder import load_model
from roll.topologies.rows.online_pairs import pair_of

BETA = 0.5
REWARDS = [(0.0, 1.0, 0.5, 1.0), (0.2, 0.1, 0.1, 0.9), (1.0, 1.0, 1.0, 1.0)]
"""Of each group; the last has no pair."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    tiny_world.make_world(folder)
    tiny_world.make_model(folder / "other", initializer_range=0.3)
    return folder


@pytest.fixture(autouse=True)
def _workers(monkeypatch):
    monkeypatch.syspath_prepend(str(tiny_world.WORKERS))


def config(world, out, **changes):
    given = tiny_world.settings(world)
    actor = {name: value for name, value in given["actor_train"].items() if name != "pg_variant"}
    given |= {"actor_train": actor, "output_dir": str(out), "max_steps": 6, "loss_agg_mode": "token-mean"}
    given |= {"reference": {"device_mapping": "0"}, "online_pairs": {"beta": BETA}, "rewards": {"even": dict(JUDGE)}}
    return load_config(RLVRConfig, given | changes)


JUDGE = {"worker_cls": "fault_workers.EvenRewardWorker"}


def group(number, rewards):
    prompt = Prompt(f"even/0/p{number}", [3 + number, 4], "", "even", "even", "")
    made = SampleGroup(number, 0, prompt)
    for i, reward in enumerate(rewards):
        ids = [5 + (number * 3 + i * 2 + k) % 9 for k in range(2 + (number + i) % 3)]
        made.samples.append(Sample(prompt, i, ids, [-1.0] * len(ids), [VersionSpan(0, len(ids), 0)], "stop", "", reward))
    return made


def log_probs(model, sample):
    ids = [*sample.prompt.input_ids, *sample.response_ids]
    found = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return found[len(sample.prompt.input_ids) - 1 :]


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "simpo"])
def test_the_gradient_is_that_of_the_pairs_in_plain_torch(world, tmp_path, loss):
    changes = {"online_pairs": {"beta": BETA, "loss": loss}} | ({"reference": None} if loss == "simpo" else {})
    made = config(world, tmp_path, **changes)
    prepared = prepare(made, LocalBackend().devices(2, None), one_process=True)
    groups, advantages = [group(i, rewards) for i, rewards in enumerate(REWARDS)], RLVRRun.advantages(made)
    assert [pair_of(each) for each in groups] == [(1, 0), (3, 1), None]
    model = make_train_strategy(RankContext(), fsdp2_spec(world / "model", max_grad_norm=1e9))
    frozen = make_train_strategy(RankContext(), fsdp2_spec(world / "other"))
    batch = token_batch(groups, 1.0, advantages.trains)
    batch = batch.with_(proximal_logprobs=model.log_probs(batch), reference_logprobs=frozen.log_probs(batch))
    ready, metrics = advantages(batch, groups)
    list(model._gradients(ready, model._policy_loss(loss_spec(made, prepared.derived), totals_of(ready))))

    plain, reference = (load_model(world / name, torch.float64, "eager") for name in ("model", "other"))
    losses = []
    for each in groups[:2]:
        better, worse = (each.samples[place] for place in pair_of(each))
        if loss == "sigmoid":
            h = [log_probs(plain, one).sum() - log_probs(reference, one).sum().detach() for one in (better, worse)]
        elif loss == "ipo":
            h = [(log_probs(plain, one) - log_probs(reference, one).detach()).mean() for one in (better, worse)]
        else:
            h = [log_probs(plain, one).mean() for one in (better, worse)]
        apart = h[0] - h[1]
        of_ipo = (apart - 1 / (2 * BETA)).square()
        losses.append(of_ipo if loss == "ipo" else -torch.nn.functional.logsigmoid(BETA * apart))
    torch.stack(losses).mean().backward()
    apart = whole = 0.0
    for (_, own), (_, of_plain) in zip(model._model.named_parameters(), plain.named_parameters(), strict=True):
        apart += float((own.grad.double() - of_plain.grad).square().sum())
        whole += float(of_plain.grad.square().sum())
    assert (apart / whole) ** 0.5 < 1e-5
    assert metrics["pairs/loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)


@pytest.mark.parametrize("ratio", [0, 1])
def test_a_run_trains_its_own_pairs_within_the_bound_and_drops_ties(world, tmp_path, ratio):
    from roll.cli.verify import main as verify

    watched = [{"metric": "pairs/loss", "above": 9.0}]  # a metric that the run has, so an alarm may watch it
    summary = pipeline_for(config(world, tmp_path, async_generation_ratio=ratio, alarms=watched), local=True).run()
    folder = tmp_path / "run"
    assert (summary["status"], summary["steps"]) == ("finished", 6), summary
    assert verify([str(folder)]) == 0
    rows, groups = ([json.loads(line) for line in (folder / name).read_text().splitlines()] for name in FILES)
    trained = [each for each in groups if each["status"] == "trained"]
    assert len(trained) == 6 * tiny_world.BATCH and max(each["lag"] for each in trained) <= ratio
    assert all(len(set(each["rewards"])) > 1 for each in trained)
    ties = [each for each in groups if each["status"] == "dropped" and len(set(each["rewards"])) == 1]
    assert ties and {each["reason"] for each in ties} == {"equal_rewards"}
    steps = [row for row in rows if "pairs/loss" in row]
    assert len(steps) == 6 and all("rewards/mean" in row for row in steps)
    assert steps[0]["pairs/loss"] == pytest.approx(0.6931, abs=1e-3), "the policy begins as the reference"


FILES = ("metrics.jsonl", "groups.jsonl")
REFUSED = {
    "adv_estimator": {"adv_estimator": "reinforce"},
    "loss_agg_mode": {"loss_agg_mode": "seq-mean-token-mean"},
    "reference": {"reference": None},
    "ppo_epochs": {"ppo_epochs": 2},
    "train_on_arrival": {"train_on_arrival": True},
    "num_return_sequences_in_group": {"num_return_sequences_in_group": 1},
    "online_pairs.margin": {"online_pairs": {"margin": 0.5}},
    "actor_infer.generating_args": {"actor_infer": {"device_mapping": "1", "generating_args": {"top_p": 0.9}}},
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_pairs_do_not_read_is_refused_by_name(world, tmp_path, key):
    with pytest.raises(ConfigError) as refused:
        prepare(config(world, tmp_path, **REFUSED[key]), LocalBackend().devices(2, None), one_process=True)
    assert key in {problem.key for problem in refused.value.problems}, refused.value


def test_a_step_of_several_optimiser_steps_is_refused(world, tmp_path):
    training = {"per_device_train_batch_size": tiny_world.BATCH}
    actor = config(world, tmp_path).actor_train.data_args
    given = {"device_mapping": "0", "training_args": training, "data_args": {"file_name": actor.file_name, "template": "none"}}
    with pytest.raises(ConfigError, match="gradient_accumulation_steps"):
        prepare(config(world, tmp_path, actor_train=given), LocalBackend().devices(2, None), one_process=True)
