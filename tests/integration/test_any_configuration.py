"""What `prepare` lets through, runs to its end: configurations of keys that are drawn at random, of all that have few values."""

import random
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

import pytest

from roll.cli.verify import read_run, violations
from roll.core.configs.fields import walk
from roll.core.configs.losses import POLICY_LOSSES
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.prepare.rlvr_run import prepare

OTHER_PROGRAMS = ("strategy_name", "sandbox", "mode", "track_with", "audit")
"""Keys that choose what is tested elsewhere, or takes long."""
NUMBERS = {
    "async_generation_ratio": [0, 0.5, 1, 2.5],
    "rollout_batch_size": [1, 2, 4, 6],
    "num_return_sequences_in_group": [1, 2, 4, 8],
    "response_length": [1, 4, 8],
    "max_running_requests": [1, 3, 16],
    "max_reuse": [1, 2, 3],
    "redundant_groups": [0, 1, 4],
    "ppo_epochs": [1, 2],
    "weight_push_interval": [1, 2],
    "weight_pull_interval": [0, 1, 3],
    "critic_warmup": [0, 1],
    "actor_train.training_args.per_device_train_batch_size": [1, 4, 8, 16],
    "actor_train.max_tokens_per_microbatch_in_train": [8, 40, 4096],
    "actor_infer.generating_args.temperature": [0.5, 1.0],
    "actor_infer.generating_args.top_p": [0.7, 1.0],
    "actor_infer.generating_args.top_k": [3, -1],
    "actor_infer.device_mapping": ["0", "1", "0-1"],
    "actor_train.pg_variant": list(POLICY_LOSSES),
    "save_steps": [1, 1000],
}
BLOCKS = [
    {"adv_estimator": "gae", "critic.device_mapping": "0"},
    {"use_kl_loss": True, "reference.device_mapping": "0"},
    {"add_token_level_kl": True, "reference.device_mapping": "1"},
    {"actor_train.model_args.lora_target": "all-linear"},
]


def choices():
    """Key -> its values, of the keys that have a few."""
    few = dict(NUMBERS)
    for path, _, hint in walk(RLVRConfig):
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        values = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
        values += [True, False] if bool in kinds else []
        one_of_few = values and all(kind in (bool, NoneType) or get_origin(kind) is Literal for kind in kinds)
        if one_of_few and not {"<name>", "filters"} & set(path.split(".")) and not path.endswith(OTHER_PROGRAMS):
            few.setdefault(path, values)
    return few


@pytest.fixture
def drawn(lab, make_config):
    def draw(seed):
        """Changes of the tests' configuration that `prepare` accepts together: as many as there are of two dozen tries."""
        few, generator, changes = choices(), random.Random(seed), {}
        keys = sorted(few)
        tries = [each for each in BLOCKS if generator.random() < 0.25]
        for key in ["async_generation_ratio", "actor_train.pg_variant", *generator.choices(keys, k=22)]:
            tries.append({key: generator.choice(few[key])})
        for each in tries:
            if {key.split(".")[0] for key in each} & {"critic", "reference", "actor_log_prob"} and len(each) == 1:
                continue  # the role may not be there
            try:
                prepare(make_config(changes | each), lab.inventory)
            except ConfigError:
                continue
            changes |= each
        return changes

    return draw


@pytest.mark.parametrize("seed", range(12))
def test_a_configuration_that_is_accepted_trains_and_goes_on(lab, make_config, drawn, seed):
    changes = drawn(seed)
    if seed % 3:
        lab.run(make_config(changes, max_steps=3))
        return
    first = lab.run_local(make_config(changes, max_steps=2, save_steps=1))
    again = lab.run_local(make_config(changes, max_steps=4, resume_from_checkpoint=True))
    assert [(run.summary["status"], run.summary["steps"]) for run in (first, again)] == [("finished", 2), ("finished", 4)]
    assert list(violations(read_run(again.run_dir))) == []
