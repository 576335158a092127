"""`model_args.head_dtype`: where it makes no sense, what contradicts it, and what a run is told."""

import pytest

from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.head_rules import head_notes
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

FP32 = {"head_dtype": "fp32"}


def config(train=None, infer=None, engine="hf_infer", given=None, **more):
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
                "model_args": train or {},
            },
            "actor_infer": {
                "device_mapping": "1",
                "strategy_args": {"strategy_name": engine, "strategy_config": given or {}},
                "model_args": infer or {},
            },
            "rewards": {"math": {"worker_cls": "my.Math"}},
            **more,
        },
    )


def problems(*args, **named):
    return {problem.key: str(problem) for problem in check_config(config(*args, **named), 4)}


def test_a_type_that_is_not_there_is_refused():
    with pytest.raises(Exception, match=r"head_dtype.*bf16"):
        config({"head_dtype": "bf16"})


@pytest.mark.parametrize("target", ["q_proj,lm_head", "lm_head", ".*(q_proj|head)"])
def test_adapters_of_the_output_layer_are_refused_beside_it(target):
    found = problems({**FP32, "lora_target": target}, FP32)
    assert "gives the output layer adapters" in found["actor_train.model_args.head_dtype"]
    assert "all-linear" in found["actor_train.model_args.head_dtype"]


@pytest.mark.parametrize("target", ["all-linear", "q_proj,v_proj", ".*q_proj", None])
def test_other_adapters_are_not(target):
    assert problems({**FP32, "lora_target": target} if target else FP32, FP32) == {}


def test_a_critic_has_no_logits():
    critic = {"device_mapping": "0", "training_args": {"per_device_train_batch_size": 16}, "model_args": FP32}
    found = problems(FP32, FP32, adv_estimator="gae", critic=critic)
    assert "no logits" in found["critic.model_args.head_dtype"]


@pytest.mark.parametrize(
    ("engine", "given", "head", "refused"),
    [
        ("vllm", {"hf_overrides": {"head_dtype": "float32"}}, {}, ".hf_overrides.head_dtype"),
        ("vllm", {"hf_overrides": {"head_dtype": "model"}}, FP32, ".hf_overrides.head_dtype"),
        ("vllm", {"hf_overrides": {"head_dtype": "float32"}}, FP32, None),
        ("vllm", {"hf_overrides": {"rope_theta": 1e6}}, FP32, None),
        ("vllm", {"hf_overrides": "rope_theta"}, FP32, ".hf_overrides"),
        ("sglang", {"enable_fp32_lm_head": True}, {}, ".enable_fp32_lm_head"),
        ("sglang", {"enable_fp32_lm_head": False}, FP32, ".enable_fp32_lm_head"),
        ("sglang", {"enable_fp32_lm_head": True}, FP32, None),
    ],
)
def test_an_engines_own_argument_must_not_contradict_it(engine, given, head, refused):
    found = problems(FP32, head, engine, given)
    wanted = [] if refused is None else [f"actor_infer.strategy_args.strategy_config{refused}"]
    assert [*found] == wanted


def test_log_probs_of_the_first_weights_have_the_trainers_type():
    given = {"async_generation_ratio": 1, "old_logprobs": "recompute"}
    found = problems(FP32, FP32, **given, actor_log_prob={"device_mapping": "2"})
    assert "that of actor_train is fp32" in found["actor_log_prob.model_args.head_dtype"]
    assert problems(FP32, FP32, **given, actor_log_prob={"device_mapping": "2", "model_args": FP32}) == {}


def notes(*args, accelerators=True, **named):
    return {note.key: str(note) for note in head_notes(config(*args, **named), accelerators)}


def test_a_run_is_told_that_trainer_and_engine_differ():
    key = "actor_infer.model_args.head_dtype"
    assert "actor_train's is fp32: on one side logits are rounded" in notes(FP32)[key]
    assert "actor_train's is null" in notes({}, FP32)[key]
    assert notes(FP32, FP32) == notes() == {}
    reference = {"device_mapping": "0", "strategy_args": {"strategy_name": "fsdp2_infer"}}
    assert [*notes(FP32, FP32, use_kl_loss=True, reference=reference)] == ["reference.model_args.head_dtype"]


def test_a_run_is_told_where_it_changes_nothing():
    """`dtype: auto` is fp32 on a CPU, where the same file has to work; a difference in name alone is none."""
    for found in (notes(FP32, accelerators=False), notes({**FP32, "dtype": "fp32"}, {"dtype": "fp32"})):
        assert found == {"actor_train.model_args.head_dtype": found["actor_train.model_args.head_dtype"]}
        assert "changes nothing: the layers compute in fp32" in found["actor_train.model_args.head_dtype"]
