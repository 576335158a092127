"""A frozen model of each back end takes a version that a trainer has published, or nothing of it."""

from dataclasses import replace

import pytest
import torch
from train_specs import train_spec

from roll.core.weights.adapter import AdapterSource
from roll.core.weights.bucket import WeightManifest
from roll.core.weights.received import ReceivedWeights
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext

ADAPTED = {"lora_target": "all-linear", "lora_rank": 4, "learning_rate": 0.05}


def published(strategy, version, received):
    """Sends the strategy's weights in small buckets; their manifest."""
    manifest = WeightManifest(version)
    for bucket in strategy.export_weights(1 << 12):
        received.receive(version, bucket)
        manifest.names += bucket.tensors
        manifest.checksums.append(bucket.checksum)
    return manifest


@pytest.fixture
def trained(rank_program):
    """`trained(model, **options)`: a policy after a step."""

    def make(model, **options):
        strategy = make_train_strategy(RankContext(), train_spec("fsdp2_train", model, **rank_program.OPTIONS | options))
        batch = rank_program.make_batch(0)
        strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
        return strategy

    return make


@pytest.mark.parametrize(
    ("back_end", "options", "family"),
    [
        ("fsdp2_infer", {}, "qwen2-tied"),
        ("fsdp2_infer", {}, "qwen3_moe"),
        ("deepspeed_infer", {"zero": {"stage": 2}}, "qwen3-untied"),
        ("deepspeed_infer", {"zero": {"stage": 3}}, "qwen2-tied"),
        ("megatron_infer", {}, "llama-tied"),
    ],
)
def test_log_probs_are_those_of_the_published_policy(megatron_models, rank_program, trained, back_end, options, family):
    pytest.importorskip(back_end.split("_")[0].replace("fsdp2", "torch"))
    model, batch, received = megatron_models / family, rank_program.make_batch(1), ReceivedWeights(torch.float32)
    policy = trained(model)
    copy = make_train_strategy(RankContext(), train_spec(back_end, model, dtype="fp32", **options))
    before, expected = copy.log_probs(batch), policy.log_probs(batch)
    assert (before - expected).abs().max() > 1e-3
    copy.set_weights(received.take(published(policy, 1, received)))
    torch.testing.assert_close(copy.log_probs(batch), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="of another model"):
        copy.set_weights({name: tensor for name, tensor in list(policy._model.state_dict().items())[1:]})
    torch.testing.assert_close(copy.log_probs(batch), expected, rtol=1e-5, atol=1e-5)
    policy.close()
    copy.close()


def test_adapters_alone_are_merged_with_the_base(family_models, rank_program, trained):
    model, batch = family_models / "qwen2-tied", rank_program.make_batch(1)
    received = ReceivedWeights(torch.float32, AdapterSource(str(model), 4))
    policy = trained(model, export_adapters=True, **ADAPTED)
    copy = make_train_strategy(RankContext(), train_spec("fsdp2_infer", model, dtype="fp32"))
    manifest = published(policy, 1, received)
    assert any(name.endswith("lora_A.weight") for name in manifest.names)
    copy.set_weights(received.take(manifest))
    torch.testing.assert_close(copy.log_probs(batch), policy.log_probs(batch), rtol=1e-5, atol=1e-5)


def test_what_is_not_whole_or_of_another_version_is_refused(family_models, trained):
    policy, received = trained(family_models / "qwen2-tied"), ReceivedWeights(torch.float32)
    manifest = published(policy, 1, received)
    with pytest.raises(ValueError, match="version 2 were requested"):
        received.take(replace(manifest, version=2))
    published(policy, 1, received)
    with pytest.raises(ValueError, match="differ in"):
        received.take(replace(manifest, names=manifest.names[1:]))
    bucket = next(iter(policy.export_weights(1 << 12)))
    next(iter(bucket.tensors.values())).add_(1)
    with pytest.raises(ValueError, match="corrupt"):
        received.receive(1, bucket)
