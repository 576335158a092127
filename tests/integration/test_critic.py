"""Runs with a critic: it learns the returns, the policy waits for it, and a resumed run is the one that was not interrupted."""

import asyncio
import math

import pytest
from safetensors.torch import load_file

from roll.core.configs.problems import ConfigError
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import RLVRRun, prepare

PPO = {
    "actor_infer.generating_args.eos_token_id": 1,
    "adv_estimator": "gae",
    "critic.device_mapping": "0",
    "critic.training_args.learning_rate": 0.01,
    "critic.training_args.lr_scheduler_type": "constant",
    "critic.training_args.per_device_train_batch_size": 8,
    "whiten_advantages": True,
    "value_clip": 0.5,
    "deterministic": True,
}
NAMES = {
    "policy": ("trainer", "model.safetensors"),
    "critic": ("critic", "model.safetensors"),
    "head": ("critic", "value_head.safetensors"),
}


def weights(run, step, of):
    folder, name = NAMES[of]
    return load_file(run.run_dir / "checkpoints" / f"step-{step}" / folder / "model" / name)


def same(one, other):
    return one.keys() == other.keys() and all(other[name].equal(tensor) for name, tensor in one.items())


def test_the_critic_learns_while_the_policy_warms_up(lab, make_config):
    """Device 0 is shared: critic and policy take turns. In the warm-up versions go on, with the weights of the start."""
    config = make_config(PPO, max_steps=8, critic_warmup=6, save_steps=4, **{"critic.training_args.learning_rate": 0.02})
    run = lab.run(config)
    steps = run.steps()
    assert [row["actor_train/optimiser_steps"] for row in steps] == [0.0] * 6 + [1.0] * 2
    assert all(row["critic/optimiser_steps"] == 2.0 for row in steps)
    losses = [row["critic/value_loss"] for row in steps]
    assert all(map(math.isfinite, losses))
    # Rewards are 0 or 1, nearly by chance: half their variance, 0.125, is as low as the loss can get.
    assert losses[0] > 0.18 and sum(losses[3:6]) / 3 < 0.14
    assert all(abs(row["critic/values/mean"] - row["critic/returns/mean"]) < 0.35 for row in steps[3:6])
    start = load_file(f"{config.pretrain}/model.safetensors")
    assert same(start, weights(run, 4, "policy"))
    assert not same(start, weights(run, 8, "policy"))
    assert not same(weights(run, 4, "head"), weights(run, 8, "head"))


def interrupt_after(config, step, lab):
    """Ends the run as Ctrl-C does, with a checkpoint that was not due."""
    pipeline = RLVRRun(config, prepare(config, lab.inventory), lab.inventory, LocalBackend())
    add_step = pipeline.state.record.add_step

    def add_and_interrupt(done, *args):
        row = add_step(done, *args)
        if pipeline.state.record.step == step:
            pipeline.interrupt()
        return row

    pipeline.state.record.add_step = add_and_interrupt
    assert asyncio.run(pipeline.run())["status"] == "interrupted"
    assert pipeline.state.saved_step == step


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(lab, make_config, interrupted):
    whole = lab.run(make_config(PPO, exp_name="whole", max_steps=4))
    if interrupted:
        interrupt_after(make_config(PPO, exp_name="parts", max_steps=4), 2, lab)
    else:
        lab.run(make_config(PPO, exp_name="parts", max_steps=2))
    parts = lab.run_local(make_config(PPO, exp_name="parts", max_steps=4, resume_from_checkpoint=True))
    assert parts.summary["status"] == "finished", parts.summary["reason"]
    for of in NAMES:
        assert same(weights(whole, 4, of), weights(parts, 4, of))
    told = ("critic/value_loss", "critic/values/mean", "actor/pg_loss", "critic/advantages/max")
    assert [[row[name] for name in told] for row in whole.steps()] == [[row[name] for name in told] for row in parts.steps()]


def test_rollouts_ahead_beside_a_reference_on_devices_of_their_own(lab, make_config):
    """Asynchronous, the critic shares the engines' device, token-level KL in the reward, two epochs, log-probs recomputed."""
    run = lab.run(
        make_config(
            {
                **PPO,
                "deterministic": False,
                "critic.device_mapping": "1",
                "async_generation_ratio": 1,
                "add_token_level_kl": True,
                "init_kl_coef": 0.1,
                "reference.device_mapping": "0",
                "old_logprobs": "recompute",
                "ppo_epochs": 2,
                "lambd": 0.9,
                "gamma": 0.99,
            },
            max_steps=4,
        )
    )
    for row in run.steps():
        assert {"critic/kl", "critic/value_loss", "critic/explained_variance"} <= row.keys()
        assert row["actor_train/optimiser_steps"] == 2.0 and row["critic/optimiser_steps"] == 4.0
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def test_a_checkpoint_without_a_critic_is_refused_before_anything_starts(lab, make_config):
    lab.run(make_config(exp_name="parts", max_steps=1))
    with pytest.raises(ConfigError, match="was made without a critic"):
        lab.run_local(make_config(PPO, exp_name="parts", max_steps=2, resume_from_checkpoint=True))
