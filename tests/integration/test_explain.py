"""`roll explain`: a step's gradient by sample and token, and the cause of a value that is not finite."""

import asyncio
import json
import math
import random

import pytest
import torch
from struck_workers import Struck

from roll.cli.explain import said, told
from roll.core.distributed.devices import Inventory
from roll.platform.local_backend import LocalBackend
from roll.prepare.replayed import beginning_of, explaining, replayed
from roll.prepare.rlvr_run import RLVRRun, prepare

THREE_SLOTS = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)
RECORDED = {
    "async_generation_ratio": 1,
    "rollout_log_per_step": "all",
    "deterministic": "training",
    "max_steps": 4,
    "save_steps": 2,
}


def explained(lab, config, run, step):
    begin, _ = beginning_of(run.run_dir, config, step)
    own = explaining(
        replayed(config, run.run_dir, run.run_dir.with_name(f"{run.run_dir.name}-explained-{step}"), begin, step), step
    )
    replay = lab.start(own, LocalBackend(), THREE_SLOTS)
    assert replay.summary["status"] == "finished", replay.summary["reason"]
    found = json.loads((replay.run_dir / "explained.json").read_text())
    return found | {"differs_from": min(json.loads((replay.run_dir / "replay.json").read_text())["different"], default=None)}


def recorded(lab, config, change=None, step=0):
    """A run in which `change` is done to the groups that `step` is given."""
    prepared = prepare(config, THREE_SLOTS)
    run = RLVRRun(prepared.config, prepared, THREE_SLOTS, LocalBackend())
    lease = run.state.groups.lease

    async def changed(number, *given):
        found = await lease(number, *given)
        if change is not None and number + 1 == step:
            change(found.groups)
        return found

    run.state.groups.lease = changed
    summary = asyncio.run(run.run())
    assert summary["status"] == "finished" or "logits are not finite" in summary["reason"], summary["reason"]
    return lab.run_of(summary, prepared.run_dir)


def test_shares_add_up_to_the_gradient_that_the_run_had(lab, make_config):
    config = make_config(RECORDED)
    run = recorded(lab, config)
    found = explained(lab, config, run, 4)
    assert found["cause"] is None and found["differs_from"] is None
    assert found["grad_norm"] == pytest.approx(run.steps()[3]["actor_train/grad_norm"], rel=1e-5)
    assert sum(sample["share"] for sample in found["samples"]) == pytest.approx(1, abs=1e-6)
    rows = {(row["group_id"], row["index"]): row for row in run.trained_samples() if row["step"] == 4}
    assert len(found["samples"]) == len(rows) == 16
    for sample in found["samples"]:
        row = rows[sample["group"], sample["index"]]
        assert sample["reward"] == row["reward"]
        for token in sample["tokens"]:
            assert token["id"] == row["response_ids"][token["place"]]
            assert token["behaviour_logprob"] == pytest.approx(row["behaviour_logprobs"][token["place"]], abs=1e-6)
            # Within the clipping range the derivative of ppo's loss by a log-prob has the sign of minus the advantage.
            assert token["push"] * token["advantage"] <= 0
    text = "\n".join(told(found))
    assert "step 4: gradient norm" in text and "not finite" not in text


def a_sample(groups, chance):
    group = chance.choice(groups)
    sample = chance.choice(group.samples)
    return group, sample, f"sample {group.group_id}/{sample.index}"


FAULTS = ("reward nan", "reward inf", "log-prob nan", "log-prob -inf", "bit")


@pytest.mark.parametrize("number", range(10))
def test_a_value_that_is_not_finite_is_traced_to_its_row_or_its_step(lab, make_config, number):
    chance = random.Random(number)
    what, _, value = FAULTS[number % len(FAULTS)].partition(" ")
    step, who = chance.randint(1, 4), ""
    config = make_config(RECORDED, exp_name=f"run{number}")

    def spoil(groups):
        nonlocal who
        _, sample, who = a_sample(groups, chance)
        if what == "reward":
            sample.reward = float(value)
        else:
            sample.behaviour_logprobs[0] = float(value)

    if what == "bit":
        Struck.at, Struck.calls, Struck.place = step, 0, chance.randrange(16)
        struck = make_config({**RECORDED, "actor_train.worker_cls": "struck_workers.Struck"}, exp_name=f"run{number}")
        run = recorded(lab, struck)
        assert math.isnan(run.steps()[step - 1]["actor_train/grad_norm"] or math.nan)
        found = explained(lab, config, run, step)
        assert found["cause"] is None, "what was recorded is sound"
        assert found["differs_from"] == step
        assert f"from version {step} on" in "\n".join(told(found))
        if step <= 2 < run.summary["steps"]:  # the checkpoint that step 3 begins with has the weight
            later = explained(lab, config, run, 3)
            assert said(later["cause"]).startswith("the weight model.layers.0.mlp.down_proj.weight[")
        return
    run = recorded(lab, config, spoil, step)
    found = explained(lab, config, run, step)
    assert found["differs_from"] is None, "the replay is equal, its fault included"
    told_of = said(found["cause"])
    assert f"the {'reward' if what == 'reward' else 'log-prob of the sampler'} of {who}" in told_of
    assert told_of.endswith(f"is {value}")


def test_the_module_that_makes_the_first_infinite_value_is_named():
    """A weight that is finite, and far too large."""
    from roll.strategies.train.explaining import _Explanation

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

        def forward(self, given):
            return self.second(self.first(given))

    model, explanation = Model(), object.__new__(_Explanation)
    explanation._model, explanation._faults = model, []
    with torch.no_grad():
        model.first.weight.fill_(1e20)
        model.first.bias.zero_()
        model.second.weight.fill_(1.0)
        model.second.weight[0, 1] = 3e38
    with explanation._watched():
        model(torch.ones(1, 2))
    fault = explanation._faults[0]
    assert (fault["module"], fault["tensor"], fault["largest_weight"]["name"]) == ("second", "output", "weight")
    assert fault["largest_weight"]["place"] == [0, 1]
