"""Which roles a configuration gives, and which of them a run starts."""

import pytest

from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config

ON = {"device_mapping": "0"}


def configure(**keys):
    return load_config(RLVRConfig, {"response_length": 8, "actor_train": ON, "actor_infer": ON, **keys})


@pytest.mark.parametrize(
    ("keys", "started"),
    [
        ({}, []),
        ({"reference": ON}, []),
        ({"reference": ON, "use_kl_loss": True}, ["reference"]),
        ({"reference": ON, "add_token_level_kl": True}, ["reference"]),
        ({"use_kl_loss": True}, []),
        ({"critic": ON}, []),
        ({"critic": ON, "adv_estimator": "gae"}, ["critic"]),
        ({"critic": ON, "adv_estimator": "my_module.my_estimator"}, []),
        ({"reference": ON, "critic": ON, "use_kl_loss": True, "adv_estimator": "gae"}, ["reference", "critic"]),
    ],
)
def test_a_run_starts_the_roles_that_something_uses(keys, started):
    config = configure(**keys)
    assert list(config.roles()) == ["actor_train", "actor_infer", *started]
    given = [name for name in ("reference", "critic") if name in keys]
    assert list(config.configured_roles()) == ["actor_train", "actor_infer", *given]
    assert all(role is getattr(config, name) for name, role in config.configured_roles().items())


def test_the_model_folder_is_the_roles_own_or_the_runs():
    config = configure(pretrain="base", reference={**ON, "model_args": {"model_name_or_path": "other"}})
    folders = {name: config.model_folder(role) for name, role in config.configured_roles().items()}
    assert folders == {"actor_train": "base", "actor_infer": "base", "reference": "other"}
    assert configure().model_folder(configure().actor_train) == ""
