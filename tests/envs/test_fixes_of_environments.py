"""A fix for an environment's keys, or a tool's, is followed as it is written, until the environment can be made."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import roll
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.tools import ToolConfig, ToolWrapperConfig
from roll.envs.registry import make_env
from roll.envs.tools.toolbox import Toolbox

ROOMS = ("graders", "prompts", "chat", "envs", "strategies", "platform", "prepare", "topologies")
CARTPOLE = {"env_id": "CartPole-v1"}
ROUNDS = 3


def followed(config: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
    """The configuration with what the fix says: a value, a name that was meant, or the key removed."""
    above, _, key = problem.key.removeprefix("env_config").lstrip(".").rpartition(".")
    changed = {name: dict(value) if isinstance(value, dict) else value for name, value in config.items()}
    block = changed[above] if above else changed
    if problem.fix.startswith("remove it"):
        del block[key]
    elif meant := re.match(r"did you mean (\w+)\?", problem.fix):
        if "no such key" in problem.message or "no kind" in problem.message or "not a kind" in problem.message:
            block[meant[1]] = block.pop(key)
        else:
            block[key] = meant[1]
    else:
        said = re.search(r"e\.g\. (.*?)(?:, or .*)?$", problem.fix)
        assert said, problem
        block[key] = said[1] if said[1][0] in "(<" else yaml.safe_load(said[1])
    return changed


@pytest.mark.parametrize(
    ("env_type", "env_config"),
    [
        ("frozen_lake", {"size": 1}),
        ("frozen_lake", {"size": 99, "p": 2}),
        ("frozen_lake", {"size": "4"}),
        ("frozen_lake", {"is_slippery": "no"}),
        ("frozen_lake", {"success_rate": 0}),
        ("frozen_lake", {"observation": "gird"}),
        ("frozen_lake", {"observation": "picture"}),
        ("frozen_lake", {"is_slipery": True}),
        ("frozen_lake", {"grid_vocabulary": {"goal": "XX"}}),
        ("frozen_lake", {"grid_vocabulary": {"goall": "X"}}),
        ("frozen_lake", {"grid_vocabulary": {"goal": "_"}}),
        ("frozen_lake", {"format_penalty": 0.5}),
        ("frozen_lake", {"action_pattern": "(["}),
        ("frozen_lake", {"action_pattern": "[a-z]+"}),
        ("frozen_lake", {"action_lookup": {"1": "Sideways"}}),
        ("frozen_lake", {"action_lookup": {}}),
        ("sokoban", {"dim_room": [3, 3]}),
        ("sokoban", {"dim_room": [6, 6], "num_boxes": 99}),
        ("sokoban", {"num_boxes": 0}),
        ("sokoban", {"search_depth": 0}),
        ("sokoban", {"min_pushes": "2"}),
        ("sokoban", {"grid_vocabulary": "defalt"}),
        ("sokoban", {"grid_vocabulary": "pretty"}),
        ("gymnasium", {**CARTPOLE, "digits": 0}),
        ("gymnasium", {**CARTPOLE, "max_steps": 0}),
        ("gymnasium", {**CARTPOLE, "actions": ["left"]}),
        ("gymnasium", {**CARTPOLE, "actions": ["left", "LEFT"]}),
    ],
)
def test_an_environment_can_be_made_as_the_fix_says(env_type: str, env_config: dict[str, Any]) -> None:
    for _ in range(ROUNDS):
        try:
            make_env(env_type, env_config)
        except ConfigError as error:
            last = error
            env_config = followed(env_config, error.problems[0])
        else:
            assert last
            return
    raise AssertionError(str(last))


def test_a_value_of_another_type_is_named_by_its_own_key() -> None:
    with pytest.raises(ConfigError, match=r"env_config.size = '4': must be a whole number; fix: e.g. 4$"):
        make_env("frozen_lake", {"size": "4"})


def test_two_tools_alike_are_one_too_many() -> None:
    twice = ToolWrapperConfig(tool_configs=[ToolConfig(tool_id="python_code")] * 2)
    with pytest.raises(ConfigError, match="fix: keep one of them"):
        Toolbox(twice, "tool_wrapper", 1.0)
    Toolbox(ToolWrapperConfig(tool_configs=twice.tool_configs[:1]), "tool_wrapper", 1.0)


def problems_without_fix(path: Path) -> list[str]:
    """Where a `Problem` is made of a key, a value and a message alone."""
    made = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    named = (node for node in made if isinstance(node.func, ast.Name) and node.func.id == "Problem")
    return [
        f"{path}:{node.lineno}"
        for node in named
        if len(node.args) < 4 and not any(isinstance(each, ast.Starred) for each in node.args) and not node.keywords
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_no_problem_is_without_a_fix(room: str) -> None:
    files = sorted((Path(roll.__file__).parent / room).rglob("*.py"))
    assert files
    assert [found for path in files for found in problems_without_fix(path)] == []
