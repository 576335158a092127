"""`train_on_arrival`: groups are trained while others are rolled out, and the update is that of the whole batch."""

import asyncio

import overlap_workers
import pytest
import torch
from overlap_workers import CALLS
from safetensors.torch import load_file

from roll.cli.verify import read_run, violations
from roll.core.configs.problems import ConfigError
from roll.core.distributed.devices import Inventory
from roll.core.trainer.on_arrival import TrainerOnArrival
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import RLVRRun, prepare

THREE_SLOTS = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)
ARRIVING = {
    "train_on_arrival": True,
    "actor_train.worker_cls": f"{overlap_workers.__name__}.Arriving",
    "rewards.sums.worker_cls": f"{overlap_workers.__name__}.AfterTraining",
}
TOLD = ("actor/", "actor_train/", "critic/", "rewards/", "staleness/")
KL = {
    "use_kl_loss": True,
    "kl_loss_coef": 0.05,
    "reference.device_mapping": "2",
    "old_logprobs": "recompute",
    "add_token_level_kl": True,
    "target_kl": 0.01,
    "difficulty_mask": True,
}


@pytest.fixture
def make_config(make_config):
    """Answers do not end at the padding token: most are as long as they may be."""
    return lambda changes=(), **keys: make_config({"actor_infer.generating_args.eos_token_id": 1, **dict(changes)}, **keys)


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def finished(lab, config):
    run = lab.start(config, LocalBackend(), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    return run


def weights(run, step):
    found = load_file(run.run_dir / "checkpoints" / f"step-{step}" / "trainer" / "model" / "model.safetensors")
    # Softmax does not see k_proj.bias: its gradient is rounding alone, of which AdamW makes whole steps.
    return torch.cat([found[name].flatten() for name in sorted(found) if "k_proj.bias" not in name])


@pytest.mark.parametrize("changes", [{}, KL, {"loss_agg_mode": "token-mean"}], ids=["grpo", "kl", "token-mean"])
def test_the_update_is_that_of_the_whole_batch(lab, make_config, changes):
    steps = 3
    whole = finished(lab, make_config(changes, exp_name="whole", max_steps=steps, save_steps=1))
    arriving = finished(lab, make_config(changes | ARRIVING, exp_name="arriving", max_steps=steps))
    assert CALLS.count("stepped") == steps and CALLS.count("gradients") > steps, "some step took its groups in parts"
    assert CALLS[0] == "gradients" and CALLS[-1] == "stepped"
    expected, got = weights(whole, steps), weights(arriving, steps)
    assert (got - expected).norm() <= 1e-6 * expected.norm() < 1e-3 * (expected - weights(whole, 1)).norm()
    for one, other in zip(whole.steps(), arriving.steps(), strict=True):
        told = [name for name, value in one.items() if name.startswith(TOLD) and isinstance(value, float)]
        assert len(told) > 20
        assert {name: other.get(name) for name in told} == pytest.approx({name: one[name] for name in told}, rel=1e-3, abs=1e-5)


def test_a_step_that_is_stopped_halfway_leaves_no_trace_in_the_run_that_resumes(lab, make_config, monkeypatch):
    whole = finished(lab, make_config(exp_name="whole", max_steps=3))
    config = make_config(ARRIVING, exp_name="parts", max_steps=3)
    pipeline = RLVRRun(config, prepare(config, THREE_SLOTS), THREE_SLOTS, LocalBackend())
    train = TrainerOnArrival.train

    async def train_and_stop(self, step):
        weights = await train(self, step)
        if step.number == 1 and len(self._parts) == 1:
            pipeline.interrupt()
        return weights

    with monkeypatch.context() as patched:
        patched.setattr(TrainerOnArrival, "train", train_and_stop)
        summary = asyncio.run(pipeline.run())
    assert (summary["status"], summary["steps"], CALLS.count("stepped")) == ("interrupted", 1, 1)
    assert CALLS[-1] == "gradients", "of the step that was stopped"
    again = {"train_on_arrival": True, "resume_from_checkpoint": True}
    parts = lab.start(make_config(again, exp_name="parts", max_steps=3), LocalBackend(), THREE_SLOTS)
    assert parts.summary["status"] == "finished", parts.summary["reason"]
    assert (weights(parts, 3) - weights(whole, 3)).norm() <= 1e-6 * weights(whole, 3).norm()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"actor_infer.device_mapping": "0"}, "actor_train.device_mapping"),
        ({"actor_train.strategy_args.strategy_name": "deepspeed_train"}, "actor_train.strategy_args.strategy_name"),
        ({"actor_train.strategy_args.strategy_name": "megatron_train"}, "actor_train.strategy_args.strategy_name"),
        ({"ppo_epochs": 2}, "ppo_epochs"),
        ({"actor_train.training_args.per_device_train_batch_size": 8}, "gradient_accumulation_steps"),
        ({"whiten_advantages": True}, "whiten_advantages"),
        ({"whiten_rewards": True}, "whiten_rewards"),
        ({"adv_estimator": "reinforce_plus_plus"}, "adv_estimator"),
        ({"adv_estimator": "gpg"}, "adv_estimator"),
        ({"adv_estimator": "gae", "critic.device_mapping": "2"}, "adv_estimator"),
        ({"adv_estimator": "my_module.mine"}, "adv_estimator"),
        ({"adv_estimator": "reinforce", "norm_mean_type": "batch"}, "norm_mean_type"),
        ({"adv_estimator": "reinforce", "norm_std_type": "running"}, "norm_std_type"),
        ({"deterministic": True}, "deterministic"),
        ({"actor_train.pg_variant": "m2po"}, "actor_train.pg_variant"),
    ],
)
def test_what_needs_the_whole_batch_is_refused_by_name(make_config, changes, key):
    with pytest.raises(ConfigError) as raised:
        prepare(make_config(changes, train_on_arrival=True), THREE_SLOTS)
    assert any(key in problem.key and "train_on_arrival" in str(problem) for problem in raised.value.problems)


def test_rollouts_ahead_are_trained_on_arrival_beside_a_reference_that_scores_ahead(lab, make_config):
    """Each trained once, none older than the bound, with slow rewards in any order."""
    slow = {"rewards.sums.worker_cls": f"{lab.rewards}.SlowLetters", "rewards.sums.reward_args": {"max_s": 0.05}}
    changes = {"train_on_arrival": True, "async_generation_ratio": 2, "save_steps": 2, **KL, **slow}
    run = finished(lab, make_config(changes, max_steps=6))
    assert all(row["actor_train/optimiser_steps"] == 1 and row["time/wait_for_batch_s"] >= 0 for row in run.steps())
    again = make_config(changes, max_steps=6, resume_from_checkpoint=str(run.run_dir / "checkpoints" / "step-2"))
    resumed = lab.start(again, LocalBackend(), THREE_SLOTS)
    assert (resumed.summary["status"], resumed.summary["resumed_from_step"]) == ("finished", 2)
    assert list(violations(read_run(resumed.run_dir))) == []
