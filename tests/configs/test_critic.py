"""The keys of a critic: what they need, what they exclude, and how many steps it takes."""

import pytest

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import derive
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

TRAINING = {"per_device_train_batch_size": 16}
COMMON = {
    "pretrain": "model",
    "max_steps": 10,
    "adv_estimator": "gae",
    "actor_infer": {"device_mapping": "1"},
    "critic": {"device_mapping": "0-1", "training_args": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}},
}
RLVR = {
    **COMMON,
    "rollout_batch_size": 8,
    "num_return_sequences_in_group": 8,
    "prompt_length": 16,
    "response_length": 8,
    "actor_train": {"device_mapping": "0", "training_args": TRAINING, "data_args": {"file_name": "train.jsonl"}},
    "rewards": {"math": {"worker_cls": "my.Math"}},
}
AGENTIC = {
    **COMMON,
    "rollout_batch_size": 32,
    "sequence_length": 64,
    "actor_train": {"device_mapping": "0", "training_args": TRAINING},
    "custom_envs": {"Lake": {"env_type": "frozen_lake", "max_steps": 3, "max_tokens_per_step": 8}},
    "train_env_manager": {"tags": ["Lake"], "num_env_groups": 4, "group_size": 8},
}


def configure(cls=RLVRConfig, base=RLVR, **changes):
    mapping = {**base, **changes}
    return load_config(cls, {key: value for key, value in mapping.items() if value is not None})


def problems(config):
    return {problem.key: problem.message for problem in check_config(config, 2)}


def test_good_configurations_have_no_problem():
    assert problems(configure()) == {}
    assert problems(configure(AgenticConfig, AGENTIC)) == {}


def critic(**changes):
    return {"critic": {**COMMON["critic"], **changes}}


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        ({"critic": None}, "critic", "adv_estimator gae needs it"),
        ({"adv_estimator": "grpo"}, "critic", "adv_estimator grpo uses no critic"),
        ({"adv_estimator": "grpo", "critic": None, "lambd": 0.9}, "lambd", "adv_estimator is grpo"),
        ({"adv_estimator": "grpo", "critic": None, "value_clip": 0.5}, "value_clip", "adv_estimator is grpo"),
        ({"adv_estimator": "grpo", "critic": None, "critic_warmup": 1}, "critic_warmup", "adv_estimator is grpo"),
        ({"critic_warmup": 10}, "critic_warmup", "10 >= max_steps 10"),
        (critic(strategy_args={"strategy_name": "fsdp2_infer"}), "critic.strategy_args.strategy_name", "does not fit critic"),
        (critic(model_args={"lora_target": "all-linear"}), "critic.model_args.lora_target", "all weights"),
        (critic(device_mapping=None), "critic.device_mapping", "needs devices"),
        (critic(device_mapping="1-2"), "critic.device_mapping", "no device 2"),
        (
            critic(training_args={"per_device_train_batch_size": 24}),
            "rollout_batch_size",
            "64 samples, not a multiple of the critic's optimiser batch: per_device_train_batch_size 24",
        ),
        (
            critic(training_args={"per_device_train_batch_size": 16, "warmup_steps": 1, "warmup_ratio": 0.1}),
            "critic.training_args.warmup_ratio",
            "warmup_steps 1 is given too",
        ),
    ],
)
def test_each_rule_names_its_key(changes, key, told):
    found = problems(configure(**changes))
    assert list(found) == [key]
    assert told in found[key]


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        ({"gamma": 0.9}, "gamma", "gae takes each token as an action"),
        (
            {"custom_envs": {"Lake": {**AGENTIC["custom_envs"]["Lake"], "env_manager_cls": "a.b.StepEnvManager"}}},
            "custom_envs.Lake.env_manager_cls",
            "a sample of each turn",
        ),
    ],
)
def test_what_gae_excludes_in_episodes(changes, key, told):
    found = problems(configure(AgenticConfig, AGENTIC, **changes))
    assert list(found) == [key]
    assert told in found[key]


def test_steps_of_policy_and_critic():
    """64 samples a step; batches of 16 for the policy, of 8 x 2 x 2 ranks = 32 for the critic."""
    derived = derive(configure(critic_warmup=4, ppo_epochs=3))
    assert derived.total_optimizer_steps == 64 // 16 * 3 * (10 - 4)
    assert derived.critic_steps_per_epoch == 2
    assert derived.critic_total_steps == 2 * 3 * 10
    without = derive(configure(adv_estimator="grpo", critic=None))
    assert (without.critic_steps_per_epoch, without.critic_total_steps) == (0, 0)
    assert without.total_optimizer_steps == 4 * 10
