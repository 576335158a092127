"""`async_generation_ratio: 0` is the plain sequential loop: with `deterministic`, bit for bit.

The loop below is that algorithm written down: one prompt, one request, one reward after another, from the product's primitives
but without its pipeline, stages, explorer, admission, buffer or back end."""

import asyncio

import pytest
import torch
from integration_rewards import verdict
from safetensors.torch import load_file
from train_specs import fsdp2_spec

from roll.algorithms.loss import LossSpec, prepare_batch
from roll.data.prompt_file import read_rows
from roll.data.prompt_source import PromptSource, tokenize_prompts
from roll.data.sample import Sample, SampleGroup
from roll.data.seeding import derive_seed
from roll.strategies.infer.hf.strategy import HFInferStrategy
from roll.strategies.infer.interface import GenerateRequest, SamplingParams
from roll.strategies.model_folder import open_tokenizer
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.interface import RankContext
from roll.trainer.advantages import RLVRAdvantages
from roll.trainer.batch import optimiser_batches, token_batch, totals_of
from roll.weights.bucket import manifest_of

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


def worth_training(config, rewards):
    wish = config.rewards["sums"].query_filter_config
    mean = sum(rewards) / len(rewards)
    return wish.type == "no_filter" or wish.filter_args.threshold_down < mean < wish.filter_args.threshold_up


async def sequential_loop(config, loss, optimiser_batch_size):
    """Returns the final weights by name, and the uids of the trained prompts."""
    model = config.pretrain
    rows = read_rows(config.actor_train.data_args)
    tags = {"odd": "sums", "even": "sums"}
    rows, _ = tokenize_prompts(rows, open_tokenizer(model), "none", config.prompt_length, tags)
    prompts = PromptSource(rows.by_domain(), {}, SEED)
    trainer = FSDP2Strategy(RankContext(seed=SEED, deterministic=True), fsdp2_spec(model, learning_rate=0.003))
    engine = HFInferStrategy(model, max_running_requests=1, max_length=16, threads=1, deterministic=True)
    advantages = RLVRAdvantages(config)
    trained = []
    for step in range(STEPS):
        groups = []
        while len(groups) < config.rollout_batch_size:
            group = SampleGroup(len(trained) + len(groups), step, prompts.next())
            temperatures = [1.0] * config.num_return_sequences_in_group + [0.0] * (config.adv_estimator == "remax")
            for i, temperature in enumerate(temperatures):
                seed = derive_seed(SEED, group.prompt.uid, i)
                sampling = SamplingParams(temperature, max_new_tokens=8, stop_token_ids=(EOS, PAD), seed=seed)
                done = await engine.generate(GenerateRequest(str(i), tuple(group.prompt.input_ids), sampling))
                assert done.finish_reason in ("stop", "length")
                group.samples.append(
                    Sample(group.prompt, i, done.token_ids, done.logprobs, done.versions, done.finish_reason, done.text)
                )
                group.samples[-1].reward = verdict(done.text)
            if config.adv_estimator == "remax":
                group.baseline = group.samples.pop()
            if worth_training(config, group.rewards):
                groups.append(group)
        trained += [group.prompt.uid for group in groups]
        batch, _ = advantages(token_batch(groups, 1.0), groups)
        shuffle = derive_seed(SEED, "shuffle", step)
        for part in optimiser_batches(batch, len(batch) // optimiser_batch_size, config.ppo_epochs, shuffle):
            trainer.train_step(prepare_batch(part, loss), loss, totals_of(part))
        buckets = list(trainer.export_weights(1 << 20))
        for bucket in buckets:
            await engine.receive_bucket(step + 1, bucket)
        await engine.activate_weights(manifest_of(step + 1, buckets), "interrupt")
    await engine.close()
    return {name: tensor for bucket in buckets for name, tensor in bucket.tensors.items()}, trained


def assert_equals_the_loop(run, config, loss, batch_size):
    expected, uids = asyncio.run(sequential_loop(config, loss, batch_size))
    weights = load_file(run.run_dir / "checkpoints" / f"step-{STEPS}" / "trainer" / "model" / "model.safetensors")
    start = load_file(f"{config.pretrain}/model.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, expected[name]), f"{name} differs by {(tensor - expected[name]).abs().max():.3g}"
    assert sum((weights[name] - start[name]).norm() for name in weights) > 1, "the comparison means nothing if nothing was learnt"
    assert [row["prompt_uid"] for row in run.rows("groups") if row["fate"] == "trained"] == uids


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
    from roll.distributed.ray_backend import RayBackend

    changes, loss, batch_size = VARIANTS["ppo with 2 x 2 optimiser steps"]
    config = deterministic(make_config, changes)
    run = lab.start(config, RayBackend(lab.inventory))
    lab.check_accounts(run, config)
    assert_equals_the_loop(run, config, loss, batch_size)
