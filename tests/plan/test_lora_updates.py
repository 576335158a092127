"""`lora_update`: when adapters alone are sent, and the reason that the run tells."""

import pytest

from roll.core.configs.derived import decisions, derive
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config


def configure(engine="hf_infer", infer=None, given=None, **trained):
    return load_config(
        RLVRConfig,
        {
            "pretrain": "model",
            "rollout_batch_size": 8,
            "num_return_sequences_in_group": 8,
            "prompt_length": 16,
            "response_length": 8,
            "actor_train": {
                "device_mapping": "0",
                "training_args": {"per_device_train_batch_size": 16},
                "data_args": {"file_name": "train.jsonl"},
                "model_args": trained,
            },
            "actor_infer": {
                "device_mapping": "1",
                "strategy_args": {"strategy_name": engine, "strategy_config": given or {}},
                "model_args": infer or {},
            },
            "rewards": {"math": {"worker_cls": "my.Math"}},
        },
    )


@pytest.mark.parametrize(
    ("config", "adapters", "reason"),
    [
        (configure(), False, "all weights are trained"),
        (configure(lora_target="q_proj"), True, "hf_infer merges them"),
        (configure("vllm", lora_target="q_proj"), False, "vllm computes adapters beside their base"),
        (configure("vllm", lora_target="q_proj", lora_rank=512, lora_update="adapter"), True, "lora_update: adapter"),
        (configure("vllm", lora_target="q_proj", lora_rank=513), False, "rank 512 at most, lora_rank is 513"),
        (configure("sglang", lora_target="q_proj"), False, "sglang is not wired to take adapters"),
        (configure(lora_target="q_proj", lora_update="merged"), False, "lora_update: merged"),
        (configure(lora_target="q_proj", lora_update="adapter"), True, "lora_update: adapter"),
        (
            configure(infer={"model_name_or_path": "other"}, lora_target="q_proj"),
            False,
            "start from 'other', the trainer from 'model'",
        ),
        (configure(infer={"model_name_or_path": "model"}, lora_target="q_proj"), True, "that it has"),
    ],
)
def test_what_is_sent_and_why(config, adapters, reason):
    assert check_config(config, 2) == []
    derived = derive(config)
    assert derived.adapter_updates is adapters
    assert reason in derived.adapter_updates_reason
    told = [line for line in decisions(config, derived) if line.startswith("weight updates:")]
    if config.actor_train.model_args.lora_target is None:
        assert told == []
    else:
        assert told == [f"weight updates: {'adapters' if adapters else 'merged weights'} ({derived.adapter_updates_reason})"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (configure("sglang", lora_target="q_proj", lora_update="adapter"), "sglang is not wired"),
        (configure("vllm", lora_target="q_proj", lora_rank=600, lora_update="adapter"), "rank 512 at most"),
        (configure("vllm", given={"quantization": "fp8"}, lora_target="q_proj", lora_update="adapter"), "over weights in FP8"),
        (configure(lora_update="adapter"), "no effect without lora_target"),
    ],
)
def test_updates_by_adapters_that_cannot_be_are_refused(config, message):
    (problem,) = check_config(config, 2)
    assert problem.key == "actor_train.model_args.lora_update" and message in problem.message


@pytest.mark.parametrize("option", [{"lora_rank": 16}, {"lora_rank": 8}, {"lora_alpha": 16}])
def test_adapters_without_a_target_are_refused_rather_than_left_out(option):
    (problem,) = check_config(configure(**option), 2)
    assert problem.key == f"actor_train.model_args.{next(iter(option))}" and "lora_target: all-linear" in problem.fix
