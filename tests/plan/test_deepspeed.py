"""DeepSpeed's JSON as `strategy_config`, and the LoRA keys: what is taken, what is refused and how."""

import pytest

from roll.core.configs.backend_arguments import DeepSpeedConfig
from roll.core.configs.plain import to_mapping
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.backend_rules import deepspeed_problems
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

# As it stands in ROLL's deepspeed_zero3_cpuoffload, numbers in YAML 1.1's spellings included.
ZERO3_CPU_OFFLOAD = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16},
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": "1e9",
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1000000000.0,
        "stage3_max_reuse_distance": 1000000000,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}


def configure(strategy_config, model_args=None, role="actor_train", strategy="deepspeed_train"):
    block = {"strategy_args": {"strategy_name": strategy, "strategy_config": strategy_config}, "model_args": model_args or {}}
    roles = {
        "actor_train": {"device_mapping": 0, "data_args": {"file_name": "train.jsonl"}},
        "actor_infer": {"device_mapping": 1},
    }
    roles[role] = {**roles.get(role, {"device_mapping": 0}), **block}
    rewards = {"math": {"worker_cls": "my.Math"}}
    return load_config(RLVRConfig, {"pretrain": "model", "prompt_length": 16, "response_length": 8, "rewards": rewards, **roles})


def problems(*args, **kwargs):
    return {problem.key: str(problem) for problem in check_config(configure(*args, **kwargs), 2)}


def test_rolls_json_is_taken_as_it_stands():
    config = configure(ZERO3_CPU_OFFLOAD)
    assert check_config(config, 2) == []
    assert load_config(RLVRConfig, to_mapping(config)) == config
    zero = config.actor_train.strategy_args.options.zero_json()
    assert zero == {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
        "stage3_max_reuse_distance": 10**9,
        "stage3_gather_16bit_weights_on_model_save": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
    }
    assert all(type(zero[name]) is int for name in ("sub_group_size", "stage3_max_live_parameters"))


def test_the_defaults_are_stage_2_without_offloading():
    assert DeepSpeedConfig().zero_json() == {"stage": 2, "stage3_gather_16bit_weights_on_model_save": True}
    assert problems({}) == {}
    assert problems({}, role="reference", strategy="deepspeed_infer") == {}


def test_bf16_in_the_json_decides_where_model_args_leave_it_open():
    config = configure({"bf16": {"enabled": True}}).actor_train.strategy_args.options
    assert config.computed_in("auto") == "bf16"
    config = configure({"bf16": {"enabled": False}}).actor_train.strategy_args.options
    assert config.computed_in("auto") == "fp32"
    assert configure({}).actor_train.strategy_args.options.computed_in("auto") == "auto"


@pytest.mark.parametrize(
    ("block", "key", "advice"),
    [
        ({"zero_optimisation": {"stage": 1}}, "zero_optimisation", "did you mean zero_optimization?"),
        ({"zero_optimization": {"stages": 1}}, "zero_optimization.stages", "did you mean stage?"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage", "one of 0, 1, 2, 3"),
        (
            {"zero_optimization": {"offload_param": {"device": "nvme"}}},
            "zero_optimization.offload_param.device",
            "one of none, cpu",
        ),
        ({"zero_optimization": {"reduce_bucket_size": 0}}, "zero_optimization.reduce_bucket_size", "must be >= 1"),
    ],
)
def test_unknown_keys_and_values_are_refused_by_name(block, key, advice):
    with pytest.raises(ConfigError) as caught:
        configure(block)
    (problem,) = caught.value.problems
    assert problem.key == f"actor_train.strategy_args.strategy_config.{key}"
    assert advice in str(problem)


@pytest.mark.parametrize(
    ("block", "key", "message"),
    [
        ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu", "max_tokens_per_microbatch_in_train"),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps", "training_args.gradient_accumulation_steps"),
        ({"gradient_clipping": 1.0}, "gradient_clipping", "is set by max_grad_norm"),
        ({"optimizer": {"type": "Adam"}}, "optimizer", "training_args (learning_rate"),
        ({"scheduler": {"type": "WarmupLR"}}, "scheduler", "lr_scheduler_type"),
        ({"fp16": {"enabled": True}}, "fp16.enabled", "bf16: {enabled: true}"),
        ({"zero_force_ds_cpu_optimizer": True}, "zero_force_ds_cpu_optimizer", "torch's AdamW"),
        ({"zero_optimization": {"stage": 0}, "bf16": {"enabled": True}}, "zero_optimization.stage", "stage: 1"),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            "zero_optimization.offload_param.device",
            "stage 2 does not divide the weights",
        ),
        (
            {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
            "zero_optimization.offload_optimizer.device",
            "stage 0 does not offload",
        ),
    ],
)
def test_what_other_keys_set_is_refused_with_their_name(block, key, message):
    (found,) = problems(block).items()
    assert found[0] == f"actor_train.strategy_args.strategy_config.{key}"
    assert message in found[1]


@pytest.mark.parametrize(
    ("enabled", "dtype", "refused"), [(True, "fp32", 1), (False, "bf16", 1), (True, "bf16", 0), (False, "fp32", 0)]
)
def test_number_type_is_said_once(enabled, dtype, refused):
    config = configure({"bf16": {"enabled": enabled}}).actor_train.strategy_args.options
    found = list(deepspeed_problems("actor_train", config, dtype, True))
    assert len(found) == refused and all("model_args.dtype" in str(problem) for problem in found)


def test_each_role_has_its_strategies():
    found = problems({}, role="actor_infer")
    assert "does not fit actor_infer" in found["actor_infer.strategy_args.strategy_name"]
    found = problems({}, strategy="deepspeed_infer")
    assert "fsdp2_train or deepspeed_train" in found["actor_train.strategy_args.strategy_name"]


@pytest.mark.parametrize(
    ("model_args", "role", "strategy", "key", "message"),
    [
        ({"lora_alpha": 8}, "actor_train", "fsdp2_train", "lora_alpha", "no effect without lora_target"),
        (
            {"lora_target": "q_proj", "lora_dropout": 0.1},
            "actor_train",
            "fsdp2_train",
            "lora_dropout",
            "the ratio of two log-probs",
        ),
        ({"lora_target": "q_proj"}, "actor_train", "megatron_train", "lora_target", "megatron_train trains no adapters"),
        ({"lora_target": "q_proj"}, "reference", "fsdp2_infer", "lora_target", "reference is the model without adapters"),
    ],
)
def test_lora_keys_that_would_do_nothing(model_args, role, strategy, key, message):
    (found,) = problems({}, model_args, role, strategy).items()
    assert found[0] == f"{role}.model_args.{key}"
    assert message in found[1]


def test_lora_as_in_rolls_yaml():
    model_args = {"lora_target": "o_proj,q_proj,k_proj,v_proj", "lora_rank": 32, "lora_alpha": 32}
    assert problems(ZERO3_CPU_OFFLOAD, model_args) == {}
    assert problems({}, model_args, role="actor_infer", strategy="hf_infer") == {}, "ROLL repeats them for the engines"
