"""verl's names of stages mean those of the run that is given them, of either kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.core.configs.flow import CustomStageConfig
from roll.core.configs.problems import ConfigError
from roll.prepare.compose import load
from roll.prepare.outline import in_words_of
from roll.prepare.training_flow import AsyncTrainingFlow, create_role_state_machine

CONFIGS = Path(__file__).parents[2] / "examples" / "config"
KINDS = {"rlvr_config_async": "generate", "agent_val_frozen_lake_async": "episodes"}


def same(item: Any) -> Any:
    return item


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("called", ["rollout", "generate"])
def test_a_stage_that_is_made_without_its_run_does_the_work_that_verls_name_means_there(name, called):
    config = load(CONFIGS, name)[0]
    stages = [create_role_state_machine(called, same), create_role_state_machine("mine", same, after=called)]
    flow = AsyncTrainingFlow(config, local=True, stages=stages)
    there = [stage.name for stage in flow.outline().stages]
    assert there[there.index(KINDS[name]) + 1] == "mine" and "rollout" not in there
    assert [stage.name for stage in stages] == [KINDS[name], "mine"]


@pytest.mark.parametrize("name", KINDS)
def test_so_it_is_with_stages_of_a_file(name):
    config = load(CONFIGS, name)[0]
    given = [CustomStageConfig(name="rollout", worker="a.b"), CustomStageConfig(name="mine", worker="a.b", after="dataloader")]
    kind = AsyncTrainingFlow(config).pipeline.kind
    assert [(each.name, each.after) for each in in_words_of(kind, config, given)] == [(KINDS[name], None), ("mine", "admit")]


def test_a_stage_of_ones_own_that_has_one_of_verls_names_is_meant_before_it():
    config = load(CONFIGS, "rlvr_config_async")[0]
    stages = [create_role_state_machine("logp", same, after="reward"), create_role_state_machine("mine", same, after="logp")]
    there = [stage.name for stage in AsyncTrainingFlow(config, local=True, stages=stages).outline().stages]
    assert there[there.index("reward") + 1 :][:2] == ["logp", "mine"]


def test_a_name_that_nothing_means_stays_in_its_own_words():
    config = replace(load(CONFIGS, "rlvr_config_async")[0], old_logprobs="bypass")
    with pytest.raises(ConfigError, match=r"flow\.stages\.ref_logp\.name = 'ref_logp'"):
        AsyncTrainingFlow(config, local=True, stages=[create_role_state_machine("ref_logp", same)]).outline()
