"""`train_on_arrival` in episodes: comparisons within a group are fine, those over the batch are refused by name."""

import pytest

from roll.core.configs.agentic import AgenticConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

AGENTIC = {
    "pretrain": "model",
    "train_on_arrival": True,
    "actor_infer": {"device_mapping": "1"},
    "rollout_batch_size": 32,
    "sequence_length": 64,
    "actor_train": {"device_mapping": "0", "training_args": {"per_device_train_batch_size": 32}},
    "custom_envs": {"Lake": {"env_type": "frozen_lake", "max_steps": 3, "max_tokens_per_step": 8}},
    "train_env_manager": {"tags": ["Lake"], "num_env_groups": 4, "group_size": 8},
}


def problems(**changes):
    return {problem.key: problem.message for problem in check_config(load_config(AgenticConfig, {**AGENTIC, **changes}), 2)}


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "step_reinforce", "agentic_reinforce"])
def test_what_compares_the_episodes_of_a_group_is_accepted(estimator):
    assert problems(adv_estimator=estimator) == {}


@pytest.mark.parametrize(
    ("normalization", "key"),
    [
        ({"grouping": "tags", "norm_mean_type": "group"}, "reward_normalization.grouping"),
        ({"grouping": "batch"}, "reward_normalization.grouping"),
        ({"norm_mean_type": "batch"}, "reward_normalization.norm_mean_type"),
        ({"norm_std_type": "batch"}, "reward_normalization.norm_std_type"),
    ],
)
def test_what_compares_all_episodes_is_refused(normalization, key):
    found = problems(adv_estimator="reinforce", reward_normalization=normalization)
    assert list(found) == [key] and "train_on_arrival" in found[key]


def tuning_problems(tuning, **changes):
    found = problems(adv_estimator="grpo", staleness_tuning=tuning, train_on_arrival=False, **changes)
    return {key: message for key, message in found.items() if key.startswith("staleness_tuning")}


def test_what_follows_the_effective_sample_size_has_something_to_change():
    on = {"depth": True, "learning_rate": True, "target_ess": 0.7}
    assert tuning_problems(on, async_generation_ratio=2) == {}
    assert tuning_problems({"learning_rate": True}) == {}
    assert "is a constant" in tuning_problems(on, async_generation_ratio=2, async_pipeline_depth=1)["staleness_tuning.depth"]
    assert "no effect" in tuning_problems({"depth": True})["staleness_tuning.depth"]
    three = {"async_generation_ratio": 2, "weight_push_interval": 3}
    assert "cannot run less far ahead" in tuning_problems({"depth": True}, **three)["staleness_tuning.depth"]
    assert "nothing follows" in tuning_problems({"target_ess": 0.7})["staleness_tuning.target_ess"]
