"""`actor_log_prob`: what it is derived to do, and where it makes no sense, which is refused by key."""

import pytest

from roll.core.configs.derived import derive
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

BASE = {
    "pretrain": "model",
    "async_generation_ratio": 1,
    "prompt_length": 8,
    "response_length": 8,
    "rollout_batch_size": 4,
    "num_return_sequences_in_group": 2,
    "old_logprobs": "recompute",
    "actor_train": {
        "device_mapping": "0",
        "training_args": {"per_device_train_batch_size": 8},
        "data_args": {"file_name": "prompts.jsonl"},
    },
    "actor_infer": {"device_mapping": "1"},
    "actor_log_prob": {"device_mapping": "2"},
    "rewards": {"math": {"worker_cls": "some.Reward"}},
}


def config(role=None, **changes):
    mapping = {**BASE, **changes}
    if role is not None:
        mapping["actor_log_prob"] = {"device_mapping": "2", **role}
    return load_config(RLVRConfig, mapping)


@pytest.mark.parametrize(
    ("ratio", "lag", "derived", "ahead"),
    [
        (0, "auto", 0, ()),
        (0.5, "auto", 0, ()),
        (1, "auto", 1, ("actor_log_prob",)),
        (1, 0, 0, ()),
        (2, 1, 1, ("actor_log_prob",)),
    ],
)
def test_the_next_step_is_scored_ahead_where_it_can_be_complete(ratio, lag, derived, ahead):
    given = config({"lag": lag}, async_generation_ratio=ratio)
    assert check_config(given, 3) == []
    found = derive(given)
    assert (found.log_prob_lag, found.scored_ahead) == (derived, ahead)


@pytest.mark.parametrize(
    ("role", "changes", "key"),
    [
        ({}, {"old_logprobs": "auto"}, "actor_log_prob"),
        ({"lag": 1}, {"async_generation_ratio": 0.5}, "actor_log_prob.lag"),
        ({"device_mapping": "0"}, {}, "actor_log_prob.device_mapping"),
        ({"device_mapping": "1,2"}, {}, "actor_log_prob.device_mapping"),
        ({"device_mapping": None}, {}, "actor_log_prob.device_mapping"),
        ({"model_args": {"model_name_or_path": "another"}}, {}, "actor_log_prob.model_args.model_name_or_path"),
        ({"model_args": {"dtype": "bf16"}}, {}, "actor_log_prob.model_args.dtype"),
        ({"model_args": {"lora_target": "all-linear"}}, {}, "actor_log_prob.model_args.lora_target"),
        ({"strategy_args": {"strategy_name": "hf_infer"}}, {}, "actor_log_prob.strategy_args.strategy_name"),
    ],
)
def test_what_makes_no_sense_is_refused_by_key(role, changes, key):
    assert key in {problem.key for problem in check_config(config(role, **changes), 3)}


def test_it_may_share_devices_with_the_reference_and_is_the_trainers_concern_alone():
    shared = {"use_kl_loss": True, "kl_loss_coef": 0.1, "reference": {"device_mapping": "2"}}
    assert check_config(config(**shared), 3) == []
    assert "actor_log_prob" not in config(mode="explore", groups_database="sqlite:///groups.db").roles()
