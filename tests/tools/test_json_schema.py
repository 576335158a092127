import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import yaml
from json_schema import SCHEMAS, json_schema, text
from jsonschema import Draft7Validator

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.estimators import AdvantageEstimator
from roll.core.configs.losses import POLICY_LOSSES
from roll.core.configs.plain import to_mapping
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.validation import check_config

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = EXAMPLES / "config"
FILES = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.read_text().startswith("# yaml-language-server: $schema=")]
RLVR, AGENTIC = (Draft7Validator(json_schema(cls)) for cls in (RLVRConfig, AgenticConfig))


@pytest.mark.parametrize("file", SCHEMAS)
def test_the_schema_in_the_repository_is_current(file):
    assert (FOLDER / file).read_text() == text(SCHEMAS[file]), "make it again: python tools/json_schema.py examples/config"
    Draft7Validator.check_schema(json.loads((FOLDER / file).read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_fits_the_schema_that_its_first_line_names(path):
    named = (path.parent / path.read_text().splitlines()[0].partition("=")[2]).resolve()
    assert named.parent == FOLDER
    assert list(Draft7Validator(json.loads(named.read_text())).iter_errors(yaml.safe_load(path.read_text()))) == []


def test_every_configuration_among_the_examples_names_its_schema():
    whole = {
        path for path in EXAMPLES.rglob("*.yaml") if {"max_steps", "exp_name", "mode"} & yaml.safe_load(path.read_text()).keys()
    }
    assert whole == set(FILES)


@pytest.mark.parametrize(
    ("mapping", "fits"),
    [
        ({"max_steps": 3}, True),
        ({"max_steps": "${n}"}, True),
        ({"max_steps": 0}, False),
        ({"max_steps": "many"}, False),
        ({"max_stepps": 3}, False),
        ({"use_kl_loss": "yes"}, False),
        ({"kl_penalty": "k2"}, True),
        ({"kl_penalty": "full"}, False),
        ({"reward_clip": None}, True),
        ({"pg_clip": None}, False),
        ({"actor_train": {"training_args": {"learning_rate": "1e-6"}}}, True),
        ({"actor_train": {"training_args": {"learning_rate": 0}}}, False),
        ({"actor_train": {"device_mapping": "list(range(0,4))"}}, True),
        ({"actor_train": {"device_mapping": [0, 1]}}, True),
        ({"rewards": {"math": {"worker_cls": "a.B"}}}, True),
        ({"rewards": {"math": {}}}, False),
        (
            {
                "actor_train": {
                    "strategy_args": {"strategy_name": "fsdp2_train", "strategy_config": {"reshard_after_forward": True}}
                }
            },
            True,
        ),
        ({"actor_train": {"strategy_args": {"strategy_name": "fsdp2_train", "strategy_config": {"kv_cache_tokens": 1}}}}, False),
        ({"actor_infer": {"strategy_args": {"strategy_name": "hf_infer", "strategy_config": {"kv_cache_tokens": 1}}}}, True),
        ({"actor_train": {"pg_variant": "gspo"}}, True),
        ({"actor_train": {"pg_variant": "my_module.my_loss"}}, True),
        ({"actor_train": {"pg_variant": "${loss}"}}, True),
        ({"actor_train": {"pg_variant": "gspoo"}}, False),
        ({"adv_estimator": "rloo"}, True),
        ({"adv_estimator": "my_module.my_estimator"}, True),
        ({"adv_estimator": "ppo"}, False),
        ({"defaults": ["a@_here_"], "hydra": {"run": {"dir": "."}}}, True),
    ],
)
def test_what_an_editor_underlines(mapping, fits):
    assert RLVR.is_valid(mapping) == fits


NAMES = (*POLICY_LOSSES, *get_args(AdvantageEstimator), "nonsense", "a.b", "a..b", "")


@pytest.mark.parametrize(("cls", "validator"), [(RLVRConfig, RLVR), (AgenticConfig, AGENTIC)])
@pytest.mark.parametrize("name", NAMES)
def test_an_editor_allows_the_losses_and_estimators_that_a_run_allows(cls, validator, name):
    def allowed(key, config):
        """Whether the rules refuse the name itself, whatever else it would need."""
        refusals = ("is not a", "compares the turns", "takes a greedy response", "keeps responses of a group")
        return not any(each.key == key and each.message.startswith(refusals) for each in check_config(config, 2))

    config = cls()
    loss = replace(config, actor_train=replace(config.actor_train, pg_variant=name))
    assert validator.is_valid({"actor_train": {"pg_variant": name}}) == allowed("actor_train.pg_variant", loss)
    assert validator.is_valid({"adv_estimator": name}) == allowed("adv_estimator", replace(config, adv_estimator=name))


def test_each_pipeline_has_its_own_keys():
    assert AGENTIC.is_valid({"custom_envs": {"Lake": {"env_type": "frozen_lake"}}})
    assert not AGENTIC.is_valid({"rewards": {"math": {"worker_cls": "a.B"}}})
    assert not RLVR.is_valid({"custom_envs": {"Lake": {"env_type": "frozen_lake"}}})


@pytest.mark.parametrize("cls", [RLVRConfig, AgenticConfig])
def test_the_defaults_fit_and_every_key_has_its_meaning(cls):
    schema = json_schema(cls)
    assert list(Draft7Validator(schema).iter_errors(to_mapping(cls()))) == []
    assert all(entry["description"] for entry in schema["properties"].values())
