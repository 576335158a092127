"""Experts on their way from the trainers to the embedded engine: published names, whatever the trainer and the engine hold."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file
from train_specs import train_spec
from transformers import AutoModelForCausalLM

from roll.core.weights.bucket import manifest_of
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.strategies.infer.hf.shadow_weights import ShadowWeights
from roll.strategies.infer.hf.strategy import HFInferStrategy
from roll.transports.buckets import make_buckets

pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")

MODELS = ("qwen3_moe", "qwen2_moe")


def trained(backend, path, rank_program):
    strategy = make_train_strategy(RankContext(), train_spec(backend, path, **rank_program.OPTIONS))
    batch = rank_program.make_batch(0)
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    return strategy


async def update_and_generate(path, buckets, prompt):
    engine = HFInferStrategy(path, max_running_requests=2, max_length=32)
    try:
        for bucket in buckets:
            await engine.receive_bucket(1, bucket)
        await engine.activate_weights(manifest_of(1, buckets), "interrupt")
        sampling = SamplingParams(max_new_tokens=6, temperature=0.7, seed=3)
        return await engine.generate(GenerateRequest("r", prompt, sampling))
    finally:
        await engine.close()


@pytest.mark.parametrize("backend", ["megatron_train", "fsdp2_train"])
@pytest.mark.parametrize("model", MODELS)
def test_the_engine_samples_from_the_trained_mixture(megatron_models, rank_program, model, backend):
    path = str(megatron_models / model)
    strategy = trained(backend, path, rank_program)
    buckets = list(strategy.export_weights(3000))
    prompt = (5, 9, 3)
    result = asyncio.run(update_and_generate(path, buckets, prompt))
    batch = rank_program.make_batch(0, samples=1)
    tokens = torch.tensor([*prompt, *result.token_ids])
    mask = torch.arange(len(tokens)) >= len(prompt)
    batch = batch.with_(
        lengths=torch.tensor([len(tokens)]),
        tokens=tokens,
        loss_mask=mask,
        behaviour_logprobs=mask.float(),
        advantages=mask.float(),
        reference_logprobs=mask.float(),
    )
    said = strategy.log_probs(batch)[len(prompt) :]
    torch.testing.assert_close(torch.tensor(result.logprobs), said, rtol=1e-5, atol=1e-5)
    strategy.close()


@pytest.mark.parametrize("model", MODELS)
def test_updates_of_every_back_end_have_the_published_names(megatron_models, rank_program, model):
    path = megatron_models / model
    expected = load_file(path / "model.safetensors").keys()
    for backend in ("megatron_train", "fsdp2_train"):
        strategy = make_train_strategy(RankContext(), train_spec(backend, path, **rank_program.OPTIONS))
        assert {name for bucket in strategy.export_weights(3000) for name in bucket.tensors} == expected
        strategy.close()


def test_an_update_without_one_expert_changes_nothing(megatron_models):
    model = AutoModelForCausalLM.from_pretrained(megatron_models / "qwen3_moe")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lost = "model.layers.1.mlp.experts.2.up_proj.weight"
    named = [(n, t + 1) for n, t in load_file(megatron_models / "qwen3_moe/model.safetensors").items() if n != lost]
    shadow, buckets = ShadowWeights(model), list(make_buckets(named, 1 << 20))
    for bucket in buckets:
        shadow.receive(1, bucket)
    with pytest.raises(ValueError, match=rf"do not cover the model: \['{lost}'\] missing"):
        shadow.flip(manifest_of(1, buckets))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
