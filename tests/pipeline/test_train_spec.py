"""What the ranks of a role are made of, from its configuration."""

import pytest

from roll.core.configs.arguments import FSDP2Config
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.configs.derived import derive
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.devices import Inventory
from roll.core.pipeline.roles import ALLOCATOR, infer_specs, train_spec, train_specs
from roll.plan.rules.loading import load_config
from roll.platform.local_backend import LocalBackend

ON = {"device_mapping": "0"}
GPUS = Inventory("cuda", nodes=1, per_node=2, cpus_per_node=8)
CPUS = Inventory("cpu", nodes=1, per_node=2, cpus_per_node=8)


def configure(actor=None, **keys):
    batch = {"training_args": {"per_device_train_batch_size": 4, "learning_rate": 2e-5, "warmup_steps": 3}}
    return load_config(
        RLVRConfig,
        {
            "pretrain": "base",
            "response_length": 8,
            "rollout_batch_size": 4,
            "num_return_sequences_in_group": 4,
            "max_steps": 10,
            "max_grad_norm": 0.25,
            "rpc_timeout": 77.0,
            "actor_train": {**ON, **batch, **(actor or {})},
            "actor_infer": ON,
            **keys,
        },
    )


def spec(config, role):
    return train_spec(config, derive(config), config.roles()[role], config.pretrain)


def test_the_policy_is_trained_as_its_blocks_say():
    config = configure({"max_tokens_per_microbatch_in_train": 11, "max_tokens_per_microbatch_in_infer": 13})
    made = spec(config, "actor_train")
    assert (made.model_path, made.backend, made.model) == ("base", FSDP2Config(), config.actor_train.model_args)
    assert (made.max_tokens_per_microbatch_infer, made.collective_timeout_s) == (13, 77.0)
    training = made.optimisation
    assert (training.arguments, training.max_grad_norm) == (config.actor_train.training_args, 0.25)
    assert (training.total_steps, training.max_tokens_per_microbatch) == (40, 11)
    assert training.schedule.at(0) == pytest.approx(2e-5 / 3)
    assert not made.recomputes_activations and not made.export_adapters


def test_the_reference_is_frozen_whatever_its_model_says():
    model = {"model_name_or_path": "other", "disable_gradient_checkpointing": False}
    made = spec(configure(use_kl_loss=True, kl_loss_coef=0.1, reference={**ON, "model_args": model}), "reference")
    assert (made.model_path, made.optimisation, made.recomputes_activations) == ("other", None, False)


def test_the_critic_has_a_schedule_of_its_own():
    keys = {"adv_estimator": "gae", "critic_warmup": 4}
    config = configure(**keys, critic={**ON, "training_args": {"per_device_train_batch_size": 8}})
    assert spec(config, "critic").optimisation.total_steps == 2 * 10
    assert spec(config, "actor_train").optimisation.total_steps == 4 * (10 - 4)


def test_the_back_end_brings_its_own_options():
    chosen = {"strategy_name": "megatron_train", "strategy_config": {"use_distributed_optimizer": False}}
    made = spec(configure({"strategy_args": chosen}), "actor_train")
    assert made.options(MegatronConfig).use_distributed_optimizer is False
    with pytest.raises(TypeError, match="FSDP2Config is needed, not MegatronConfig"):
        made.options(FSDP2Config)


def test_a_deepspeed_json_may_decide_the_type():
    chosen = {"strategy_name": "deepspeed_train", "strategy_config": {"bf16": {"enabled": True}}}
    assert spec(configure({"strategy_args": chosen}), "actor_train").dtype == "bf16"


def test_adapters_are_exported_where_updates_are_adapters():
    lora = {"lora_target": "all-linear", "lora_rank": 4}
    assert spec(configure({"model_args": lora}), "actor_train").export_adapters
    merged = {**lora, "lora_update": "merged"}
    assert not spec(configure({"model_args": merged}), "actor_train").export_adapters


def test_training_in_fp16_is_refused():
    with pytest.raises(ValueError, match="fp16 gradients underflow"):
        spec(configure({"model_args": {"dtype": "fp16"}}), "actor_train")


def ranks(inventory, **strategy):
    config = configure({"device_mapping": "0-1", **({"strategy_args": strategy} if strategy else {})})
    return train_specs("actor_train", config, derive(config), config.actor_train, "base", inventory, LocalBackend())


def test_processes_that_train_on_gpus_have_an_allocator_whose_segments_grow(monkeypatch):
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    wanted = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert [spec.environment for spec in ranks(GPUS)] == [wanted, wanted]
    assert [spec.environment for spec in ranks(CPUS)] == [{}, {}]
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    assert [spec.environment for spec in ranks(GPUS)] == [{}, {}], "the user's own stays"


def test_only_ranks_that_divide_layers_have_one_queue_to_the_device(monkeypatch):
    """FSDP2's collectives overlap with what was asked before them, for which they need queues of their own."""
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)

    def queues(inventory, size):
        megatron = {"strategy_name": "megatron_train", "strategy_config": {"tensor_model_parallel_size": size}}
        return [spec.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") for spec in ranks(inventory, **megatron)]

    assert queues(GPUS, 2) == ["1", "1"]
    assert queues(GPUS, 1) == queues(CPUS, 2) == [None, None]
    assert all("CUDA_DEVICE_MAX_CONNECTIONS" not in spec.environment for spec in ranks(GPUS))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert queues(GPUS, 2) == [None, None], "the user's own stays"


def engines(engine, devices, inventory=GPUS, **keys):
    config = configure(actor_infer={"device_mapping": devices, "strategy_args": {"strategy_name": engine}}, **keys)
    return infer_specs(config, derive(config), "base", 0, inventory, LocalBackend())


def test_engines_draw_numbers_of_their_own():
    specs = engines("vllm", "0-1", seed=2**32 - 1)
    assert [(spec.kwargs["options"]["seed"], spec.environment) for spec in specs] == [(2**32 - 1, {}), (0, {})]


def test_engines_on_accelerators_get_the_arguments_that_turns_and_updates_in_flight_need():
    def arguments(*of, **keys):
        return engines(*of, **keys)[0].kwargs["options"]["engine_args"]

    assert arguments("vllm", "0") == {"enable_sleep_mode": True}
    assert arguments("vllm", "1") == arguments("vllm", "0", CPUS) == {}
    assert arguments("sglang", "0") == {"enable_memory_saver": True, "enable_weights_cpu_backup": True}
    # SGLang would stamp the tokens of the step under way with the new version.
    assert arguments("sglang", "1", weight_update_mode="in_flight") == {"disable_overlap_schedule": True}
    assert arguments("sglang", "1", CPUS, weight_update_mode="in_flight") == arguments("sglang", "1") == {}


@pytest.mark.parametrize("engine", ["hf_infer", "vllm", "sglang"])
def test_engines_are_told_the_type_of_their_head(engine):
    chosen = {"strategy_args": {"strategy_name": engine}, "device_mapping": "1"}
    for given, told in (({}, None), ({"head_dtype": "fp32"}, "fp32")):
        config = configure(actor_infer={**chosen, "model_args": given})
        (spec,) = infer_specs(config, derive(config), "base", 0, GPUS, LocalBackend())
        assert spec.kwargs["options"]["head_dtype"] == told
