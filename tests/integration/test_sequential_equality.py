"""`async_generation_ratio: 0` is the plain sequential loop of examples/one_file.py: with `deterministic`, bit for bit.

The loop is made of the product's primitives, but of neither pipeline, stages, explorer, admission, buffer nor back end."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from integration_rewards import verdict
from safetensors.torch import load_file
from train_specs import fsdp2_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.workers.infer_interface import SamplingParams

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from one_file import plain_loop

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, SEED = 5, 42
PAD, EOS = 0, 1
VARIANTS = {
    "tis": ({"actor_train.pg_variant": "tis"}, LossSpec(pg_variant="tis", aggregation="seq-mean-token-mean"), 16),
    "ppo with 2 x 2 optimiser steps": (
        {"actor_train.pg_variant": "ppo", "ppo_epochs": 2, "actor_train.training_args.per_device_train_batch_size": 8},
        LossSpec(pg_variant="ppo", aggregation="seq-mean-token-mean"),
        8,
    ),
    "topr with a filter that replaces prompts": (
        {
            "actor_train.pg_variant": "topr",
            "loss_agg_mode": "token-mean",
            "rewards.sums.query_filter_config": {
                "type": "mean_filter",
                "filter_args": {"threshold_down": 0.3, "threshold_up": 0.8},
            },
        },
        LossSpec(pg_variant="topr", aggregation="token-mean"),
        16,
    ),
    "remax": (
        {"actor_train.pg_variant": "reinforce", "adv_estimator": "remax", "reward_clip": 0.5},
        LossSpec(pg_variant="reinforce", aggregation="seq-mean-token-mean"),
        16,
    ),
}


async def sequential_loop(config, loss, batch_size):
    """Returns the final weights by name, and the uids of the trained prompts."""
    spec = fsdp2_spec(config.pretrain, learning_rate=0.003)
    sampling = SamplingParams(max_new_tokens=8, stop_token_ids=(EOS, PAD))
    tags = {"odd": "sums", "even": "sums"}
    loop = plain_loop(config, spec, loss, batch_size, sampling, tags, lambda sample: verdict(sample.response_text))
    steps = [step async for step in loop]
    weights = {name: tensor for bucket in steps[-1][1] for name, tensor in bucket.tensors.items()}
    return weights, [group.prompt.uid for groups, _ in steps for group in groups]


def assert_equals_the_loop(run, config, loss, batch_size):
    expected, uids = asyncio.run(sequential_loop(config, loss, batch_size))
    weights = load_file(run.run_dir / "checkpoints" / f"step-{STEPS}" / "trainer" / "model" / "model.safetensors")
    start = load_file(f"{config.pretrain}/model.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, expected[name]), f"{name} differs by {(tensor - expected[name]).abs().max():.3g}"
    assert sum((weights[name] - start[name]).norm() for name in weights) > 1, "the comparison means nothing if nothing was learnt"
    assert [row["prompt_uid"] for row in run.rows("groups") if row["status"] == "trained"] == uids


def deterministic(make_config, changes, **more):
    return make_config(changes, max_steps=STEPS, deterministic=True, seed=SEED, **more)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pipeline_equals_the_plain_loop_bit_for_bit(lab, make_config, variant):
    changes, loss, batch_size = VARIANTS[variant]
    config = deterministic(make_config, changes)
    run = lab.run(config)
    assert_equals_the_loop(run, config, loss, batch_size)
    if "filter" in variant:
        assert sum(run.summary["groups"]["dropped"].values()) > 0, "the filter has to replace something"


def test_neither_colocation_nor_routing_changes_a_bit(lab, make_config):
    """One device for both roles, every sample routed on its own, few slots, rewards that come in any order."""
    changes, loss, batch_size = VARIANTS["tis"]
    changes = changes | {
        "actor_infer.device_mapping": "0",
        "is_num_return_sequences_expand": True,
        "max_running_requests": 3,
        "rewards.sums.worker_cls": f"{lab.rewards}.SlowLetters",
        "rewards.sums.reward_args": {"max_s": 0.01},
    }
    config = deterministic(make_config, changes)
    assert_equals_the_loop(lab.run(config), config, loss, batch_size)


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_on_ray_workers_too(lab, make_config):
    from roll.platform.ray_backend import RayBackend

    changes, loss, batch_size = VARIANTS["ppo with 2 x 2 optimiser steps"]
    config = deterministic(make_config, changes)
    run = lab.start(config, RayBackend(lab.inventory))
    lab.check_accounts(run, config)
    assert_equals_the_loop(run, config, loss, batch_size)


def test_the_file_runs_as_it_says(tmp_path, embedded_task):
    (tmp_path / "examples/embedded").mkdir(parents=True)
    (tmp_path / "examples/embedded/cache").symlink_to(embedded_task)
    (tmp_path / "examples/config").symlink_to(EXAMPLES / "config")
    small = ["max_steps=2", "rollout_batch_size=4", "actor_train.training_args.per_device_train_batch_size=32"]
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "one_file.py", *small], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"(step \d/2  reward 0\.\d{3}\n){2}", ran.stdout)
