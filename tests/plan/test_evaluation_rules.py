"""Validation sets, and `mode: bench`: what is refused, and what such a process needs no more."""

import pytest

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import derive
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

SET = {"data_args": {"file_name": "aime.jsonl"}, "generating_args": {"num_return_sequences": 16, "temperature": 0.6}}
RLVR = {
    "pretrain": "model",
    "prompt_length": 16,
    "response_length": 8,
    "output_dir": "out",
    "exp_name": "run",
    "mode": "bench",
    "actor_infer": {"device_mapping": "0"},
    "rewards": {"math": {"worker_cls": "my.Math"}},
    "validation_sets": {"aime": SET},
}
MANAGER = {"num_env_groups": 4, "group_size": 8}
AGENTIC = {
    "pretrain": "model",
    "sequence_length": 64,
    "max_tokens_per_step": 8,
    "mode": "bench",
    "actor_infer": {"device_mapping": "0", "generating_args": {"top_p": 0.9}},
    "custom_envs": {"lake": {"env_type": "frozen_lake"}, "push": {"env_type": "sokoban"}},
    "train_env_manager": {"group_size": 8},
    "validation_sets": {"lakes": {"env_manager": {"tags": ["lake"], **MANAGER}}},
}


def configure(base, **changes):
    return load_config(AgenticConfig if "custom_envs" in base else RLVRConfig, base | changes)


def problems(base, **changes):
    return {problem.key: problem.message for problem in check_config(configure(base, **changes), 2)}


def test_an_evaluation_needs_neither_a_trainer_nor_training_prompts():
    for base in (RLVR, AGENTIC):
        assert problems(base) == {}
    config = configure(RLVR, adv_estimator="gae", critic={}, async_generation_ratio=1, resume_from_checkpoint="auto")
    assert check_config(config, 2) == []
    assert list(config.roles()) == ["actor_infer"]
    assert (config.run_dir, config.groups_address) == ("out/run/bench", None)
    lora = configure(RLVR, actor_train={"model_args": {"lora_target": "all-linear"}})
    assert not derive(lora).adapter_updates, "checkpoints are whole models"


@pytest.mark.parametrize(
    "schedule",
    [
        {"train_on_arrival": True},
        {"synchronous_after_failures": 2, "async_generation_ratio": 1},
        {"weights_address": "10.0.0.1"},
        {"explorer_name": "second"},
    ],
)
def test_how_a_run_was_scheduled_does_not_concern_its_evaluation(schedule):
    for base in (RLVR, AGENTIC):
        assert problems(base, **schedule) == {}


def test_the_first_set_is_the_one_without_a_name():
    validation = {"data_args": {"file_name": "v.jsonl"}}
    config = configure(RLVR, validation=validation)
    assert list(config.validations) == ["validation", "aime"]
    assert [args.temperature for args in config.validation_sampling.values()] == [1.0, 0.6]
    agentic = configure(AGENTIC, val_env_manager=MANAGER, validation={"generating_args": {"temperature": 0.5}})
    assert list(agentic.validations) == ["validation", "lakes"]
    sampling = agentic.validation_sampling
    assert (sampling["validation"].temperature, sampling["lakes"].top_p) == (0.5, 0.9), "no sampling of its own: training's"


@pytest.mark.parametrize(
    ("base", "changes", "key", "message"),
    [
        (RLVR, {"validation_sets": {}}, "validation_sets", "there is none"),
        (AGENTIC, {"validation_sets": {}}, "validation_sets", "there is none"),
        (RLVR, {"bench_checkpoints": []}, "bench_checkpoints", "names no model"),
        (RLVR, {"resume_from_checkpoint": True}, "resume_from_checkpoint", "resumes nothing"),
        (RLVR, {"validation_sets": {"aime": {}}}, "validation_sets.aime.data_args.file_name", "names no prompt file"),
        (
            RLVR,
            {"validation_sets": {"aime": SET | {"generating_args": {"max_new_tokens": 9}}}},
            "validation_sets.aime.generating_args.max_new_tokens",
            "9 > response_length 8",
        ),
        *((AGENTIC, {"validation_sets": {name: {}}}, f"validation_sets.{name}", "is the name of other tasks")
          for name in ("train", "validation")),
        *((AGENTIC, {"validation_sets": {name: {}}}, "validation_sets", "is no name of a set") for name in ("a/b", "", "v1.0")),
        (
            AGENTIC,
            {"validation_sets": {"lakes": {"env_manager": {"tags": ["sea"]}}}},
            "validation_sets.lakes.env_manager.tags[0]",
            "there is no custom_envs.sea",
        ),
        (
            AGENTIC,
            {"validation_sets": {"lakes": {"env_manager": {"group_size_redundancy": 1}}}},
            "validation_sets.lakes.env_manager.group_size_redundancy",
            "counts every episode",
        ),
        (AGENTIC, {"val_batch_size": 12}, "val_batch_size", "groups of 8 (validation_sets.lakes.env_manager)"),
        (AGENTIC, {"validation": {}}, "validation", "there is no val_env_manager"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused(base, changes, key, message):
    found = problems(base, **changes)
    assert list(found) == [key] and message in found[key]


def test_only_an_evaluation_reads_which_checkpoints():
    found = problems(RLVR, mode="explore", model_update_transport="checkpoint_dir", bench_checkpoints=["output/run"])
    assert found["bench_checkpoints"] == "has no effect with mode: explore"
